"""Where the results of a bench go: on with an unfinished one of the same sweep on the same terms, else anew."""

from __future__ import annotations

import time
from pathlib import Path

from hvdctl import __version__
from hvdctl.bench import results
from hvdctl.bench.plan import Sweep
from hvdctl.bench.results import Record, Store
from hvdctl.cluster import Cluster, digest
from hvdctl.errors import UsageError


def find(cluster: Cluster, sweep: Sweep, *, output: Path | None, fresh: bool) -> tuple[Store, list[Record]]:
    """Where the results go, and what is there of an earlier try at the same sweep."""
    if output is not None and output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is not a folder")
    latest = output or results.latest(cluster.folder)
    if latest is not None and (latest / results.FILE).exists():
        records = _earlier(latest, given=output is not None)
        if records and not fresh and _same(records, cluster, sweep) and not results.whole(records):
            return Store(latest), records
        if output is not None:
            raise UsageError(
                f"--output {output} holds results already, and not an unfinished part of this bench",
                hint="choose another folder for this one",
            )
    return Store(output or _new(cluster.folder / "bench")), []


def terms(cluster: Cluster) -> Record:
    """What the nodes were asked to be. Values of the environment may be secrets: only whether they change is known."""
    spec = cluster.spec()
    return {"spec": {**spec.shown(), "env": sorted(spec.env)}, "env": digest(sorted(spec.env.items()))}


def _new(folder: Path) -> Path:
    """A folder that is not there yet, named by the time; such names sort by age."""
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    tried = (folder / f"{name}{suffix}" for suffix in ("", *(f"-{count}" for count in range(2, 100))))
    return next(path for path in tried if not path.exists())


def _earlier(folder: Path, *, given: bool) -> list[Record]:
    """The records of an earlier bench. One that can't be read is in nobody's way unless it was asked for."""
    try:
        return results.read(folder)
    except UsageError:
        if given:
            raise
        return []


def _same(records: list[Record], cluster: Cluster, sweep: Sweep) -> bool:
    """Whether they are of this very sweep on these very nodes, by this very hvdctl."""
    bench = results.bench(records)
    on = bench.get("cluster") or {}
    ids = [node.get("id") for node in on.get("nodes") or []]
    same = bench.get("digest") == sweep.digest and ids == [node.id for node in cluster.nodes()]
    ours = (bench.get("versions") or {}).get("hvdctl") == __version__
    return same and ours and all(on.get(name) == value for name, value in terms(cluster).items())
