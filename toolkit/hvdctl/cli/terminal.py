"""The one object that writes to the terminal: progress and errors on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdctl.board import Board, printable, seconds
from hvdctl.errors import UsageError

__all__ = ["Terminal", "complain", "counted", "seconds", "secret"]


class Terminal(Board):
    """Shows progress, and a result as text or, with --json, as one document."""

    def __init__(self, *, as_json: bool = False, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
        self.as_json = as_json

    def result(self, data: object, render: Callable[[], None]) -> None:
        """The outcome: the data as JSON where that was asked for, else what `render` prints."""
        if self.as_json:
            sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")
        else:
            render()

    def line(self, text: str = "") -> None:
        self.write(text, sys.stdout)

    def say(self, text: str) -> None:
        """A remark beside the result."""
        self.write(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        cells = [[printable(str(cell)) for cell in row] for row in rows]  # some of it was told by nodes
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
    first, *more = map(printable, message.split("\n"))
    lines = [f"{red}error:{plain} {first}", *more]
    lines += [f"  → {hint}"] if hint else []
    lines += [f"  log: {log}"] if log else []
    sys.stderr.write("\n".join(lines) + "\n")


def secret(prompt: str) -> str:
    """What the user types, which is not shown."""
    import getpass

    return getpass.getpass(f"{prompt}: ", stream=sys.stderr)


def counted(number: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
