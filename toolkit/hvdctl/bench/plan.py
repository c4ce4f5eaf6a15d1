"""What a bench is to measure: the sweep as asked, and the points that it is made of. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hvdctl import providers
from hvdctl.bench import catalogue, devices, probes
from hvdctl.cluster import Node, digest
from hvdctl.errors import UsageError
from hvdctl.spec import Spec, format_rate, parse_rate

REAL = "real"
# A bench's launcher, and what `run --launcher` calls it.
LAUNCHERS = {"horovod-gloo": "horovod", "horovod-mpi": "mpi", "torch-ddp": "torch"}
SCALINGS = ("weak", "strong")
MAX_DILATION = 1000
MAX_STEP_S = 300.0
# A CPU core's rate with the framework's convolutions, for the guess of how long a sweep takes.
_CORE_FLOPS = 2e10
_LAUNCH_S = 12.0
# How many steps, but at least how many seconds, the interval mostly takes to become small enough.
_ENOUGH = 6
_SHORT_S = 5.0
_OPEN_LINK = 10**9

ALLREDUCE, PAIRS = "allreduce", "links"

_LAYOUT = re.compile(r"(k|\d+)x(k|\d+)")


@dataclass(frozen=True, order=True)
class Layout:
    """Nodes, and ranks on each of them."""

    nodes: int
    slots: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.slots

    def __str__(self) -> str:
        return f"{self.nodes}x{self.slots}"


@dataclass(frozen=True)
class Point:
    """One measurement; `batch` is each rank's."""

    model: str
    batch: int
    layout: Layout
    net: int | None
    device: str
    launcher: str
    threads: int | None
    scaling: str
    data: str | None
    staged: bool
    fusion_mb: float | None = None
    cycle_ms: float | None = None

    @property
    def gpu(self) -> str | None:
        """The GPU that is emulated."""
        return self.device.partition(":")[2] or None

    @property
    def session(self) -> tuple[object, ...]:
        """Points for which this is the same share one start of the ranks."""
        return self.layout, self.launcher, self.threads, self.fusion_mb, self.cycle_ms

    @property
    def key(self) -> str:
        """What tells the point from every other one, readable."""
        words = [self.model, f"b{self.batch}", str(self.layout), format_rate(self.net), self.device, self.launcher]
        words += [f"t{self.threads}"] if self.threads else []
        words += [f"fusion{self.fusion_mb:g}"] if self.fusion_mb is not None else []
        words += [f"cycle{self.cycle_ms:g}"] if self.cycle_ms is not None else []
        return " ".join([*words, self.scaling, self.source])

    @property
    def source(self) -> str:
        return "synthetic" if self.data is None else f"staged:{self.data}" if self.staged else self.data

    def data_of(self) -> dict[str, Any]:
        """The axes as results hold them."""
        return {
            "key": self.key,
            "model": self.model,
            "batch": self.batch,
            "global_batch": self.batch * self.layout.ranks,
            "nodes": self.layout.nodes,
            "slots": self.layout.slots,
            "ranks": self.layout.ranks,
            "net": self.net,
            "device": self.device,
            "emulated": self.gpu is not None,
            "launcher": self.launcher,
            "threads": self.threads,
            "scaling": self.scaling,
            "data": self.source,
            "fusion_mb": self.fusion_mb,
            "cycle_ms": self.cycle_ms,
        }


