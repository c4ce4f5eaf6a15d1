"""One link of the line that an image is passed along. Runs on a machine, with nothing but Python and an engine there.

Lines of stdin say what to do. First {"listen": address or null, "word": ...}: it answers "port N", and listens there
where it has an address. Then, when all of the line listen, {"address": ..., "port": ..., "word": ...} of the next
machine, or null. The stream comes from the machine before it, which must know the word, or else on stdin; every piece
goes to the next machine and to `docker load`.

A piece is four bytes with its length, and itself; an empty one is the end: so a stream that broke off is no whole one.
Nothing is waited for without a limit. The exit code says whose fault it was: BEFORE and AFTER are those of neighbours.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

BEFORE, AFTER = 81, 82
# Seconds: until all of the line listen, for one piece in or out, for a stranger's word, for the engine in the end.
LIMITS = {"line": 900.0, "piece": 300.0, "word": 5.0, "load": 1800.0}


class Fault(Exception):
    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


def main() -> int:
    try:
        relay(sys.stdin.buffer)
    except Fault as fault:
        if str(fault):
            print(fault, file=sys.stderr)  # noqa: T201 - read by imagepush
        return fault.code
    return 0


def relay(told: Any) -> None:
    task = json.loads(told.readline())
    limits = {**LIMITS, **task.get("limits", {})}
    door = socket.create_server((task["listen"], 0), backlog=64) if task["listen"] else None
    print("port", door.getsockname()[1] if door else 0, flush=True)  # noqa: T201 - the answer
    with limited(limits["line"], 1, "hvdctl does not say which machine is next"):
        place = json.loads(told.readline() or "false")
    if place is False:
        raise Fault(1, "hvdctl is gone")

    # Onward first: the next one listens already, however long the one before takes.
    onward = passed_to(place, limits["piece"]) if place else None
    source = taken(door, task["word"].encode(), limits) if door else told
    # Unbuffered: nothing is left to flush to an engine that has ended.
    engine = subprocess.Popen(
        ["docker", "load", "--quiet"], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        feed(source, onward, engine, limits["piece"])
        with limited(limits["load"], 1, "docker load does not end"):
            code = engine.wait()
        if code:
            raise Fault(1)  # the engine has said why
    finally:
        # A broken stream has no end that docker could wait for.
        engine.kill()
        engine.wait()


def passed_to(place: dict[str, Any], limit: float) -> socket.socket:
    with limited(limit, AFTER, f"the next machine does not answer at {place['address']}:{place['port']}"):
        link = socket.create_connection((place["address"], place["port"]))
        link.sendall(place["word"].encode())
    return link


def taken(door: socket.socket, word: bytes, limits: dict[str, float]) -> Any:
    """The stream from the machine before this one. Whoever does not know the word is refused."""
    with door, limited(limits["piece"], BEFORE, "the machine before this one does not connect"):
        while True:
            link, _ = door.accept()
            if knows(link, word, limits["word"]):
                return link.makefile("rb")
            link.close()


def knows(link: socket.socket, word: bytes, limit: float) -> bool:
    deadline = time.monotonic() + limit
    said = b""
    with contextlib.suppress(OSError):
        while len(said) < len(word) and (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            piece = link.recv(len(word) - len(said))
            if not piece:
                break
            said += piece
    link.settimeout(None)
    return hmac.compare_digest(said, word)


def feed(source: Any, onward: socket.socket | None, engine: subprocess.Popen[bytes], limit: float) -> None:
    pipe: Any = engine.stdin
    while True:
        with limited(limit, BEFORE, "the machine before this one sends nothing"):
            size = exactly(source, 4)
            piece = exactly(source, int.from_bytes(size, "big"))
        if onward:
            with limited(limit, AFTER, "the next machine takes nothing"):
                onward.sendall(size + piece)
        with limited(limit, 1, "docker load takes nothing"):
            try:
                if not piece:
                    pipe.close()
                    return
                pipe.write(piece)
            except BrokenPipeError:
                engine.wait()
                raise Fault(1) from None  # the engine has said why


def exactly(source: Any, size: int) -> bytes:
    found: bytes = source.read(size)
    if len(found) < size:
        raise Fault(BEFORE, "the machine before this one broke off")
    return found


@contextlib.contextmanager
def limited(seconds: float, code: int, text: str) -> Iterator[None]:
    """What is done in it takes no longer, and fails with this code and text."""

    def late(*_: Any) -> None:
        raise Fault(code, f"{text} within {seconds:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except OSError as error:
        raise Fault(code, f"{text}: {error.strerror or error}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    sys.exit(main())
