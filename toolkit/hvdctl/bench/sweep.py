"""A bench from its plan to its results: ranks started, links shaped, points measured one after the other."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hvdctl import __version__, jobs, links, pipeline, providers, ssh
from hvdctl.bench import micro, plan, ranks, results, resume, timeline
from hvdctl.bench.plan import Point, Sweep
from hvdctl.bench.results import Record, Store
from hvdctl.bench.session import PointFailed, Session, end_leftovers
from hvdctl.cluster import Cluster, command_line
from hvdctl.errors import HvdctlError, Interrupted, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.spec import format_rate

# Shaped to more than this share of what the CPUs can move unshaped, a link is not the limit any more.
CARRIED = 0.25
_ALONE = 8.0
_UNKNOWN = -1


@dataclass
class Outcome:
    """What a bench left: where, how it ended, what it holds."""

    folder: Path
    state: str
    measured: int
    failed: int
    resumed: int
    seconds: float


@dataclass
class Choice:
    """How a bench is to be run, beside what is measured."""

    output: Path | None = None
    fresh: bool = False
    agree: Callable[[str, float], None] = lambda what, seconds: None
    pressed: Callable[[], int] = lambda: 0


def check(cluster: Cluster, sweep: Sweep) -> None:
    """Raise for what can't be measured on this cluster, before anything is touched."""
    ssh.pick(cluster)
    plan.check(sweep, cluster.spec(), cluster.nodes())
    _check_standing(cluster)
    if sweep.data is not None:
        folder = str(jobs.on_share(sweep.data))
        if ssh.run(cluster, ssh.pick(cluster).name, ["test", "-d", folder]).returncode:
            raise UsageError(
                f"--data: there is no folder {folder} on the share",
                hint=f"`hvdctl push FOLDER --name {cluster.name}` brings one to /shared/FOLDER",
            )


def run(cluster: Cluster, sweep: Sweep, progress: Progress, choice: Choice) -> Outcome:
    """Measure all that is not measured yet; results are on disk after each point."""
    with cluster.locked(command_line()):
        check(cluster, sweep)
        left = end_leftovers(cluster)
        store, before = resume.find(cluster, sweep, output=choice.output, fresh=choice.fresh)
        bench = _Bench(cluster, sweep, store, before, choice)
        try:
            with progress.phase("Measuring") as step:
                for one in left:
                    step.note(f"ended run {one}, which a killed bench had left")
                bench.measure(step)
        except Interrupted:
            bench.end("interrupted", "interrupted")
            raise Interrupted(
                f"interrupted; {bench.done} of {bench.total} points are measured and kept",
                hint="the same command goes on with the rest",
            ) from None
        except UsageError:
            if not before:
                bench.end("failed", "refused")
            raise
        except HvdctlError as error:
            bench.end("failed", error.message)
            if store.path.exists():
                error.hint = f"{error.hint + '; ' if error.hint else ''}results so far: {store.path}"
            raise
        with progress.phase("Writing the report"):
            bench.conclude()
            _share(cluster, store.folder)
        return bench.outcome("complete")