@dataclass(frozen=True)
class Sweep:
    """Every value of every axis, and how well each point is to be known."""

    layouts: tuple[Layout, ...]
    batches: tuple[int, ...] = (32,)
    models: tuple[str, ...] = ("resnet50",)
    nets: tuple[int | None, ...] = (None,)
    device: str = REAL
    launchers: tuple[str, ...] = ("horovod-gloo",)
    threads: tuple[int | None, ...] = (None,)
    scalings: tuple[str, ...] = ("weak",)
    data: str | None = None
    staged: tuple[bool, ...] = (False,)
    dilation: float | None = None
    ci: float = 0.02
    max_steps: int = 500
    max_seconds: float = 60.0
    micro: bool = True
    timeline: bool = False

    @property
    def gpu(self) -> str | None:
        return self.device.partition(":")[2] or None

    def points(self) -> list[Point]:
        """In the order that starts ranks and re-shapes links least often."""
        layouts = sorted(self.layouts, key=lambda one: (one.ranks, one.nodes))
        started = [
            (layout, launcher, threads, net)
            for layout, launcher, threads in itertools.product(layouts, self.launchers, self.threads)
            for net in self._nets(layout)
        ]
        asked = itertools.product(started, self.scalings, self.models, self.batches, self.staged)
        found = [
            Point(
                model=model,
                batch=rank_batch(batch, layout.ranks, scaling),
                layout=layout,
                net=net,
                device=self.device,
                launcher=launcher,
                threads=threads,
                scaling=scaling,
                data=self.data,
                staged=staged,
            )
            for (layout, launcher, threads, net), scaling, model, batch, staged in asked
        ]
        return list(dict.fromkeys(found))

    def _nets(self, layout: Layout) -> tuple[int | None, ...]:
        """Ranks on one node use no link, so they are measured at one rate only."""
        if layout.nodes > 1:
            return self.nets
        return (None,) if None in self.nets else (max(net for net in self.nets if net is not None),)

    def probes(self, layout: Layout) -> tuple[str, ...]:
        """What is measured of the network on a layout: on the smallest and the largest one, and within one node."""
        several = [one for one in self.layouts if one.nodes > 1]
        within = [one for one in self.layouts if one.nodes == 1 and one.slots > 1]
        if not self.micro or layout not in (several[:1] + several[-1:] + within[-1:]):
            return ()
        return (ALLREDUCE, PAIRS) if layout in several[-1:] else (ALLREDUCE,)

    def stored(self) -> dict[str, Any]:
        return asdict(self) | {"layouts": [str(layout) for layout in self.layouts]}

    @property
    def digest(self) -> str:
        """The same for a sweep that goes on where another stopped."""
        return digest(sorted(self.stored().items()))


def layouts(names: Iterable[str], counts: Sequence[int], slots: int) -> tuple[Layout, ...]:
    """The layouts of words such as 4x1, kx1 and 1xk, where k stands for each of the counts.

    Without a word, all slots of so many nodes, and the single rank that efficiency is measured by.
    """
    names = tuple(names)
    found: list[Layout] = [] if names or 1 not in counts else [Layout(1, 1)]
    for name in names or (f"kx{slots}",):
        match = _LAYOUT.fullmatch(name)
        if not match or match[0] == "kxk":
            raise UsageError(f"--layout {name!r}: write NODESxRANKS such as 4x1, or kx1 and 1xk for each of --nodes")
        for count in counts if "k" in name else (1,):
            found.append(Layout(*(count if side == "k" else int(side) for side in match.groups())))
    if any(layout.ranks == 0 for layout in found):
        raise UsageError("--layout: a layout has at least one node and one rank")
    return tuple(sorted(set(found)))


def counts(available: int) -> list[int]:
    """1, 2, 4, ... and all nodes."""
    return sorted({2**n for n in range(available.bit_length()) if 2**n <= available} | {available})


def rank_batch(batch: int, ranks: int, scaling: str) -> int:
    """The batch of each rank: with strong scaling, its share of the whole."""
    if scaling != "strong":
        return batch
    if batch % ranks:
        raise UsageError(
            f"strong scaling shares the batch: {ranks} ranks can't share {batch} images evenly",
            hint="choose batches that every number of ranks divides",
        )
    return batch // ranks


def launcher(name: str) -> str:
    """The launcher by its own name, or by the one that `run` knows it by."""
    for known, alias in LAUNCHERS.items():
        if name in (known, alias):
            return known
    raise UsageError(f"--launcher {name!r} is not known; choose of: {', '.join(LAUNCHERS)}")


def device(name: str) -> str:
    """`real` or `emulated:<gpu>` with a GPU that has published rates."""
    kind, _, gpu = name.partition(":")
    if name == REAL:
        return name
    if kind != "emulated" or not gpu:
        raise UsageError(f"--device {name!r}: write real, or emulated:<gpu> such as emulated:p100")
    devices.check(gpu)
    return name


