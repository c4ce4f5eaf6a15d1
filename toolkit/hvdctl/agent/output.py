"""Bytes that processes write -> lines that people read."""

from __future__ import annotations

import re
from pathlib import Path

LIMIT = 65536

_LAUNCHER_TAG = re.compile(rb"^\[\d+(?:,\d+)?\]<(?:stdout|stderr|stddiag)>:")


class Lines:
    """Splits a stream into lines: valid UTF-8, of bounded length, a progress bar as its newest state."""

    def __init__(self) -> None:
        self._rest = b""
        self._shown: str | None = None

    def feed(self, data: bytes) -> list[str]:
        """The lines that this piece of the stream completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [text for line in whole if (text := self._finish(line)) is not None]
        if b"\r" in self._rest:
            # A bar repaints itself: its older states are of no use.
            self._rest = b"\r" + b"\r".join(self._rest.split(b"\r")[-2:])
        while len(self._rest) > LIMIT:
            lines.append(_text(self._rest[:LIMIT]))
            self._rest = self._rest[LIMIT:]
        return lines

    def bar(self) -> str | None:
        """The newest state of a progress bar that is not finished, where it was not handed out yet."""
        if b"\r" not in self._rest:
            return None
        state = _text(self._rest)
        if not state or state == self._shown:
            return None
        self._shown = state
        return state

    def close(self) -> list[str]:
        """The last line, where the stream ended without a newline."""
        rest, self._rest = self._rest, b""
        text = self._finish(rest) if rest else None
        return [text] if text else []

    def _finish(self, line: bytes) -> str | None:
        text, shown, self._shown = _text(line), self._shown, None
        return None if shown is not None and text == shown else text


def untagged(line: bytes) -> bytes:
    """The line without the tag that horovodrun or mpirun puts before it."""
    return _LAUNCHER_TAG.sub(b"", line, count=1)


def tail(path: Path, count: int = 15) -> list[str]:
    """The last lines of a log."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - LIMIT))
            data = stream.read()
    except OSError:
        return []
    splitter = Lines()
    return [*splitter.feed(data), *splitter.close()][-count:]


def _text(line: bytes) -> str:
    states = [state for state in line.split(b"\r") if state]
    return states[-1].decode(errors="replace") if states else ""
