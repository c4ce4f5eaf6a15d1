"""The cost model's parameters from what was measured: allreduces first, then a few training points. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvdctl.bench import catalogue, devices
from hvdctl.bench.costmodel import DEFAULTS, Layout, Parameters, Schedule, crowding, simulate
from hvdctl.bench.leastsquares import solve
from hvdctl.errors import UsageError

Record = Mapping[str, Any]

EPS_BOUNDS = (-0.05, 0.5)
PHI_BOUNDS = (0.0, 1.0)
# Before any point is seen: the defaults, and how far they may be off. Few points then move only what they tell about.
_PRIOR = {"eps": (DEFAULTS.eps, 0.15), "phi": (DEFAULTS.phi, 0.3)}
# No measurement is better known than this.
_NOISE = 0.02
_NEEDED = ("model", "batch", "nodes", "slots", "ranks", "images_per_s")
# An asked rate above this share of what the CPUs carry says nothing about the link.
_CLEAR_OF_CPU = 0.8


@dataclass(frozen=True)
class Case:
    """A measured point with all that the model needs; `baseline` is the same work on one rank, in images/s."""

    record: Record
    schedule: Schedule
    t1: float
    layout: Layout
    crowd: float
    baseline: float | None

    @property
    def key(self) -> str:
        return str(self.record.get("key", ""))

    @property
    def measured(self) -> float:
        """Seconds of a step."""
        return _seconds(self.record)

    def parameters(self, given: Parameters) -> Parameters:
        """With the point's own settings, on its own clock."""
        own = given
        if self.record.get("fusion_mb") is not None:
            own = replace(own, fusion_bytes=round(self.record["fusion_mb"] * 2**20))
        if self.record.get("cycle_ms") is not None:
            own = replace(own, cycle_s=self.record["cycle_ms"] / 1000)
        return own.dilated(self.record.get("dilation") or 1.0)

    def seconds(self, given: Parameters) -> float:
        own = self.parameters(given)
        launcher = self.record.get("launcher")
        return simulate(self.schedule, self.t1, self.layout, own, launcher=launcher, crowd=self.crowd).seconds

    @property
    def weight(self) -> float:
        """Communication against compute: seconds on the bare link for each second of a step."""
        if self.layout.nodes == 1 or not self.layout.bits:
            return 0.0
        return 8 * sum(size for _, size in self.schedule) / self.layout.bits / self.t1


def fit(records: Sequence[Record], *, launcher: str | None = None, points: Collection[str] | None = None) -> Parameters:
    """Parameters for one launcher (the one most points have) from its allreduces and its points.

    `points` are the keys that eps and phi may be fitted to; all where it is None. What was not measured keeps its
    default and is named in `notes`.
    """
    launcher = launcher or main_launcher(records)
    found = _allreduces(records, launcher)
    usable = [
        case
        for case in cases(records)
        if case.layout.ranks > 1 and case.record.get("launcher") == launcher and (points is None or case.key in points)
    ]
    found = _overlap(usable, found)
    bench = next((one for one in records if one.get("kind") == "bench"), {})
    measured = [int(one["ranks"]) for one in records if one.get("kind") == "allreduce" and one.get("rows")]
    told = [f"bench {bench.get('id', '?')}", launcher or "no launcher"]
    rings = sum(len(one["rows"]) for one in _rings(records, launcher))
    told += [f"{rings} allreduces", f"{len(usable)} point{'s' * (len(usable) != 1)}"]
    return replace(
        found,
        fitted=bool(rings or usable),
        source=", ".join(told) if rings or usable else DEFAULTS.source,
        launcher=launcher,
        shared=bool(rings or usable) and _one_machine(bench),
        max_ranks=max([1, *measured, *(case.layout.ranks for case in usable)]),
        points=tuple(case.key for case in usable),
    )


