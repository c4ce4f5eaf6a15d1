"""`follow`: a run's output as it comes, until the run has ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from . import store
from .store import AgentError

_POLL_S = 0.05
_STATE_EVERY = 4
_CHUNK = 1 << 20


def main(argv: list[str]) -> int:
    """`follow ID [--from BYTES] [--rank N]`"""
    options = {"--from": "0", "--rank": ""}
    words = list(argv)
    if len(words) % 2 != 1 or any(name not in options for name in words[1::2]):
        raise AgentError("usage: follow ID [--from BYTES] [--rank N]")
    options |= dict(zip(words[1::2], words[2::2], strict=True))
    if not options["--from"].isdecimal() or not (options["--rank"] or "0").isdecimal():
        raise AgentError("--from and --rank take whole numbers")
    folder = store.find(words[0])
    if options["--rank"] and int(options["--rank"]) >= (np := store.load(folder)["np"]):
        raise AgentError(f"run {words[0]} has ranks 0 to {np - 1}, not {options['--rank']}")
    name = f"rank-{int(options['--rank'])}.log" if options["--rank"] else "output.log"
    follow(folder, name, int(options["--from"]))
    return 0


def follow(folder: Path, name: str, offset: int) -> None:
    """Write the log to stdout from the offset on; returns when the run is over and all of it was written."""
    turn = 0
    while True:
        # The state first: what is read after a final state is all there will ever be.
        over = turn % _STATE_EVERY == 0 and store.load(folder)["state"] in (*store.FINAL, "lost")
        offset = _copy(folder / name, offset)
        if over:
            return
        turn += 1
        time.sleep(_POLL_S)


def _copy(path: Path, offset: int) -> int:
    # Opened anew each time: that is when an NFS client asks the server what is new.
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            while data := stream.read(_CHUNK):
                sys.stdout.buffer.write(data)
                offset += len(data)
            sys.stdout.buffer.flush()
    except FileNotFoundError:
        return offset
    return offset
