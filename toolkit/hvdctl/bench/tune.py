"""Settings for the live cluster: searched by measuring, kept as its profile, used by `run`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hvdctl import pipeline
from hvdctl import profile as settings
from hvdctl.bench import plan, ranks, sweep
from hvdctl.bench.plan import Layout, Point, Sweep
from hvdctl.bench.session import PointFailed, end_leftovers
from hvdctl.cluster import Cluster, command_line
from hvdctl.errors import HvdctlError, Interrupted
from hvdctl.profile import Profile
from hvdctl.progress import Progress, Step

FUSION_MB = (8, 32, 128)
CYCLE_MS = (1, 5, 20)
# The best and the defaults are measured in turns, so that a machine that gets slower or faster favours neither.
_TURNS = 3


@dataclass
class Tried:
    """A setting and what it reached."""

    point: Point
    images_per_s: float | None
    reason: str | None = None

    def data(self) -> dict[str, Any]:
        return {
            **{axis: getattr(self.point, axis) for axis in ("launcher", "threads", "fusion_mb", "cycle_ms")},
            "device": self.point.device,
            "images_per_s": self.images_per_s,
            "reason": self.reason,
        }


@dataclass
class Outcome:
    profile: Profile | None
    gain: float
    gain_low: float
    gain_high: float
    tried: list[Tried]
    seconds: float


def run(cluster: Cluster, point: Point, cores: int, progress: Progress, pressed: Callable[[], int]) -> Outcome:
    """Search axis by axis, prove the best against the defaults, keep it where it is better beyond doubt."""
    asked = Sweep(
        layouts=(point.layout,),
        models=(point.model,),
        batches=(point.batch,),
        device=point.device,
        ci=0.03,
        max_steps=20,
        max_seconds=12.0,
    )
    began = time.monotonic()
    with cluster.locked(command_line()):
        sweep.check(cluster, asked)
        end_leftovers(cluster)
        with progress.phase("Links") as step:
            pipeline.relink(cluster, cluster.spec().net, step)  # a killed bench may have left them shaped
        search = _Search(cluster, asked, pressed)
        try:
            with progress.phase("Searching") as step:
                best = search.best(point, axes(point, cores), step)
            with progress.phase("Proving") as step:
                ratios = search.against(point, best, step) if best != point else [1.0]
        finally:
            search.ranks.close()
        gain, low, high = judged(ratios)
        kept = None
        if low > 1 and len(ratios) == _TURNS:
            kept = profile(best, cluster, gain, low, high)
            kept.store(cluster)
        return Outcome(kept, gain - 1, low - 1, high - 1, search.tried, time.monotonic() - began)


def axes(point: Point, cores: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """What is searched, the coarse before the fine. Horovod's knobs matter only where ranks exchange anything."""
    several = point.layout.ranks > 1
    if several:
        yield "launcher", ("horovod-gloo", "horovod-mpi")
    if point.gpu is None:
        yield "threads", tuple(sorted({1, max(1, cores // 2), cores}))
    if several:
        yield "fusion_mb", FUSION_MB
        yield "cycle_ms", CYCLE_MS


def judged(ratios: list[float]) -> tuple[float, float, float]:
    """Best against defaults: the mean of what pairs of measurements gave, and the range that they span."""
    return statistics.fmean(ratios), min(ratios), max(ratios)


def profile(best: Point, cluster: Cluster, gain: float, low: float, high: float) -> Profile:
    return Profile(
        launcher=plan.LAUNCHERS[best.launcher],
        threads=best.threads,
        fusion_mb=best.fusion_mb,
        cycle_ms=best.cycle_ms,
        layout=str(best.layout),
        net=cluster.spec().stored()["net"],
        measured=f"{best.model}, batch {best.batch}, {best.layout}, {best.device}",
        gain=gain - 1,
        gain_low=low - 1,
        gain_high=high - 1,
    )


class _Search:
    def __init__(self, cluster: Cluster, asked: Sweep, pressed: Callable[[], int]) -> None:
        self.asked = asked
        self.pressed = pressed
        self.ranks = ranks.Ranks(cluster, pressed)
        self.tried: list[Tried] = []

    def best(self, start: Point, axes: Iterator[tuple[str, tuple[Any, ...]]], step: Step) -> Point:
        """The best setting, found by changing one thing at a time."""
        best, top = start, self._rate(start, step)
        if top is None:
            raise HvdctlError(f"the defaults can't be measured: {self.tried[-1].reason}")
        for axis, values in axes:
            for value in values:
                other = replace(best, **{axis: value})
                if any(tried.point == other for tried in self.tried):
                    continue
                rate = self._rate(other, step)
                if rate is not None and rate > top * (1 + self.asked.ci):
                    best, top = other, rate
        return best

    def against(self, start: Point, best: Point, step: Step) -> list[float]:
        ratios = []
        for _ in range(_TURNS):
            old, new = self._rate(start, step), self._rate(best, step)
            if old is not None and new is not None:
                ratios.append(new / old)
        return ratios or [1.0]

    def _rate(self, point: Point, step: Step) -> float | None:
        if self.pressed():
            raise Interrupted("interrupted", hint="the profile is as it was")
        step.update(shown(point))
        try:
            found = ranks.measure(self.ranks.ready_for(point), point, self.asked, 1.0, lambda _: None)
        except PointFailed as error:
            self.ranks.close()
            self.tried.append(Tried(point, None, error.message))
            step.note(f"{shown(point)}: {error.message}")
            return None
        rate = float(found["images_per_s"])
        self.tried.append(Tried(point, rate))
        emulated = f" ({point.device})" if point.gpu else ""
        step.note(f"{shown(point)}: {rate:.4g} images/s{emulated}")
        return rate


def shown(point: Point) -> str:
    """A setting in words; what is not set is Horovod's own."""
    return settings.shown(point.launcher, point.threads, point.fusion_mb, point.cycle_ms)


def starting_point(model: str, batch: int, layout: Layout, device: str, net: int | None) -> Point:
    """The defaults."""
    return Point(
        model=model,
        batch=batch,
        layout=layout,
        net=net,
        device=device,
        launcher="horovod-gloo",
        threads=None,
        scaling="weak",
        data=None,
        staged=False,
    )