def few(records: Sequence[Record], launcher: str | None = None) -> list[str]:
    """At most three points to fit to, so that the others remain a test.

    Of those with the most ranks: the one with the most and the one with the least communication for its compute.
    Of those with the fewest ranks (but more than one): the one in the middle.
    """
    launcher = launcher or main_launcher(records)
    known = [one for one in cases(records) if one.layout.ranks > 1 and one.record.get("launcher") == launcher]
    if not known:
        return []
    most, fewest = (edge(one.layout.ranks for one in known) for edge in (max, min))
    large, small = (
        sorted((one for one in known if one.layout.ranks == ranks), key=lambda one: (one.weight, one.key))
        for ranks in (most, fewest)
    )
    return list(dict.fromkeys([large[-1].key, large[0].key, small[len(small) // 2].key]))


def main_launcher(records: Sequence[Record]) -> str | None:
    """The launcher that most points were measured with, else that of an allreduce."""
    used = [one.get("launcher") for one in records if one.get("kind") == "point" and one.get("status") == "ok"]
    used = used or [one.get("launcher") for one in records if one.get("kind") == "allreduce"]
    return max(sorted({one for one in used if one}), key=used.count, default=None)


def cases(records: Sequence[Record]) -> list[Case]:
    """Every point that was measured and that the model can speak of; the last one of each key."""
    last = {str(one.get("key")): one for one in records if one.get("kind") == "point"}
    measured = [one for one in last.values() if one.get("status") == "ok" and all(one.get(name) for name in _NEEDED)]
    bench = next((one for one in records if one.get("kind") == "bench"), {})
    alone = _alone(measured)
    found = []
    for point in measured:
        t1 = _step_alone(point, int(point["batch"]), alone)
        if point.get("model") not in catalogue.load() or t1 is None:
            continue
        dilation = point.get("dilation") or 1.0
        bits = point["link_bits"] * dilation if point.get("link_bits") else point.get("net")
        shared = _one_machine(bench)
        layout = Layout(int(point["nodes"]), int(point["slots"]), bits, shared)
        cores = (bench.get("machine") or {}).get("cores") if shared and point.get("device") == "real" else None
        whole = int(point["batch"]) * (layout.ranks if point.get("scaling") == "strong" else 1)
        base = _step_alone(point, whole, alone)
        schedule = catalogue.get(point["model"]).schedule()
        # Nodes with CPUs of their own don't take each other's.
        own = ((bench.get("cluster") or {}).get("spec") or {}).get("cpus")
        ranks, cpus = (layout.slots, own) if own else (layout.ranks, cores)
        crowd = crowding(ranks, point.get("threads"), cpus)
        found.append(Case(point, schedule, t1, layout, crowd, whole / base if base else None))
    return found


def _seconds(point: Record) -> float:
    return int(point["ranks"]) * int(point["batch"]) / float(point["images_per_s"])


def _one_machine(bench: Record) -> bool:
    cluster = bench.get("cluster") or {}
    return bool(cluster.get("one_machine", (cluster.get("spec") or {}).get("provider", "local") == "local"))


def _identity(point: Record) -> tuple[object, ...]:
    return tuple(point.get(name) for name in ("model", "device", "launcher", "threads", "data"))


def _alone(measured: Sequence[Record]) -> dict[tuple[object, ...], dict[int, float]]:
    """Measured steps of one rank alone: seconds by batch, for all that is compared with it."""
    found: dict[tuple[object, ...], dict[int, float]] = {}
    for point in measured:
        if point.get("ranks") == 1:
            found.setdefault(_identity(point), {})[int(point["batch"])] = _seconds(point)
    return found


def _step_alone(point: Record, batch: int, alone: Mapping[tuple[object, ...], Mapping[int, float]]) -> float | None:
    """A step of one rank with this batch: measured, else published for an emulated GPU, else from other batches."""
    known = alone.get(_identity(point), {})
    if batch in known:
        return known[batch]
    _, _, gpu = str(point.get("device")).partition(":")
    if gpu:
        try:
            return devices.step_seconds(gpu, str(point.get("model")), batch).seconds
        except UsageError:
            return None
    return devices.interpolate(known, batch)[0] if known else None


def _rings(records: Sequence[Record], launcher: str | None) -> list[Record]:
    """The launcher's allreduces, else those of any."""
    known = [one for one in records if one.get("kind") == "allreduce" and one.get("rows") and one.get("ranks", 1) > 1]
    return [one for one in known if one.get("launcher") == launcher] or known


def _allreduces(records: Sequence[Record], launcher: str | None) -> Parameters:
    """eta, alpha, start_s and, from links that were not shaped, cpu_bits and local_bits.

    The time of an allreduce is linear in start_s, alpha, 1/eta, 1/cpu_bits and 1/local_bits: least squares on the
    relative error, none below zero, rows that are far off counting less.
    """
    rings = _rings(records, launcher)
    notes: list[str] = []
    if not rings:
        return replace(DEFAULTS, notes=("no allreduce was measured: eta and alpha are defaults",))
    rows = _rows(rings)
    open_links = [row for row in rows if row.column == "cpu"]
    shaped = [row for row in rows if row.column == "eta"]
    if open_links and shaped:
        ceiling = max(row.factors["cpu"] / row.seconds for row in open_links)
        clear = [row for row in shaped if row.bits * row.ranks < _CLEAR_OF_CPU * ceiling]
        if len(clear) < len(shaped):
            notes.append("links shaped to more than the CPUs carry were left out")
        rows = [row for row in rows if row.column != "eta" or row in clear]
    several = len({row.ranks for row in rows}) > 1
    present = {row.column for row in rows}
    names = [*(("start",) if several else ()), "alpha", *sorted(present)]
    # With one number of ranks a cost of each allreduce looks like one of each step of the ring: it is Horovod's cycle.
    start = 0.0 if several else min(DEFAULTS.cycle_s, 0.9 * min(row.seconds for row in rows))
    values, errors = _solve([replace(row, seconds=row.seconds - start) for row in rows], names)
    told: dict[str, float] = {"alpha": values["alpha"], "start_s": values.get("start", start)}
    known = {"alpha": errors["alpha"], "start_s": errors.get("start", start / 2)}
    for name, attribute in (("eta", "eta"), ("cpu", "cpu_bits"), ("local", "local_bits")):
        if values.get(name):
            told[attribute] = 1 / values[name]
            known[attribute] = errors[name] / values[name] ** 2
    if "eta" not in told:
        known["eta"] = DEFAULTS.errors["eta"]
        notes.append("no allreduce over a shaped link: eta is the default")
    return replace(DEFAULTS, **told, errors={**DEFAULTS.errors, **known}, notes=tuple(notes))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Row:
    """One allreduce: its time, and which of the unknowns its bytes belong to."""

    seconds: float
    ranks: int
    column: str
    bits: float
    factors: Mapping[str, float]


def _rows(rings: Sequence[Record]) -> list[_Row]:
    found = []
    for ring in rings:
        ranks, net = int(ring["ranks"]), ring.get("net")
        column = "local" if ring.get("nodes") == 1 else "eta" if net else "cpu"
        # What the bytes cost: over the link's rate; over a share of the CPUs; over the machine's own memory.
        divisor = float(net or 1) if column == "eta" else 1 / ranks if column == "cpu" else 1.0
        for row in ring["rows"]:
            seconds = float(row.get("time_s") or 0)
            if seconds <= 0 or not row.get("bytes"):
                continue
            wire = 8 * 2 * (ranks - 1) / ranks * row["bytes"] / divisor
            factors = {"start": 1.0, "alpha": 2.0 * (ranks - 1), column: wire}
            found.append(_Row(seconds, ranks, column, float(net or 0), factors))
    return found


def _solve(rows: Sequence[_Row], names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    values, errors = solve([[row.factors.get(name, 0.0) / row.seconds for name in names] for row in rows])
    return dict(zip(names, values, strict=True)), dict(zip(names, errors, strict=True))


def _overlap(usable: Sequence[Case], found: Parameters) -> Parameters:
    """eps and phi that bring the points' steps nearest, starting from what one would guess without them."""
    if not usable:
        note = "no point of several ranks was measured: eps and phi are defaults"
        return replace(found, notes=(*found.notes, note))

    def off(eps: float, phi: float) -> list[float]:
        tried = replace(found, eps=eps, phi=phi)
        return [math.log(case.seconds(tried) / case.measured) for case in usable]

    def cost(eps: float, phi: float) -> float:
        away = sum(((x - centre) / wide) ** 2 for x, (centre, wide) in zip((eps, phi), _PRIOR.values(), strict=True))
        return sum(one**2 for one in off(eps, phi)) / _NOISE**2 + away

    eps, phi = _lowest(cost)
    left = off(eps, phi)
    spread = math.sqrt(sum(one**2 for one in left) / max(1, len(left) - 2))
    noise = max(_NOISE, spread)
    slopes = [_slope(lambda x: off(x, phi), eps, EPS_BOUNDS), _slope(lambda x: off(eps, x), phi, PHI_BOUNDS)]
    known = {
        name: 1 / math.sqrt(sum(one**2 for one in slope) / noise**2 + 1 / _PRIOR[name][1] ** 2)
        for name, slope in zip(_PRIOR, slopes, strict=True)
    }
    return replace(found, eps=eps, phi=phi, spread=spread, errors={**found.errors, **known})


def _lowest(cost: Callable[[float, float], float]) -> tuple[float, float]:
    """Where the cost is lowest within the bounds: a grid that narrows around the best so far."""
    wide, deep = EPS_BOUNDS[1] - EPS_BOUNDS[0], PHI_BOUNDS[1] - PHI_BOUNDS[0]
    eps, phi = sum(EPS_BOUNDS) / 2, sum(PHI_BOUNDS) / 2
    for _ in range(12):
        tried = {
            (
                min(max(eps + i * wide / 4, EPS_BOUNDS[0]), EPS_BOUNDS[1]),
                min(max(phi + j * deep / 4, PHI_BOUNDS[0]), PHI_BOUNDS[1]),
            )
            for i in range(-2, 3)
            for j in range(-2, 3)
        }
        eps, phi = min(sorted(tried), key=lambda one: cost(*one))
        wide, deep = wide / 2, deep / 2
    return eps, phi


def _slope(of: Callable[[float], list[float]], at: float, bounds: tuple[float, float]) -> list[float]:
    low, high = max(bounds[0], at - 0.02), min(bounds[1], at + 0.02)
    return [(b - a) / (high - low) for a, b in zip(of(low), of(high), strict=True)]
