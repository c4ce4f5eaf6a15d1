"""How long work tells what it is doing; the terminal, a log or nothing at all may listen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Step(Protocol):
    """One phase under way."""

    def update(self, detail: str) -> None:
        """Replace the short text beside the phase, such as "7 of 10 nodes"."""

    def note(self, text: str) -> None:
        """Say a line that stays."""


class Progress(Protocol):
    @contextmanager
    def phase(self, title: str) -> Iterator[Step]:
        """Show the phase with its elapsed time until the block ends."""
        ...


class Silent:
    """Progress for callers that want none."""

    @contextmanager
    def phase(self, title: str) -> Iterator[Step]:
        yield self

    def update(self, detail: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass
