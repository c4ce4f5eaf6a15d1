"""The kernel's neighbour table, which all containers of a machine share: too many nodes fill it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvdctl import engine
from hvdctl.errors import UsageError

LIMIT = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
_KEY = "net.ipv4.neigh.default.gc_thresh"


@dataclass(frozen=True)
class Room:
    """The entries that so many nodes need, and the most that this kernel takes."""

    nodes: int
    limit: int

    @property
    def needed(self) -> int:
        """An entry in each node for every other node, and one for this machine."""
        return self.nodes * (self.nodes - 1) + self.nodes

    @property
    def enough(self) -> bool:
        return self.needed <= self.limit

    @property
    def hint(self) -> str:
        """The command that makes room; from gc_thresh2 on the kernel already drops entries, so it is raised too."""
        soft = 1 << (self.needed - 1).bit_length()
        return f"raise it: `sudo sysctl -w {_KEY}2={soft} {_KEY}3={2 * soft}`; or use fewer --nodes"

    def __str__(self) -> str:
        return f"{self.nodes} nodes need {self.needed} entries of the neighbour table, this kernel takes {self.limit}"


def room(nodes: int) -> Room | None:
    """What there is for so many containers; None if this kernel is not theirs, or does not say."""
    if not engine.url().startswith("unix://"):
        return None
    try:
        return Room(nodes, int(LIMIT.read_text()))
    except (OSError, ValueError):
        return None


def require(nodes: int) -> None:
    """Raise if so many nodes would overflow the table: connections between them then fail with "No route to host"."""
    found = room(nodes)
    if found and not found.enough:
        raise UsageError(
            f"nodes: {found} ({_KEY}3); with more, connections fail with 'No route to host'", hint=found.hint
        )
