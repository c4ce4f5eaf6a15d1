"""The progress display: phases of one or several threads, live in a terminal or as plain lines in a log.

Set-up shows it before any package is installed, so it needs the standard library alone.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from hvdctl.progress import Step, Stopped

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
# How often a long phase prints where it is when no terminal shows it live.
_PLAIN_EVERY = 20.0
_TICK = 0.2


class Board:
    """Writes all progress to stderr."""

    def __init__(self, *, verbose: bool = False, live: bool | None = None) -> None:
        self.verbose = verbose
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb" if live is None else live
        self._lock = threading.RLock()
        self._running: list[_Phase] = []
        self._look: Callable[[], str] | None = None
        self._drawn = 0
        self._ticking = False
        self._said = time.monotonic()

    @contextmanager
    def phase(self, title: str) -> Iterator[Step]:
        shown = _Phase(self, title)
        self._begin(shown)
        try:
            yield shown
        except BaseException as error:
            self._end(shown, "stopped" if isinstance(error, Stopped) else "failed")
            raise
        self._end(shown, "done")

    def outlook(self, look: Callable[[], str] | None) -> None:
        with self._lock:
            self._look = look
            self._draw()

    def write(self, text: str, stream: TextIO | None = None) -> None:
        """Print a line that stays, above what is live."""
        with self._lock:
            self._erase()
            out = stream or sys.stderr
            out.write(text + "\n")
            out.flush()
            self._draw()

    def changed(self, phase: _Phase) -> None:
        """A phase has a new detail."""
        now = time.monotonic()
        if self.verbose:
            self.write(f"  {phase.detail}" if self.live else f"{phase.title}: {phase.detail} ({phase.elapsed})")
        elif not self.live and now - phase.said > _PLAIN_EVERY:
            phase.said = now
            self.write(f"{phase.title}: {phase.detail} ({phase.elapsed})")
            self._say_outlook(now)

    def _begin(self, phase: _Phase) -> None:
        with self._lock:
            self._running.append(phase)
            if self.live and not self._ticking:
                self._ticking = True
                threading.Thread(target=self._tick, daemon=True).start()
        if not self.live:
            self.write(f"{phase.title} ...")

    def _end(self, phase: _Phase, how: str) -> None:
        with self._lock:
            phase.over = True
            self._running.remove(phase)
            if not self.live:
                self.write(f"{phase.title}: {how} {'after' if how == 'stopped' else 'in'} {phase.elapsed}")
                return
            mark, colour = {"done": ("✓", 32), "failed": ("✗", 31), "stopped": ("-", 33)}[how]
            detail = f"  {dim(phase.detail)}" if how == "failed" and phase.detail else ""
            self.write(f"{painted(mark, colour)} {phase.title}  {dim(phase.elapsed)}{detail}")

    def _say_outlook(self, now: float) -> None:
        if self._look is not None and now - self._said > _PLAIN_EVERY:
            self._said = now
            self.write(self._look())

    def _tick(self) -> None:
        while True:
            with self._lock:
                if not self._running:
                    self._ticking = False
                    return
                self._draw()
            time.sleep(_TICK)

    def _draw(self) -> None:
        if not self.live or not self._running:
            return
        columns, rows = shutil.get_terminal_size()
        spinner = _SPINNER[int(time.monotonic() / _TICK) % len(_SPINNER)]
        # The last line of the screen is the cursor's.
        room = max(1, rows - 2 - (self._look is not None))
        lines = [phase.line(spinner, columns) for phase in self._running[:room]]
        if self._look is not None:
            lines.append(dim(fitted(self._look(), columns)))
        self._erase()
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}A\r\x1b[J")
            self._drawn = 0


class _Phase:
    """One line of the board."""

    def __init__(self, board: Board, title: str) -> None:
        self.title = title
        self.detail = ""
        self.over = False
        self.started = self.said = time.monotonic()
        self._board = board

    @property
    def elapsed(self) -> str:
        return seconds(time.monotonic() - self.started)

    def update(self, detail: str) -> None:
        # A thread that was given up may still report.
        if not self.over:
            self.detail = printable(detail)
            self._board.changed(self)

    def note(self, text: str) -> None:
        if not self.over:
            text = printable(text)
            self._board.write(f"  {text}" if self._board.live else f"{self.title}: {text}")

    def line(self, spinner: str, columns: int) -> str:
        head = f"{spinner} {self.title}  {self.elapsed}  "
        detail = fitted(self.detail, columns - len(head))
        return f"{painted(spinner, 36)}{head[len(spinner) :].rstrip()}  {dim(detail)}" if detail else head.rstrip()


def seconds(value: float) -> str:
    """3.2 s, 4 min 10 s."""
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {int(value % 60)} s"


def fitted(text: str, columns: int) -> str:
    """As much of the text as fits into one line with room for the cursor."""
    room = columns - 1
    return text if len(text) <= room else text[: max(0, room - 1)] + "…" if room > 0 else ""


def painted(text: str, colour: int) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[{colour}m{text}\x1b[0m"


def dim(text: str) -> str:
    return painted(text, 2) if text else ""


def printable(text: str) -> str:
    """The text without what would move the cursor or paint."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f-\x9f]", "", text)
