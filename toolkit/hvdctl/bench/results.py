"""The results of a bench: JSON Lines, appended while it runs, read by the report, the comparison and the fit.

The first record is the bench itself; then come points, micro-benchmarks, the fit, predictions, a timeline and the end.
Unknown kinds and keys are kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hvdctl import files
from hvdctl.bench import shapes
from hvdctl.errors import UsageError

FILE = "results.jsonl"
VERSION = 1

Record = dict[str, Any]

_SAME = ("model", "device", "launcher", "threads", "data", "scaling")


class Store:
    """The results file of one bench, which only grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE

    def append(self, record: Record) -> None:
        """Add one line; it is on the disk when this returns. What a killed run left of its last line goes."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        self.folder.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with self.path.open("a+b") as file:
            _mend(file)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if new:
            files.sync(self.folder)

    def read(self) -> list[Record]:
        return read(self.path)


def read(path: Path) -> list[Record]:
    """Every record of a results file, or of the one in a folder."""
    file = source(path)
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not a results file: it holds bytes that are not text", hint=_HINT) from None
    lines = text.split("\n")
    if lines[-1] and not _whole(lines[-1]):
        lines.pop()  # the torn line of a killed run
    records = [_parse(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not any(record["kind"] == "bench" for record in records):
        raise UsageError(f"{file} has no record of a bench", hint=_HINT)
    return records


def source(path: Path) -> Path:
    """The results file that a file's or a folder's path means."""
    try:
        file = path / FILE if path.is_dir() else path
        there = file.is_file()
    except OSError as error:  # such as a name that is too long
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    if not there:
        raise UsageError(f"there is no results file {file}", hint="`hvdctl report list` shows the benches")
    return file


def locate(word: str, home: Path) -> Path:
    """The results file of a bench, named by its id, its folder or the file itself."""
    if word and "/" not in word:
        found = [path for path in home.glob(f"*/bench/*/{FILE}") if path.parent.name == word]
        if len(found) > 1:
            where = ", ".join(path.parents[2].name for path in found)
            raise UsageError(f"bench {word!r} is of several clusters: {where}", hint="name its folder")
        if found:
            return found[0]
        if not Path(word).exists():
            raise UsageError(f"there is no bench {word!r}", hint="`hvdctl report list` shows the benches")
    return source(Path(word))


def latest(cluster_folder: Path) -> Path | None:
    """The folder of a cluster's newest bench. Ids are dates, so they sort by age."""
    found = sorted(path.parent for path in (cluster_folder / "bench").glob(f"*/{FILE}"))
    return found[-1] if found else None


def benches(home: Path) -> list[Record]:
    """A row for each bench of every cluster, also of clusters that are gone; the newest last."""
    rows = [row(path) for path in home.glob(f"*/bench/*/{FILE}")]
    return sorted(rows, key=lambda one: (one["created"] or 0, one["cluster"], one["id"]))


def row(path: Path) -> Record:
    """A bench in short, by its results file; one that can't be read says why."""
    short: Record = {"cluster": path.parents[2].name, "id": path.parent.name, "created": None, "path": str(path.parent)}
    try:
        records = read(path)
    except UsageError as error:
        return short | {"state": "unreadable", "ok": 0, "failed": 0, "reason": error.message}
    all_points = points(records)
    ok = len(measured(all_points))
    told = {"state": state(records), "ok": ok, "failed": len(all_points) - ok, "reason": records[-1].get("reason")}
    return short | {"created": bench(records)["created"]} | told


def bench(records: Iterable[Record]) -> Record:
    """The record of the bench itself."""
    return next(record for record in records if record["kind"] == "bench")


def state(records: Sequence[Record]) -> str:
    """complete, interrupted or failed; unfinished where the bench still runs or was killed."""
    return str(records[-1].get("state", "unfinished")) if records[-1]["kind"] == "end" else "unfinished"


def whole(records: Sequence[Record]) -> bool:
    """Whether every point is measured: those that failed are tried again."""
    every = points(records)
    return state(records) == "complete" and len(measured(every)) == len(every)


def of_kind(records: Iterable[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def points(records: Iterable[Record]) -> list[Record]:
    """The points, of each key the last one."""
    return list({record["key"]: record for record in of_kind(records, "point")}.values())


def measured(points: Iterable[Record]) -> list[Record]:
    return [point for point in points if point["status"] == "ok"]


def baseline(point: Record, points: Iterable[Record]) -> Record | None:
    """The single rank that a point is measured by: the same in all but the number of ranks and the link."""
    batch = "global_batch" if point["scaling"] == "strong" else "batch"
    same = (*_SAME, batch)
    found = [
        other
        for other in measured(points)
        if other["nodes"] == other["slots"] == 1 and all(other.get(axis) == point.get(axis) for axis in same)
    ]
    own = point | {"net": point.get("own_net", point["net"])}
    liked = ("net", "fusion_mb", "cycle_ms")
    return max(found, key=lambda other: [other.get(axis) == own.get(axis) for axis in liked], default=None)


def efficiency(point: Record, points: Iterable[Record]) -> float | None:
    """The share of ideal that a point reaches; None where it failed or its single rank was not measured."""
    single = baseline(point, points) if point["status"] == "ok" else None
    return point["images_per_s"] / (point["ranks"] * single["images_per_s"]) if single else None


def series(points: Iterable[Record], axes: Sequence[str]) -> dict[tuple[Any, ...], list[Record]]:
    """The points by their values on the axes, both in order; within a group by ranks."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for point in sorted(points, key=lambda point: (point["ranks"], point["nodes"])):
        groups.setdefault(tuple(point.get(axis) for axis in axes), []).append(point)
    return dict(sorted(groups.items(), key=lambda item: [ordered(value) for value in item[0]]))


def ordered(value: Any) -> tuple[int, float, str]:
    """A key to sort values of any kind by: numbers, then words, then what is not set."""
    if value is None:
        return (2, 0.0, "")
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


_HINT = "a results file is what `hvdctl bench` writes: `hvdctl report list` shows them"


def _parse(file: Path, number: int, line: str) -> Record:
    where = f"{file}, line {number}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where} is not JSON: {line[:40]!r}", hint=_HINT) from None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise UsageError(f"{where} is no record: {line[:40]!r}", hint=_HINT)
    kind = record["kind"]
    if kind == "bench" and record.get("version") != VERSION:
        told = f"{where} has version {record.get('version')!r} of the format; this hvdctl reads version {VERSION}"
        raise UsageError(told, hint="read it with the hvdctl that wrote it")
    problem = shapes.wrong(record)
    if problem:
        raise UsageError(f"{where}: {problem}", hint=_HINT)
    return record


def _whole(line: str) -> bool:
    """Whether a last line without an end is a record all the same. No beginning of an object is one."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _mend(file: Any) -> None:
    """Make the file end with a whole line."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    text = file.read()
    start = text.rfind(b"\n") + 1
    if _whole(text[start:].decode(errors="replace")):
        file.write(b"\n")
    else:
        file.truncate(start)
