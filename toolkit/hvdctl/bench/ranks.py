"""Ranks and what they measure of a point: those that are up are used again where they fit."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hvdctl import jobs
from hvdctl.bench import catalogue, plan, timeline, wording
from hvdctl.bench.plan import Point, Sweep
from hvdctl.bench.results import Record
from hvdctl.bench.session import Session, Talk
from hvdctl.cluster import Cluster
from hvdctl.profile import knobs

# Steps that take this much longer than the emulated device would: the CPUs are the limit all the same.
LATE = 0.05
_WARMUP = {True: 1, False: 2}
_BLOCK = {True: 3, False: 5}
_TIMELINE_STEPS = 3


@dataclass
class Ranks:
    """At most one set of ranks at a time, with the environment of all of them."""

    cluster: Cluster
    pressed: Callable[[], int]
    env: dict[str, str] = field(default_factory=dict)
    _session: Session | None = None

    def ready_for(self, point: Point) -> Session:
        """The ranks that this point needs: those that are up where they fit."""
        session = self._session
        if session is None or not session.ready or session.purpose != point.session:
            self.close()
            session = self._session = start(self.cluster, point, self.pressed, self.env)
        return session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def start(cluster: Cluster, point: Point, pressed: Callable[[], int], env: dict[str, str]) -> Session:
    """Ranks for a point, and for every other one with the same layout and settings."""
    env = {**knobs(point.fusion_mb, point.cycle_ms), **env}
    session = Session(cluster, point.layout, point.launcher, pressed, threads=point.threads, env=env)
    session.purpose = point.session
    return session


def measure(session: Talk, point: Point, sweep: Sweep, dilation: float, listen: Any) -> Record:
    """One point on ranks that are up and links that are shaped, its dilation undone."""
    emulated = point.gpu is not None
    compute = plan.compute_seconds(point)
    model = catalogue.get(point.model)
    asked: dict[str, Any] = {
        "op": "train",
        "model": point.model,
        "batch": point.batch,
        "data": None if point.data is None else str(jobs.on_share(point.data)),
        "stage": point.staged,
        "warmup": _WARMUP[emulated],
        "block": _BLOCK[emulated],
        "ci": sweep.ci,
        "max_steps": sweep.max_steps,
        "max_seconds": sweep.max_seconds,
    }
    if compute is not None:
        asked["seconds"] = compute * dilation
        asked["layers"] = [[layer.name, layer.tensors, layer.macs] for layer in model.layers]
    if sweep.timeline and point.layout == max(sweep.layouts):
        asked["timeline"] = {"file": timeline.remote(session.run), "steps": _TIMELINE_STEPS}
    found = session.ask(asked, listen)
    return _record(point, found, dilation, compute) | {"timeline": found.get("timeline")}


def _record(point: Point, found: Record, dilation: float, compute: float | None) -> Record:
    times = [seconds / dilation for seconds in found["step_times_s"]]
    mean = statistics.fmean(times)
    split = {part: max(0.0, seconds / dilation) for part, seconds in found["split_s"].items()}
    rate = point.batch * point.layout.ranks / mean
    half = found["half_width"]
    return {
        "status": "ok",
        "reason": None,
        "images_per_s": rate,
        "images_per_s_ci": rate * half,
        "step_s": mean,
        "steps": len(times),
        "step_times_s": times,
        "split_s": split,
        "late": split["compute"] / compute - 1 if compute else None,
        "overhead": found["overhead"],
        "setup_s": found["start_s"],
        "converged": found["converged"],
        "data_read": found.get("data"),
    }


def told(record: Record) -> str:
    """A finished point in one line."""
    if record["status"] == "failed":
        return f"failed: {record['key']}: {record['reason']}"
    rate = wording.with_ci(record["images_per_s"], record["images_per_s_ci"])
    said = f"{record['key']}: {rate} images/s"
    if record["data_read"]:
        said += _read(record["data_read"])
    if record["dilation"] != 1:
        said += f" (dilation {record['dilation']:g})"
    if record["late"] is not None and record["late"] > LATE:
        said += f"; compute was {record['late']:.0%} late: the CPUs are the limit, raise --dilation"
    return said


def _read(data: Record) -> str:
    """What reading from files cost beside the steps."""
    told = ""
    if data["staged_files"] is not None:
        moved = f"{data['staged_bytes'] / 1e6:.3g} MB in {data['staged_files']} files"
        told += f"; staged {moved} to a node in {data['staged_s']:.1f} s" if data["staged_files"] else "; staged before"
    if data["damaged"]:
        told += f"; {data['damaged']} damaged images left out"
    return told
