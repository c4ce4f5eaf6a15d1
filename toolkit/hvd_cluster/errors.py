"""What can go wrong beyond a wrong argument, which is a ValueError or TypeError as everywhere in Python.

ClusterError        the cluster, or a run on it
└── RankError       one rank of a run: which, where, and its own traceback
"""

from __future__ import annotations


class ClusterError(RuntimeError):
    """What went wrong, and what to do about it."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the words alone, since the frames of this package are no help."""
        return [f"{type(self).__name__}: {self}"]


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
