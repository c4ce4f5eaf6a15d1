"""Runs and benches from the share to the cluster's folder. What is here already is never replaced by something else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hvdctl import incoming, jobs
from hvdctl.agent import store
from hvdctl.cluster import Cluster
from hvdctl.records import NUMBER

_SECRET = "env.json"  # noqa: S105 - the name of the file that stays on the share
_RECORD = "run.json"
_RESULTS = "results.jsonl"
_REPORT = "report.html"
_FIGURES = "figures"
# A browser that opens one of these runs the scripts in it.
_PAGES = (".html", ".htm", ".xhtml", ".xht", ".shtml", ".svg", ".mht", ".mhtml")


def fetch(cluster: Cluster, run: int, say: Callable[[str], None] = lambda text: None) -> Path:
    """Copy the record and logs of a run; `say` gets what was left on the share."""
    arrived = _bring(cluster, [f"runs/{run}"], incoming.LIMIT)
    for note in arrived.notes():
        say(f"run {run}: {note}; `hvdctl pull runs/{run} --name {cluster.name}` may bring it")
    return cluster.runs / str(run)


def results(cluster: Cluster, limit: int = incoming.LIMIT) -> incoming.Arrived:
    """Copy the records of all runs, and the benches that were measured in notebooks; what came and what did not."""
    return _bring(cluster, ["runs", "bench"], limit)


def _bring(cluster: Cluster, names: Sequence[str], limit: int) -> incoming.Arrived:
    listed, skipped = incoming.listed(cluster, str(jobs.SHARE), names, cluster.folder)
    things = _compared([thing for thing in listed if not _stays(cluster, os.fsdecode(thing.name), thing.size)])
    pages = {thing.name for thing in things if thing.new and not thing.folder}
    taken, left = incoming.chosen(things, limit, lambda name: _no_result(name, new=os.fsencode(name) in pages))
    known = _Known(cluster)
    arrived = incoming.copy(
        cluster, str(jobs.SHARE), taken, cluster.folder, modes=incoming.PRIVATE, limit=limit, keeps=known.keeps
    )
    arrived.left = [*skipped, *left, *(replace(one, hint=_aside(cluster, one.name)) for one in arrived.left)]
    return arrived


def _compared(things: Sequence[incoming.Thing]) -> list[incoming.Thing]:
    """The same things, with the record of each run of which something is to come: size and time can be forged."""
    runs = {b"/".join(thing.name.split(b"/")[:2]) for thing in things if thing.new and not thing.folder}
    records = {run + b"/" + _RECORD.encode() for run in runs}
    return [replace(thing, new=True) if thing.name in records else thing for thing in things]


def _stays(cluster: Cluster, name: str, size: int) -> bool:
    """Whether something on the share is not for here: a job's secrets, benches that are here, hvdctl's own pages.

    A page could carry a job's own script into the browser. `hvdctl report` makes it and its figures from the results.
    """
    parts = name.split("/")
    if parts[0] == "runs":
        return len(parts) == 3 and parts[2] == _SECRET
    here = cluster.folder / name
    if len(parts) == 3 and parts[2] == _REPORT:
        return True
    if len(parts) == 4 and parts[2] == _FIGURES and parts[3].endswith(".svg"):
        return True
    if len(parts) == 3 and parts[2] == _RESULTS and here.is_file():
        return here.stat().st_size >= size  # a bench that was under way may have grown
    return os.path.lexists(here) and not here.is_dir()


def _no_result(name: str, *, new: bool) -> str:
    parts = name.split("/")
    if parts[0] == "runs" and parts[1:] and not NUMBER.fullmatch(parts[1]):
        return "not the folder of a run"
    return "a page that a browser would run" if new and name.lower().endswith(_PAGES) else ""


def _aside(cluster: Cluster, name: str) -> str:
    """What lets in a run or bench that was refused for the one that is kept here."""
    return (
        f"move {cluster.folder.joinpath(*name.split('/')[:2])} to another folder, so that the one on the share can come"
    )


class _Known:
    """What is here already under the names that arrive."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.refused: dict[str, str] = {}

    def keeps(self, name: str, staged: Path) -> str:
        """Why the file here must stay; empty if it may be replaced."""
        parts = name.split("/")
        here = self.cluster.folder / name
        if parts[0] == "runs" and len(parts) > 2:
            run = parts[1]
            if run not in self.refused:
                self.refused[run] = self._other_run(run, staged.parents[len(parts) - 1])
            return self.refused[run]
        if parts[0] == "bench" and here.is_file() and not _begins(staged, here):
            return "another bench is kept here"
        return ""

    def _other_run(self, run: str, stage: Path) -> str:
        """Why a run on the share may not be the one that is kept here under its number; empty if it is, or none is."""
        record = f"runs/{run}/{_RECORD}"
        here, there = _started(self.cluster.folder / record), _started(stage / record)
        if here is None or here == there:
            return ""
        if there is None:
            return f"the record of run {run} on the share is missing or damaged"
        return f"another run {run} of {self.cluster.name!r} is kept here"


def _started(record: Path) -> object:
    """When the run of a record began; None if there is no whole record."""
    try:
        found = store.read(record)
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    return found.get("started") if isinstance(found, dict) else None


def _begins(longer: Path, shorter: Path) -> bool:
    """Whether a file begins with all of another one."""
    with longer.open("rb") as one, shorter.open("rb") as other:
        while part := other.read(2**20):
            if one.read(len(part)) != part:
                return False
    return True
