"""How long a distributed training step takes: gradients that become ready one by one, and rings that reduce them.

Pure, without dependencies. docs/prediction.md says in words what is here in code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

# A step in which less than this is exposed communication is limited by compute.
COMPUTE_BOUND = 0.05
_BACKWARD = 2 / 3
# torch DDP's buckets; it has no cycle.
_DDP_BUCKET = 25 * 2**20
_NOT_FITTED = "not fitted: defaults"

Schedule = Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Parameters:
    """The cost model's numbers and how well they are known.

    `errors` are standard errors by field name, `spread` is the relative residual (rms) of the points that were fitted,
    `max_ranks` the most ranks that any measurement had, `shared` says that all its nodes were on one machine, `points`
    are the keys of those that eps and phi were fitted to.
    """

    eta: float = 0.9
    # What NCCL's tuning model takes for a step of a ring over the network (9.6 us, src/graph/tuning.cc, Ring/Simple).
    alpha: float = 9.6e-6
    start_s: float = 0.0
    eps: float = 0.11
    phi: float = 0.9
    cpu_bits: float | None = None
    local_bits: float | None = None
    fusion_bytes: int = 128 * 2**20
    cycle_s: float = 0.001
    fitted: bool = False
    source: str = _NOT_FITTED
    launcher: str | None = None
    spread: float = 0.0
    max_ranks: int = 1
    shared: bool = False
    points: tuple[str, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As results hold it, without its `kind`."""
        return asdict(self) | {"points": list(self.points), "notes": list(self.notes), "errors": dict(self.errors)}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Parameters:
        """From stored data, which may have more keys than this version knows, or fewer."""
        known = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        for name in ("points", "notes"):
            known[name] = tuple(known.get(name) or ())
        return cls(**known)

    def elsewhere(self) -> Parameters:
        """For nodes with machines of their own: what was one crowded machine's doing goes back to the defaults."""
        if not self.shared:
            return self
        known = {name: error for name, error in self.errors.items() if name in ("eta", "eps", "phi")}
        note = "the nodes measured share a machine: its latency and its CPUs' limit are not carried over to others"
        return replace(
            self,
            shared=False,
            alpha=min(self.alpha, DEFAULTS.alpha),
            start_s=min(self.start_s, DEFAULTS.cycle_s),
            cpu_bits=None,
            local_bits=None,
            errors={**known, "alpha": DEFAULTS.errors["alpha"]},
            notes=(*self.notes, note),
        )

    def dilated(self, factor: float) -> Parameters:
        """For points whose clock was slowed by this factor and whose times are already divided by it.

        Compute and links were slowed, latencies and CPUs were not.
        """
        if factor == 1:
            return self
        return replace(
            self,
            alpha=self.alpha / factor,
            start_s=self.start_s / factor,
            cycle_s=self.cycle_s / factor,
            cpu_bits=self.cpu_bits * factor if self.cpu_bits else None,
            local_bits=self.local_bits * factor if self.local_bits else None,
        )


# What one would guess without a measurement: the first model of the design, with standard errors to match.
DEFAULTS = Parameters(errors={"eta": 0.05, "alpha": 5e-6, "eps": 0.04, "phi": 0.1})


@dataclass(frozen=True)
class Layout:
    """Ranks, where they are, and the rate of each node's link (None: not limited).

    `shared`: all nodes are on one machine, whose CPUs carry the traffic of all ranks.
    """

    nodes: int
    slots: int
    bits: float | None
    shared: bool = False

    @property
    def ranks(self) -> int:
        return self.nodes * self.slots


@dataclass(frozen=True)
class Step:
    """Seconds of one step, its parts, and the resource that limits it."""

    seconds: float
    compute: float
    exposed: float
    limit: str
    allreduces: int