@dataclass
class _Bench:
    cluster: Cluster
    sweep: Sweep
    store: Store
    before: list[Record]
    choice: Choice
    links: int | None = None
    dilations: dict[int | None, float] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    resumed: int = 0
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        env = {"HOROVOD_TIMELINE": "DYNAMIC"} if self.sweep.timeline else {}
        self.ranks = ranks.Ranks(self.cluster, self.choice.pressed, env)

    def measure(self, step: Step) -> None:
        spec = self.cluster.spec()
        # As they stand may not be as asked: an earlier bench may have been killed.
        self.links = _UNKNOWN
        points = self.sweep.points()
        finished = {record["key"] for record in results.points(self.before) if record["status"] == "ok"}
        todo = [point for point in points if point.key not in finished]
        self.total, self.resumed = len(points), len(points) - len(todo)
        self.done = self.resumed
        if self.resumed:
            step.note(f"going on: {self.resumed} of {self.total} points are measured already")
        try:
            if todo:
                self._introduce(step, todo)
                self._calibrate(step)
                self._sweep(todo, step)
        finally:
            self.ranks.close()
            self._link(spec.net, step)

    def conclude(self) -> None:
        """Fit the model, predict every point, draw the report."""
        from hvdctl.bench import report

        self._predict()
        self.end("complete", None)
        report.build(self.store.folder)

    def end(self, state: str, reason: str | None) -> None:
        if not self.store.path.exists():
            return  # not even the ranks came up: there is nothing to go on with
        seconds = round(time.monotonic() - self.began, 1)
        self.store.append({"kind": "end", "state": state, "seconds": seconds, "reason": reason})

    def outcome(self, state: str) -> Outcome:
        points = results.points(self.store.read())
        good = len(results.measured(points))
        seconds = time.monotonic() - self.began
        return Outcome(self.store.folder, state, good, len(points) - good, self.resumed, seconds)

    def _introduce(self, step: Step, todo: list[Point]) -> None:
        """Write down what everything is measured on, once."""
        if results.of_kind(self.before, "bench"):
            return
        step.update("starting the ranks")
        session = self.ranks.ready_for(todo[0])
        nodes = self.cluster.nodes()
        spec = self.cluster.spec()
        if about := providers.REGISTRY[spec.provider].site.about(self.cluster.name):
            step.note(about)
        self.store.append(
            {
                "kind": "bench",
                "version": results.VERSION,
                "id": self.store.folder.name,
                "created": time.time(),
                "command": f"hvdctl {_to_repeat()}",
                "plan": self.sweep.stored(),
                "digest": self.sweep.digest,
                "cluster": {
                    "name": self.cluster.name,
                    **resume.terms(self.cluster),
                    "nodes": [{"name": n.name, "id": n.id, "kind": n.kind} for n in nodes],
                    "one_machine": providers.one_machine(spec),
                    "about": about,
                },
                "image": pipeline.image(self.cluster),
                "versions": {"hvdctl": __version__, **session.hello["versions"]},
                "machine": session.hello["machine"],
            }
        )

    def _calibrate(self, step: Step) -> None:
        """Find, for each rate, how much slower time must run so that the links and not the CPUs are the limit."""
        self.dilations = {record["net"]: record["dilation"] for record in results.of_kind(self.before, "calibration")}
        todo = [net for net in self.sweep.nets if net not in self.dilations]
        if not self.sweep.gpu or self.sweep.dilation is not None:
            self.dilations |= dict.fromkeys(todo, self.sweep.dilation or 1.0)
            self._check_dilation()
            return
        if not todo:
            return
        largest = max(self.sweep.layouts, key=lambda layout: (layout.ranks, layout.nodes))
        carried = None
        if largest.ranks > 1 and any(net is not None for net in todo):
            step.update("finding out what the CPUs can carry")
            points = [point for point in self.sweep.points() if point.layout == largest]
            session = self.ranks.ready_for(points[0])
            self._link(None, step)
            probe = micro.allreduce(session, points[0].launcher, None, step.update, micro.PROBE)
            self.store.append(probe | {"probe": True})
            carried = probe["rows"][-1]["bus_bits"]
        self.dilations |= {net: dilation(net, carried) for net in todo}
        self._check_dilation()
        for net in todo:
            factor = self.dilations[net]
            self.store.append(
                {"kind": "calibration", "net": net, "dilation": factor, "bus_bits": carried, "layout": str(largest)}
            )
            if factor > 1 and carried is not None:
                told = f"{largest} ranks move {links.shown(carried)} each at most"
                step.note(f"{format_rate(net)} is emulated with time dilation {factor:g}: {told}")

    def _check_dilation(self) -> None:
        for point in self.sweep.points():
            factor = self._factor(point)
            seconds = (plan.compute_seconds(point) or 0) * factor
            if factor > plan.MAX_DILATION or seconds > plan.MAX_STEP_S:
                raise UsageError(
                    f"{format_rate(point.net)} would take time dilation {factor:g}: a step of "
                    f"{point.model} at batch {point.batch} would take {seconds:.0f} s",
                    hint="choose fewer nodes, a lower --net or a smaller --batch",
                )

    def _factor(self, point: Point) -> float:
        """One rank alone exchanges nothing: it is slowed only until waking up from sleep no longer counts."""
        factor = self.dilations[point.net]
        return min(factor, _ALONE) if point.layout.ranks == 1 and self.sweep.dilation is None else factor

    def _sweep(self, todo: list[Point], step: Step) -> None:
        shared = providers.here(self.cluster.spec())
        guesses = plan.guess(self.sweep, todo, self._factor, os.cpu_count() or 1, shared=shared)
        self.choice.agree(f"{len(todo)} points", sum(guesses))
        began, guessed = time.monotonic(), 0.0
        for index, (point, seconds) in enumerate(zip(todo, guesses, strict=True)):
            pace = (time.monotonic() - began) / guessed if guessed else 1.0
            left = shown_time(pace * sum(guesses[index:]))
            where = f"{self.done + 1} of {self.total}, about {left} left: {point.key}"
            step.update(where)
            self._one(point, step, where)
            self.done += 1
            guessed += seconds

    def _one(self, point: Point, step: Step, where: str) -> None:
        began = time.monotonic()
        factor = self._factor(point)
        record: Record = {"kind": "point", **point.data_of(), "dilation": factor}
        try:
            session = self.ranks.ready_for(point)
            shaped = None
            if point.layout.nodes > 1:  # ranks of one node use no link
                shaped = scaled(point.net, factor)
                self._link(shaped, step)
            ready = time.monotonic() - began
            self._micro(session, point, shaped, step)
            session = self.ranks.ready_for(point)

            def listen(told: Record) -> None:
                rate = point.batch * point.layout.ranks * factor / told["step_s"]
                step.update(f"{where}, {told['steps']} steps, {rate:.4g} images/s")

            found = ranks.measure(session, point, self.sweep, factor, listen)
            record |= {"link_bits": shaped, "start_s": round(ready + found.pop("setup_s"), 3)}
            spans = found.pop("timeline")
            record |= found
            if spans:
                self.store.append(timeline.keep(self.cluster, session.run, spans, self.store.folder, point.key, factor))
        except PointFailed as error:
            record |= {"link_bits": None, "status": "failed", "reason": error.message}
            self.ranks.close()
        self.store.append(record | {"measured_at": time.time()})
        step.note(ranks.told(record))
        if record["status"] == "failed":
            _check_standing(self.cluster)

    def _micro(self, session: Session, point: Point, shaped: int | None, step: Step) -> None:
        """What the network gives, once for each rate: on the smallest and largest layout, and within one node.

        It is beside the point: what fails here is told, and the sweep goes on.
        """
        layout = point.layout
        probes = self.sweep.probes(layout)
        if not probes:
            return
        known = self.store.read()
        same = {"net": shaped, "nodes": layout.nodes, "slots": layout.slots, "launcher": point.launcher}
        beside = {"asked": point.net if layout.nodes > 1 else None, "dilation": self._factor(point)}
        try:
            if not _known(known, "allreduce", {**same, "probe": None}):
                self.store.append(micro.allreduce(session, point.launcher, shaped, step.update) | beside)
            if plan.PAIRS in probes and not _known(known, "links", {"net": shaped}):
                record = micro.pairs(self.cluster, shaped, step.update, layout.nodes, self.choice.pressed)
                self.store.append(record | beside)
                _tell_slowest(record, step)
        except Interrupted:
            raise
        except HvdctlError as error:
            step.note(f"the network of {layout} was not measured: {error.message}")

    def _link(self, net: int | None, step: Step) -> None:
        if self.links != net:
            _check_standing(self.cluster)  # Terraform would make a lost node anew, but nobody would configure it
            self.links = _UNKNOWN  # half of them may have it when this fails
            pipeline.relink(self.cluster, net, step)
            self.links = net

    def _predict(self) -> None:
        from hvdctl.bench import fit, predict

        records = self.store.read()
        # A few points only: the others then show how good the prediction is.
        parameters = fit.fit(records, points=fit.few(records))
        self.store.append({"kind": "fit", **parameters.data()})
        for record in predict.series(records, parameters):
            self.store.append(record)


