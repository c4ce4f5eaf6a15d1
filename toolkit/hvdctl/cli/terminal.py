"""The one object that writes to the terminal: progress and errors on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hvdctl.errors import UsageError
from hvdctl.progress import Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

# How often a long phase says where it is when nobody watches a terminal.
_PLAIN_EVERY = 20.0


class Terminal:
    """Shows progress, and a result as text or, with --json, as one document."""

    def __init__(self, *, as_json: bool = False, verbose: bool = False) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.live = sys.stderr.isatty()

    @contextmanager
    def phase(self, title: str) -> Iterator[Step]:
        shown: _Live | _Plain = _Live(title, self.verbose) if self.live else _Plain(title, self.verbose)
        with shown:
            yield shown

    def result(self, data: object, render: Callable[[], None]) -> None:
        """The outcome: the data as JSON where that was asked for, else what `render` prints."""
        if self.as_json:
            sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")
        else:
            render()

    def line(self, text: str = "") -> None:
        sys.stdout.write(text + "\n")

    def say(self, text: str) -> None:
        """A remark beside the result."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
        for row in ([name.upper() for name in columns], *cells):
            padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.line(padded.rstrip())

    def ask(self, question: str, *, yes: bool) -> None:
        """Return when the user agrees; raise where nobody can be asked."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise UsageError(f"{question} Nobody can be asked here.", hint="add -y to agree")
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise UsageError("nothing was changed")


def complain(message: str, hint: str = "", log: Path | None = None) -> None:
    """An error, what to do, and where the whole story is."""
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    lines = [f"{red}error:{plain} {message}"]
    lines += [f"  → {hint}"] if hint else []
    lines += [f"  log: {log}"] if log else []
    sys.stderr.write("\n".join(lines) + "\n")


def secret(prompt: str) -> str:
    """What the user types, which is not shown."""
    import getpass

    return getpass.getpass(f"{prompt}: ", stream=sys.stderr)


def seconds(value: float) -> str:
    """3.2 s, 4 min 10 s."""
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {int(value % 60)} s"


def counted(number: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


class _Plain:
    """Whole lines, for logs."""

    def __init__(self, title: str, verbose: bool) -> None:
        self.title = title
        self.verbose = verbose
        self.detail = ""
        self.started = self.told = time.monotonic()

    def __enter__(self) -> _Plain:
        self._write(f"{self.title} ...")
        return self

    def update(self, detail: str) -> None:
        self.detail = detail
        now = time.monotonic()
        if self.verbose or now - self.told > _PLAIN_EVERY:
            self.told = now
            self._write(f"{self.title}: {detail} ({seconds(now - self.started)})")

    def note(self, text: str) -> None:
        self._write(f"{self.title}: {text}")

    def __exit__(self, kind: object, *_: object) -> None:
        took = seconds(time.monotonic() - self.started)
        self._write(f"{self.title}: {'done' if kind is None else 'failed'} in {took}")

    def _write(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class _Live:
    """A spinner with the elapsed time, then a line that stays."""

    def __init__(self, title: str, verbose: bool) -> None:
        from rich.console import Console

        self.title = title
        self.verbose = verbose
        self.detail = ""
        self.started = time.monotonic()
        self.console: Console = Console(stderr=True, highlight=False)
        self.status: Status = self.console.status(self._text())
        self.ended = threading.Event()

    def __enter__(self) -> _Live:
        self.status.start()
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def update(self, detail: str) -> None:
        self.detail = detail
        if self.verbose:
            self.note(detail)

    def note(self, text: str) -> None:
        self.console.print(f"  {_plain(text)}")

    def __exit__(self, kind: object, *_: object) -> None:
        self.ended.set()
        self.status.stop()
        mark = "[green]✓[/green]" if kind is None else "[red]✗[/red]"
        detail = f"  [dim]{_plain(self.detail)}[/dim]" if kind is not None and self.detail else ""
        self.console.print(f"{mark} {self.title}  [dim]{seconds(time.monotonic() - self.started)}[/dim]{detail}")

    def _tick(self) -> None:
        while not self.ended.wait(0.2):
            self.status.update(self._text())

    def _text(self) -> str:
        room = max(20, (self.console.width if hasattr(self, "console") else 80) - len(self.title) - 20)
        detail = _plain(self.detail[:room])
        return f"{self.title}  [dim]{seconds(time.monotonic() - self.started)}  {detail}[/dim]"


def _plain(text: str) -> str:
    """Text in which rich sees no markup."""
    from rich.markup import escape

    return escape(text)
