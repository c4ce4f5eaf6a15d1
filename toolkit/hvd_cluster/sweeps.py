"""`bench`: how training scales over the nodes of this cluster, measured as `hvdctl bench` measures it.

The ranks' program, the points, the results file, the cost model and the report are hvdctl's own; only the way to the
ranks is another one. Links stay as they are.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_cluster.errors import ClusterError, WrongValue
from hvd_cluster.facts import Facts, facts, share

if TYPE_CHECKING:
    from hvdctl.bench.plan import Point, Sweep
    from hvdctl.bench.results import Record, Store

    from hvd_cluster.stored import Bench
    from hvd_cluster.talk import LocalTalk

_SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20)


def bench(
    nodes: int | Iterable[int] | None = None,
    batch: int | Iterable[int] = (8,),
    model: str = "convnet_cifar10",
    *,
    slots: int | None = None,
    threads: int | None = None,
    scaling: str = "weak",
    max_steps: int = 40,
    max_seconds: float = 10.0,
    ci: float = 0.05,
    micro: bool = True,
    quiet: bool = False,
) -> Bench:
    """Train a model on some of the nodes, then on more of them, and tell how the images per second grow.

        hc.bench()                                  # 1, 2, 4, ... and all nodes
        hc.bench(nodes=[1, 2], batch=[8, 32], model="alexnet", max_seconds=30)
        hc.plot()                                   # the figure, with the prediction beside the measured points

    `batch` is each rank's (with `scaling="strong"` that of all ranks together), `slots` the ranks on a node (default:
    all), `threads` those of a rank (default: its share of a node's cores; where nodes share one machine, the same at
    every point, so that points can be compared). A point is measured until its confidence interval is below `ci` of
    it, for at most `max_steps` steps or `max_seconds`. `micro` times allreduces too, which the prediction is made from.
    Results go to /shared/bench in hvdctl's own format: `hvdctl pull bench/ID`, then `hvdctl report open ./ID`.
    """
    known = facts()
    asked = _sweep(known, nodes, batch, model, slots, threads, scaling, max_steps, max_seconds, ci, micro)
    from hvd_cluster import stored, talk

    talk.refuse_second()
    say = (lambda _: None) if quiet else _say
    folder = _Bench(known, asked, say).run()
    return stored.Bench(folder)


def _sweep(
    known: Facts,
    nodes: int | Iterable[int] | None,
    batch: int | Iterable[int],
    model: str,
    slots: int | None,
    threads: int | None,
    scaling: str,
    max_steps: int,
    max_seconds: float,
    ci: float,
    micro: bool,
) -> Sweep:
    """What is to be measured; all that can't be is refused here."""
    if known.framework and known.framework != "pytorch":
        raise ClusterError(
            f"bench() measures PyTorch; this cluster has {known.framework}: `hvdctl up --framework pytorch` makes one"
        )
    hvdctl_is_here()
    from hvdctl.bench import catalogue, plan
    from hvdctl.errors import UsageError

    there, room = len(known.nodes), min(node.slots for node in known.nodes)
    counts = plan.counts(there) if nodes is None else _whole("nodes", nodes, there)
    width = room if slots is None else _whole("slots", slots, room)[0]
    if threads is None and known.one_machine and known.cpus is None:
        threads = max(1, (os.cpu_count() or 1) // (max(counts) * width))
    if threads is not None:
        _whole("threads", threads, 1 << 10)
    if scaling not in plan.SCALINGS:
        raise WrongValue(f"scaling is one of {', '.join(plan.SCALINGS)}, not {scaling!r}")
    if max_steps < 1 or not max_seconds > 0 or not 0 < ci < 1:
        raise WrongValue(f"max_steps={max_steps}, max_seconds={max_seconds}, ci={ci}: all are above 0, ci below 1")
    try:
        catalogue.get(model)
        asked = plan.Sweep(
            layouts=plan.layouts((), counts, width),
            batches=tuple(_whole("batch", batch, 1 << 16)),
            models=(model,),
            nets=(known.net,),
            threads=(threads,),
            scalings=(scaling,),
            ci=ci,
            max_steps=max_steps,
            max_seconds=max_seconds,
            micro=micro,
        )
        asked.points()
    except UsageError as error:
        raise WrongValue(error.message) from None
    return asked


def hvdctl_is_here() -> None:
    """Raise where this node has no half of hvdctl to measure and draw with."""
    try:
        import hvdctl.bench  # noqa: F401
        import matplotlib  # noqa: F401
        import pydantic  # noqa: F401
    except ImportError as error:
        told = f"this node can't measure or draw: {error.name} is not here"
        raise ClusterError(f"{told}; clusters made with `jupyter: true` have it") from None


class _Bench:
    """One bench from its first point to its report."""

    def __init__(self, known: Facts, asked: Sweep, say: Callable[[str], None]) -> None:
        from hvdctl.bench.results import Store

        self.known = known
        self.asked = asked
        self.say = say
        self.store: Store = Store(_new(share() / "bench"))
        self.talk: LocalTalk | None = None
        self.began = time.monotonic()

    def run(self) -> Path:
        from hvdctl.bench import report
        from hvdctl.errors import HvdctlError

        try:
            points = self.asked.points()
            for index, point in enumerate(points):
                self.say(f"{index + 1} of {len(points)}: {point.key}")
                self._one(point)
            self._predict()
        except KeyboardInterrupt:
            self._end("interrupted", "interrupted")
            raise
        except (HvdctlError, ClusterError) as error:
            self._end("failed", str(error))
            raise ClusterError(str(error)) from None
        finally:
            self._close()
        self._end("complete", None)
        page = report.build(self.store.folder)
        self.say(f"{time.monotonic() - self.began:.0f} s; report: {page}")
        return self.store.folder

    def _one(self, point: Point) -> None:
        from hvdctl.bench import ranks
        from hvdctl.bench.session import PointFailed

        began = time.monotonic()
        record: Record = {"kind": "point", **point.data_of(), "dilation": 1.0}
        bits = self.known.net if point.layout.nodes > 1 else None
        try:
            talk = self._ready_for(point)
            ready = time.monotonic() - began
            self._micro(talk, point)
            found = ranks.measure(talk, point, self.asked, 1.0, lambda _: None)
            found.pop("timeline")
            record |= {"link_bits": bits, "start_s": round(ready + found.pop("setup_s"), 3), **found}
        except PointFailed as error:
            record |= {"link_bits": None, "status": "failed", "reason": error.message}
            self._close()
        if not self.store.path.exists():
            raise ClusterError(str(record["reason"]))
        self.store.append(record | {"measured_at": time.time()})
        self.say(f"    {ranks.told(record)}")

    def _ready_for(self, point: Point) -> LocalTalk:
        """Ranks for this point: those that are up where they fit."""
        from hvdctl.bench.session import OURS
        from hvdctl.profile import knobs

        from hvd_cluster.talk import LocalTalk, refuse_second

        talk = self.talk
        if talk is None or not talk.ready or talk.purpose != point.session:
            self._close()
            refuse_second(OURS)  # it may have begun while no ranks were up
            env = knobs(point.fusion_mb, point.cycle_ms)
            talk = self.talk = LocalTalk(self.known, point.layout, point.launcher, point.threads, env)
            talk.purpose = point.session
        if not self.store.path.exists():
            self.store.append(self._introduction(talk))
        return talk

    def _introduction(self, talk: LocalTalk) -> Record:
        from hvdctl import __version__
        from hvdctl.bench import results

        known = self.known
        spec = {"name": known.cluster, "provider": known.provider, "framework": known.framework or "pytorch"}
        spec |= {"nodes": len(known.nodes), "slots": known.nodes[0].slots, "net": known.net, "cpus": known.cpus}  # type: ignore[dict-item]
        named = known.described or tuple({"name": node.name} for node in known.nodes)
        return {
            "kind": "bench",
            "version": results.VERSION,
            "id": self.store.folder.name,
            "created": time.time(),
            "command": "hvd_cluster.bench() in a notebook",
            "plan": self.asked.stored(),
            "digest": self.asked.digest,
            "cluster": {
                "name": known.cluster,
                # Of the environment only the names: values may be secrets.
                "spec": {**spec, "env": sorted(known.env)},
                "nodes": [{key: node.get(key) for key in ("name", "id", "kind")} for node in named],
                "one_machine": known.one_machine,
                "about": known.about,
            },
            "image": {"reference": known.image or None},
            "versions": {"hvdctl": __version__, **talk.hello["versions"]},
            "machine": talk.hello["machine"],
        }

    def _micro(self, talk: LocalTalk, point: Point) -> None:
        """What an allreduce takes, once for each layout of several ranks."""
        from hvdctl.bench import micro, results
        from hvdctl.bench.session import PointFailed

        layout = point.layout
        same = {"nodes": layout.nodes, "slots": layout.slots}
        known = results.of_kind(self.store.read(), "allreduce")
        if not self.asked.micro or layout.ranks == 1 or any(same.items() <= one.items() for one in known):
            return
        net = self.known.net if layout.nodes > 1 else None
        try:
            found = micro.allreduce(talk, point.launcher, net, lambda _: None, _SIZES)
        except PointFailed as error:
            self.say(f"    allreduces of {layout} were not measured: {error.message}")
            if not talk.ready:
                raise
            return
        self.store.append(found | {"asked": net, "dilation": 1.0})

    def _predict(self) -> None:
        """The cost model's word on every point, from a few of them, or from none where that leaves none to check."""
        from hvdctl.bench import fit, predict

        records = self.store.read()
        chosen = fit.few(records)
        several = {case.key for case in fit.cases(records) if case.layout.ranks > 1}
        parameters = fit.fit(records, points=chosen if several - set(chosen) else [])
        self.store.append({"kind": "fit", **parameters.data()})
        for record in predict.series(records, parameters):
            self.store.append(record)

    def _end(self, state: str, reason: str | None) -> None:
        if self.store.path.exists():
            seconds = round(time.monotonic() - self.began, 1)
            self.store.append({"kind": "end", "state": state, "seconds": seconds, "reason": reason})

    def _close(self) -> None:
        if self.talk is not None:
            self.talk.close()
            self.talk = None


def _whole(name: str, given: int | Iterable[int], most: int) -> list[int]:
    """One number or several, each from 1 on."""
    values = [given] if isinstance(given, int) else list(given)
    if not values:
        raise WrongValue(f"{name} is a number or several of them, not {given!r}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise WrongValue(f"{name}={value!r}: {name} is a whole number from 1 to {most} here")
    return sorted(set(values))


def _new(folder: Path) -> Path:
    """A folder that is not there yet, named by the time; such names sort by age."""
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    tried = (folder / f"{name}{suffix}" for suffix in ("", *(f"-{count}" for count in range(2, 100))))
    return next(path for path in tried if not path.exists())


def _say(text: Any) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