def simulate(
    schedule: Schedule,
    t1: float,
    layout: Layout,
    parameters: Parameters,
    *,
    launcher: str | None = None,
    crowd: float = 1,
) -> Step:
    """A step of a model with this schedule that takes one rank alone `t1` seconds.

    `crowd` is by how much compute is slower because ranks share cores.
    """
    if layout.ranks == 1:
        return Step(t1, t1, 0.0, "compute", 0)
    compute = t1 * (1 + parameters.eps) * crowd
    per_byte, binds = _per_byte(layout, parameters)
    latency = parameters.start_s + 2 * (layout.ranks - 1) * parameters.alpha
    ddp = launcher == "torch-ddp"
    end, count = _reduce(
        schedule,
        compute,
        latency,
        per_byte,
        parameters.phi,
        _DDP_BUCKET if ddp else parameters.fusion_bytes,
        0.0 if ddp else parameters.cycle_s,
    )
    seconds = max(compute, end)
    exposed = seconds - compute
    if exposed < COMPUTE_BOUND * seconds:
        limit = "cpu" if crowd > 1 else "compute"
    else:
        limit = "latency" if count * latency > per_byte * sum(size for _, size in schedule) else binds
    return Step(seconds, compute, exposed, limit, count)


def allreduce_seconds(size: int, layout: Layout, parameters: Parameters) -> float:
    """One allreduce of `size` bytes among all ranks, with nothing else under way."""
    if layout.ranks == 1:
        return 0.0
    per_byte, _ = _per_byte(layout, parameters)
    return parameters.start_s + 2 * (layout.ranks - 1) * parameters.alpha + size * per_byte


def closed_form(gradient_bytes: int, t1: float, layout: Layout, parameters: Parameters, buckets: int = 1) -> float:
    """Seconds of a step by the first model's formula, which knows nothing of when gradients are ready."""
    if layout.ranks == 1:
        return t1
    per_byte, _ = _per_byte(layout, parameters)
    steps = 2 * (layout.ranks - 1)
    communication = gradient_bytes * per_byte + buckets * (parameters.start_s + steps * parameters.alpha)
    return t1 * (1 + parameters.eps) + max(0.0, communication - parameters.phi * _BACKWARD * t1)


def crowding(ranks: int, threads: int | None, cores: int | None) -> float:
    """By how much compute slows when all ranks are on one machine with so many cores."""
    if not cores:
        return 1.0
    return max(1.0, ranks * min(threads or cores, cores) / cores)


def _per_byte(layout: Layout, parameters: Parameters) -> tuple[float, str]:
    """Seconds that a ring needs for each byte, and what limits it.

    A ring through nodes of several ranks crosses each node's link once in each direction, so its rate is the link's.
    """
    limits: list[tuple[float, str]] = []
    if layout.nodes == 1:
        if parameters.local_bits:
            limits.append((parameters.local_bits, "link"))
    elif layout.bits:
        limits.append((parameters.eta * layout.bits, "link"))
    if layout.shared and parameters.cpu_bits:
        limits.append((parameters.cpu_bits / layout.ranks, "cpu"))
    if not limits:
        return 0.0, "latency"
    bits, binds = min(limits)
    return 8 * 2 * (layout.ranks - 1) / layout.ranks / bits, binds


def _reduce(
    schedule: Schedule, compute: float, latency: float, per_byte: float, phi: float, fusion: int, cycle: float
) -> tuple[float, int]:
    """When the last gradient is reduced, and in how many allreduces.

    The background thread takes all ready gradients, in order and up to the fusion threshold, once a cycle at most and
    one batch at a time. While the backward pass runs, transfers make progress at `phi` of their speed.
    """
    now, index, count, total = 0.0, 0, 0, len(schedule)
    while index < total:
        ready = schedule[index][0] * compute
        if ready > now:
            now = now + math.ceil((ready - now) / cycle) * cycle if cycle else ready
        begin, size = now, 0
        reach = begin / compute + 1e-12
        while index < total:
            at, more = schedule[index]
            if at > reach or (size and size + more > fusion):
                break
            size += more
            index += 1
        work = latency + size * per_byte
        if begin < compute and phi < 1:
            room = (compute - begin) * phi
            end = begin + work / phi if work < room else compute + work - room
        else:
            end = begin + work
        count += 1
        now = max(end, begin + cycle) if index < total else end
    return now, count
