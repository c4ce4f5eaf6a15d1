"""How long-running work reports what it does; a terminal, a log or nothing at all may listen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Stopped(Exception):
    """Ends a phase that was given up because another one failed."""


class Step(Protocol):
    """One phase under way."""

    def update(self, detail: str) -> None:
        """Replace the short text beside the phase, such as "7 of 10 nodes"."""

    def note(self, text: str) -> None:
        """Print a line that stays."""


class Progress(Protocol):
    @contextmanager
    def phase(self, title: str) -> Iterator[Step]:
        """Show the phase with its elapsed time until the block ends. Phases of several threads are shown together."""
        ...

    def outlook(self, look: Callable[[], str] | None) -> None:
        """Show a line about the whole beside the phases, such as "3 of 9 done"; None removes it."""


class Silent:
    """Progress for callers that want none."""

    @contextmanager
    def phase(self, title: str) -> Iterator[Step]:
        yield self

    def outlook(self, look: Callable[[], str] | None) -> None:
        pass

    def update(self, detail: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass
