"""`ask` and `hold`: requests to the program of a run, what it says until it has answered, and its end with us.

The program reads requests from the run's `inbox` and writes to its `outbox`, one JSON object a line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from . import store
from .store import AgentError

_POLL_S = 0.02
_STATE_EVERY = 20


def main(verb: str, argv: list[str]) -> int:
    """`ask ID < request.json` prints the lines that answer it; `hold ID` ends the program when its stdin ends."""
    if len(argv) != 1:
        raise AgentError(f"usage: {verb} ID")
    folder = store.find(argv[0])
    if verb == "hold":
        # Whoever started the run holds the other end: when it dies, however it dies, so does the connection.
        while sys.stdin.buffer.read(1 << 16):
            pass
        _append(folder, {"op": "end", "seq": 0})
        return 0
    request = store.request()
    if not isinstance(request.get("seq"), int):
        raise AgentError(f"seq is a whole number, not {request.get('seq')!r}")
    _append(folder, request)
    _relay(folder, request["seq"])
    return 0


def _append(folder: Path, request: dict[str, Any]) -> None:
    with (folder / "inbox").open("a", encoding="utf-8") as inbox:
        inbox.write(json.dumps(request) + "\n")


def _relay(folder: Path, seq: int) -> None:
    """Until the answer, or the end of the run, which is told as an event of its own."""
    offset, turn = 0, 0
    while True:
        # The state first: what is read after a final state is all there will ever be.
        ended = turn % _STATE_EVERY == 0 and store.load(folder)["state"] in (*store.FINAL, "lost")
        lines, offset = _lines(folder / "outbox", offset)
        for line in lines:
            told = json.loads(line)
            if told.get("seq") == seq:
                _say(told)
                if told["event"] in ("result", "error"):
                    return
        if ended:
            _say({"seq": seq, "event": "ended", "run": store.load(folder)})
            return
        turn += 1
        time.sleep(_POLL_S)


def _lines(file: Path, offset: int) -> tuple[list[bytes], int]:
    """The whole lines from the offset on."""
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return whole.splitlines(), offset + len(whole)


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