def rates(words: Iterable[str]) -> tuple[int | None, ...]:
    try:
        return tuple(dict.fromkeys(parse_rate(word) for word in words))
    except ValueError as error:
        raise UsageError(f"--net {error}") from None


def check(sweep: Sweep, spec: Spec, nodes: Sequence[Node]) -> None:
    """Raise for a sweep that this cluster can't run, before anything is started."""
    for name in sweep.models:
        model = catalogue.get(name)
        for batch in sweep.batches if sweep.gpu else ():
            devices.step_seconds(sweep.gpu or "", model.name, batch)
    if spec.framework != "pytorch":
        raise UsageError(f"bench needs framework: pytorch; {spec.name!r} has {spec.framework}")
    rates = [format_rate(net) for net in sweep.nets if net is not None]
    if rates and providers.REGISTRY[spec.provider].foreign_network:
        raise UsageError(
            f"--net {','.join(rates)}: the links of provider {spec.provider} can't be given a rate", hint="leave it out"
        )
    for layout in sweep.layouts:
        if layout.nodes > len(nodes):
            raise UsageError(
                f"layout {layout} needs {layout.nodes} nodes, {spec.name!r} has {len(nodes)}",
                hint=f"`hvdctl scale --nodes {layout.nodes} --name {spec.name}` makes them",
            )
        if layout.slots > nodes[0].slots:
            raise UsageError(
                f"layout {layout} needs {layout.slots} slots on a node, {spec.name!r} has {nodes[0].slots}",
                hint=f"`hvdctl up --slots {layout.slots} --name {spec.name}` gives them",
            )
    for layout, batch, scaling in itertools.product(sweep.layouts, sweep.batches, sweep.scalings):
        rank_batch(batch, layout.ranks, scaling)
    if sweep.gpu and sweep.data is not None:
        raise UsageError("--data needs --device real: an emulated device reads no images")
    if any(sweep.staged) and sweep.data is None:
        raise UsageError("--stage needs --data: made-up images are in memory already")
    if sweep.dilation is not None and sweep.dilation != 1 and not sweep.gpu:
        raise UsageError("--dilation needs an emulated device: real compute can't be slowed down")


def compute_seconds(point: Point) -> float | None:
    """A step of one emulated GPU; None for what has to be measured."""
    return devices.step_seconds(point.gpu, point.model, point.batch).seconds if point.gpu else None


def guess(
    sweep: Sweep, points: Sequence[Point], dilation: Callable[[Point], float], cores: int, *, shared: bool = True
) -> list[float]:
    """About how many seconds each point will take, with the start of its ranks and the measurements of the network.

    `shared` is whether the nodes share this machine's cores.
    """
    seconds: list[float] = []
    started: tuple[object, ...] | None = None
    probed: set[tuple[object, ...]] = set()
    for point in points:
        compute = compute_seconds(point)
        model = catalogue.get(point.model)
        if compute is None:
            flops = 6 * sum(layer.macs for layer in model.layers) * point.batch
            compute = flops * point.layout.ranks / (cores * _CORE_FLOPS)
        wire = 2 * 8 * model.gradient_bytes * (point.layout.ranks > 1)
        step = dilation(point) * (compute + wire / (point.net or _OPEN_LINK))
        took = step + min(max(_ENOUGH * step, _SHORT_S), step * sweep.max_steps, max(sweep.max_seconds, 3 * step))
        took += _LAUNCH_S if point.session != started else 1.0
        rate = None if point.net is None or point.layout.nodes == 1 else int(point.net / dilation(point))
        for probe in sweep.probes(point.layout):
            once = (probe, rate, *((point.layout, point.launcher) if probe == ALLREDUCE else ()))
            if once not in probed:
                probed.add(once)
                took += _probe_seconds(probe, point.layout, rate, cores if shared else None)
        started = point.session
        seconds.append(took)
    return seconds


def _probe_seconds(probe: str, layout: Layout, rate: int | None, cores: int | None) -> float:
    if probe == ALLREDUCE:
        return probes.allreduce_seconds(rate or _OPEN_LINK)
    names = [f"node{index}" for index in range(layout.nodes)]
    return probes.seconds(probes.planned(names, rate, shared=cores is not None), rate, cores)
