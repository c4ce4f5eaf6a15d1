"""One link of the line that an image is passed along. Runs on a machine, with nothing but Python and an engine there.

Lines of stdin say what to do. First {"listen": address or null, "secret": ...}: it answers "port N", and listens there
where it has an address. Then, when all of the line listen, {"address": ..., "port": ...} of the next machine, or null.
The stream comes from the machine before it, which must know the secret, or else on stdin; every piece goes to the next
machine and to `docker load`.

A piece is four bytes with its length, itself, and its seal, which only those who know the secret can make and which
holds in its place only; an empty piece is the end. The network between the machines can so neither change, leave out
nor add anything. It can read: an image is no place for secrets.
Nothing is waited for without a limit. The exit code says whose fault it was: BEFORE and AFTER are those of neighbours.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

BEFORE, AFTER = 81, 82
# Bytes of a piece: one that claims to be larger was not sent by hvdctl.
LARGEST = 2**20
_NONCE, _SEAL = 16, 32
# Seconds: until all of the line listen, for one piece in or out, for a stranger's proof, for the engine in the end.
LIMITS = {"line": 900.0, "piece": 300.0, "proof": 5.0, "load": 1800.0}


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


def sealed(secret: bytes, number: int, piece: bytes) -> bytes:
    """A piece as it goes along the line."""
    return len(piece).to_bytes(4, "big") + piece + seal(secret, number, piece)


def seal(secret: bytes, number: int, piece: bytes) -> bytes:
    return hmac.digest(secret, number.to_bytes(8, "big") + piece, "sha256")


def relay(told: Any) -> None:
    task = json.loads(told.readline())
    secret = bytes.fromhex(task["secret"])
    limits = {**LIMITS, **task.get("limits", {})}
    door = socket.create_server((task["listen"], 0), backlog=64) if task["listen"] else None
    print("port", door.getsockname()[1] if door else 0, flush=True)  # noqa: T201 - the answer
    with limited(limits["line"], 1, "hvdctl does not say which machine is next"):
        place = json.loads(told.readline() or "false")
    if place is False:
        raise Fault(1, "hvdctl is gone")

    # Onward first: the next one listens already, however long the one before takes.
    onward = passed_to(place, secret, limits["piece"]) if place else None
    source = taken(door, secret, limits) if door else told
    # Unbuffered: nothing is left to flush to an engine that has ended.
    engine = subprocess.Popen(
        ["docker", "load", "--quiet"], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        feed(source, onward, engine, secret, limits["piece"])
        with limited(limits["load"], 1, "docker load does not end"):
            code = engine.wait()
        if code:
            raise Fault(1)  # the engine has said why
    finally:
        # A broken stream has no end that docker could wait for.
        engine.kill()
        engine.wait()


def passed_to(place: dict[str, Any], secret: bytes, limit: float) -> socket.socket:
    with limited(limit, AFTER, f"the next machine does not answer at {place['address']}:{place['port']}"):
        link = socket.create_connection((place["address"], place["port"]))
        nonce = received(link, _NONCE, limit)
        if len(nonce) < _NONCE:
            raise Fault(AFTER, f"the next machine, {place['address']}:{place['port']}, hung up")
        link.sendall(proof(secret, nonce))
    return link


def proof(secret: bytes, nonce: bytes) -> bytes:
    """That one knows the secret, which is not said."""
    return hmac.digest(secret, b"proof" + nonce, "sha256")


def taken(door: socket.socket, secret: bytes, limits: dict[str, float]) -> Any:
    """The stream from the machine before this one. Whoever does not know the secret is refused."""
    with door, limited(limits["piece"], BEFORE, "the machine before this one does not connect"):
        while True:
            link, _ = door.accept()
            if knows(link, secret, limits["proof"]):
                return link.makefile("rb")
            link.close()


def knows(link: socket.socket, secret: bytes, limit: float) -> bool:
    nonce = secrets.token_bytes(_NONCE)
    with contextlib.suppress(OSError):
        link.sendall(nonce)
    return hmac.compare_digest(received(link, _SEAL, limit), proof(secret, nonce))


def received(link: socket.socket, size: int, limit: float) -> bytes:
    """So many bytes, or fewer where no more come in time."""
    deadline = time.monotonic() + limit
    said = b""
    with contextlib.suppress(OSError):
        while len(said) < size and (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            piece = link.recv(size - len(said))
            if not piece:
                break
            said += piece
    link.settimeout(None)
    return said


def feed(
    source: Any, onward: socket.socket | None, engine: subprocess.Popen[bytes], secret: bytes, limit: float
) -> None:
    pipe: Any = engine.stdin
    for number in itertools.count():
        with limited(limit, BEFORE, "the machine before this one sends nothing"):
            size = int.from_bytes(exactly(source, 4), "big")
            piece = exactly(source, size) if size <= LARGEST else b""
            given = exactly(source, _SEAL) if size <= LARGEST else b""
        if not hmac.compare_digest(given, seal(secret, number, piece)):
            raise Fault(BEFORE, "what came from the machine before this one is not what hvdctl has sent")
        if onward:
            with limited(limit, AFTER, "the next machine takes nothing"):
                onward.sendall(sealed(secret, number, piece))
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
