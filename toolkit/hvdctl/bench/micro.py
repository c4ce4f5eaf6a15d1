"""What the network gives by itself: allreduce by size, and the bandwidth of every pair of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdctl import links, process, providers
from hvdctl.bench import probes
from hvdctl.bench.probes import LIMIT_S, SIZE_S, SIZES
from hvdctl.bench.session import Talk
from hvdctl.cluster import Cluster
from hvdctl.errors import Interrupted

PROBE = (1 << 20, 16 << 20)
_CONFIRMATIONS = 3

Record = dict[str, Any]


def allreduce(
    session: Talk, launcher: str, net: int | None, say: Callable[[str], None], sizes: Sequence[int] = SIZES
) -> Record:
    """Time and bandwidth of an allreduce by size, on links that really have this rate."""

    def listen(told: Record) -> None:
        say(f"allreduce of {shown_size(told['bytes'])}: {links.shown(told['bus_bits'])}")

    asked = {"op": "allreduce", "sizes": list(sizes), "seconds": SIZE_S, "limit": LIMIT_S}
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
    """The bandwidth from every node to every other one; of many nodes, a sample.

    Pairs that share no node are measured at once. One that falls short of its rate then is measured again alone, since
    on nodes that share a CPU it is the others that slow it down. Without a rate nothing tells that, so pairs on such
    nodes are measured one by one. The slowest pair of a sample, or of pairs that were measured at once, is confirmed.
    """
    names = [node.name for node in cluster.nodes()][:count]
    chosen = probes.planned(names, net, shared=providers.here(cluster.spec()))
    found: list[links.Measured] = []

    def alone(source: str, target: str) -> links.Measured:
        if pressed():
            raise Interrupted("interrupted")
        return links.measure(cluster, source, target, net)

    some = f", a sample of {chosen.of}" if chosen.sampled else ""
    for turn in chosen.rounds:
        if pressed():
            raise Interrupted("interrupted")
        say(f"{len(found)} of {chosen.count} pairs of nodes{some}")
        with ThreadPoolExecutor(min(len(turn), process.AT_ONCE)) as pool:
            measured = list(pool.map(lambda pair: links.measure(cluster, pair[0], pair[1], net), turn))
        found += [alone(m.source, m.target) if m.short else m for m in measured]
    if net is None and (chosen.sampled or chosen.together):
        _confirm(found, alone)
    found.sort(key=lambda one: (one.source, one.target))
    return {
        "kind": "links",
        "net": net,
        "pairs": [{"source": m.source, "target": m.target, "bits": m.bits} for m in found],
        **({"of": chosen.of} if chosen.sampled else {}),
        **({"together": True} if net is None and chosen.together else {}),
    }


def _confirm(found: list[links.Measured], alone: Callable[[str, str], links.Measured]) -> None:
    """Measure the slowest pair once more alone; then the one that is the slowest now, if the others were to blame."""
    confirmed: set[int] = set()
    for _ in range(_CONFIRMATIONS):
        worst = min(range(len(found)), key=lambda index: found[index].bits)
        if worst in confirmed:
            return
        confirmed.add(worst)
        found[worst] = alone(found[worst].source, found[worst].target)


def slowest(record: Record) -> Record | None:
    """The pair with the least bandwidth."""
    return min(record["pairs"], key=lambda pair: float(pair["bits"]), default=None)


def shown_size(size: float) -> str:
    """4 KiB, 25 MiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.0f} B"