def _share(cluster: Cluster, folder: Path) -> None:
    """Let notebooks on the head see the results too; they are safe here: a share that can't take them is no error."""
    if folder.parent == cluster.folder / "bench":
        with contextlib.suppress(HvdctlError):
            jobs.push(cluster, [folder], "bench")


def _tell_slowest(record: Record, step: Step) -> None:
    worst = micro.slowest(record)
    if worst:
        limited = f", limited to {links.shown(record['net'])}" if record["net"] else ""
        some = f", of {len(record['pairs'])} measured pairs of {record['of']}" if record.get("of") else ""
        step.note(f"slowest link: {worst['source']} to {worst['target']}, {links.shown(worst['bits'])}{limited}{some}")


def _to_repeat() -> str:
    """The command without where its results went: that is no part of what was measured."""
    return re.sub(r"\s--output[ =]('[^']*'|\S+)", "", command_line())


def dilation(net: int | None, carried: float | None) -> float:
    """The factor at which links of this rate are the limit, where the CPUs carry so much; 1 where none is needed."""
    if net is None or carried is None:
        return 1.0
    return float(max(1, math.ceil(net / (CARRIED * carried))))


def scaled(net: int | None, factor: float) -> int | None:
    """The rate that links are really given; the kernel counts bytes."""
    return None if net is None else int(net / factor) // 8 * 8


def shown_time(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"


def _check_standing(cluster: Cluster) -> None:
    """Raise where nodes are gone, naming them."""
    if lost := jobs.lost(cluster, [node.name for node in cluster.nodes()]):
        raise HvdctlError(
            f"lost: {', '.join(lost)}", hint=f"`hvdctl up --name {cluster.name}` makes them anew, then bench again"
        )


def _known(records: list[Record], kind: str, values: Record) -> bool:
    return any(all(record.get(k) == v for k, v in values.items()) for record in results.of_kind(records, kind))
