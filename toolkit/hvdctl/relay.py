"""One link of the line that an image is passed along. Runs on a machine, with nothing but Python and an engine there.

The first line of stdin says what to do: {"listen": address or null, "word": ..., "next": {address, port, word} or
null}. With an address it prints the port that it listens on and takes the stream from there, else from stdin. Every
piece goes to `docker load` and to the next machine.
"""

from __future__ import annotations

import hmac
import json
import socket
import subprocess
import sys
from typing import Any

PATIENCE = 60
PIECE = 1 << 18


def main() -> int:
    task = json.loads(sys.stdin.buffer.readline())
    source: Any = taken(task["listen"], task["word"]) if task["listen"] else sys.stdin.buffer
    onward = passed_to(task["next"]) if task["next"] else None
    engine = subprocess.Popen(["docker", "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    pipe: Any = engine.stdin
    try:
        while piece := source.read1(PIECE):
            if onward:
                onward.sendall(piece)
            pipe.write(piece)
        pipe.close()
    except BrokenPipeError:
        pass  # the engine, or the next machine, says why
    if onward:
        onward.close()
    return engine.wait()


def taken(address: str, word: str) -> Any:
    """The stream from the machine before this one."""
    with socket.create_server((address, 0)) as door:
        door.settimeout(PATIENCE)
        print(door.getsockname()[1], flush=True)  # noqa: T201 - the answer
        link, _ = door.accept()
    source = link.makefile("rb")
    if not hmac.compare_digest(source.readline().strip().decode(), word):
        sys.exit("the one that connected does not know the word")
    return source


def passed_to(place: dict[str, Any]) -> socket.socket:
    link = socket.create_connection((place["address"], place["port"]), timeout=PATIENCE)
    link.settimeout(None)
    link.sendall(place["word"].encode() + b"\n")
    return link


sys.exit(main())
