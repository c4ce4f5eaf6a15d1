"""What can go wrong.

ClusterError        the cluster, or a run on it
└── RankError       one rank of a run: which, where, and its own traceback
WrongValue          an argument that can't be meant so: a ValueError, as everywhere in Python
WrongType           one of a wrong type: a TypeError
"""

from __future__ import annotations


class _Plain(Exception):
    """Shown in a notebook by its words alone, since the frames of this package are no help."""

    def _render_traceback_(self) -> list[str]:
        return [f"{self._told_as()}: {self}"]

    def _told_as(self) -> str:
        return type(self).__name__


class ClusterError(_Plain, RuntimeError):
    """What went wrong, and what to do about it."""


class WrongValue(_Plain, ValueError):
    """What was given, and what can be."""

    def _told_as(self) -> str:
        return "ValueError"


class WrongType(_Plain, TypeError):
    """What was given, and what can be."""

    def _told_as(self) -> str:
        return "TypeError"


class RankError(ClusterError):
    """A rank failed. `rank`, `node` and `run` say which; `traceback` is its own, as text.

    Where the rank's exception could be brought here, it is the `__cause__`:

        try:
            hc.run(train)
        except hc.RankError as error:
            print(error.rank, error.node, repr(error.__cause__))
    """

    def __init__(self, message: str, *, rank: int, node: str, run: int | None = None, traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.node = node
        self.run = run
        self.traceback = traceback

    def __str__(self) -> str:
        told = f"rank {self.rank} on {self.node}: {self.args[0]}"
        return f"{told}\n\n{self.traceback.rstrip()}" if self.traceback else told
