"""What the network gives by itself: allreduce by size, and the bandwidth of every pair of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdctl import links
from hvdctl.bench.session import Talk
from hvdctl.cluster import Cluster
from hvdctl.errors import Interrupted

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 25 << 20)
PROBE = (1 << 20, 16 << 20)
_SIZE_S = 1.0
_LIMIT_S = 15.0

Record = dict[str, Any]


def allreduce(
    session: Talk, launcher: str, net: int | None, say: Callable[[str], None], sizes: Sequence[int] = SIZES
) -> Record:
    """Time and bandwidth of an allreduce by size, on links that really have this rate."""

    def listen(told: Record) -> None:
        say(f"allreduce of {shown_size(told['bytes'])}: {links.shown(told['bus_bits'])}")

    asked = {"op": "allreduce", "sizes": list(sizes), "seconds": _SIZE_S, "limit": _LIMIT_S}
    found = session.ask(asked, listen)
    layout = session.layout
    return {
        "kind": "allreduce",
        "nodes": layout.nodes,
        "slots": layout.slots,
        "ranks": layout.ranks,
        "net": net,
        "launcher": launcher,
        "rows": found["rows"],
    }


def pairs(
    cluster: Cluster,
    net: int | None,
    say: Callable[[str], None],
    count: int | None = None,
    pressed: Callable[[], int] = lambda: 0,
) -> Record:
    """The bandwidth from every node to every other one.

    Pairs that share no node are measured at once; one that falls short then is measured again alone, since on nodes
    that share a CPU it is the others that slow it down. Where links have no limit, each is measured alone.
    """
    names = [node.name for node in cluster.nodes()][:count]
    found: list[links.Measured] = []
    for turn in rounds(names) if net is not None else [[pair] for pair in _all(names)]:
        if pressed():
            raise Interrupted("interrupted")
        say(f"{len(found)} of {len(names) * (len(names) - 1)} pairs of nodes")
        with ThreadPoolExecutor(len(turn)) as pool:
            measured = list(pool.map(lambda pair: links.measure(cluster, pair[0], pair[1], net), turn))
        found += [links.measure(cluster, m.source, m.target, net) if m.short else m for m in measured]
    found.sort(key=lambda one: (one.source, one.target))
    return {
        "kind": "links",
        "net": net,
        "pairs": [{"source": m.source, "target": m.target, "bits": m.bits} for m in found],
    }


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Every ordered pair once, in rounds in which no node stands twice: the circle method of tournaments."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    turns = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        met = [(a, b) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True) if a and b]
        turns += [met, [(b, a) for a, b in met]]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return turns


def slowest(record: Record) -> Record | None:
    """The pair with the least bandwidth."""
    return min(record["pairs"], key=lambda pair: float(pair["bits"]), default=None)


def shown_size(size: float) -> str:
    """4 KiB, 25 MiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.0f} B"


def _all(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for a in names for b in names if a != b]
