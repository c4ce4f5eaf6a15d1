"""The records of runs that are kept on this machine. They came from nodes: each is checked by itself."""

from __future__ import annotations

import re
from typing import Any

from hvdctl.agent import store
from hvdctl.cluster import Cluster
from hvdctl.errors import UsageError

Record = dict[str, Any]

FINAL = {"succeeded", "failed", "cancelled", "lost", store.UNREADABLE}
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
"""The name of a run's folder."""

_END: store.Shape = {
    "id": int,
    "state": str,
    "started": (int, float, type(None)),
    "duration_s": (int, float, type(None)),
    "exit_code": (int, type(None)),
    "failed_rank": (dict, type(None)),
}
_WORDS = (str, type(None))
_ROW: store.Shape = {**_END, "np": int, "launcher": str, "user_command": _WORDS, "command": _WORDS}
_SHAPE: store.Shape = {**_END, "np": int, "launcher": str, "user_command": str}
_FAILED = {"rank", "node", "exit_code"}


def numbers(cluster: Cluster) -> list[int]:
    """The runs that have a folder here, in order."""
    folders = cluster.runs.iterdir() if cluster.runs.is_dir() else []
    return sorted(int(folder.name) for folder in folders if NUMBER.fullmatch(folder.name))


def load(cluster: Cluster, run: int) -> Record:
    """The record of a run as kept here; an error that names the run if there is none, or if it is damaged."""
    record = _read(cluster, run)
    if record is None:
        raise UsageError(f"there is no run {run} of cluster {cluster.name!r}", hint="`hvdctl jobs` lists all")
    return record


def rows(cluster: Cluster) -> list[Record]:
    """Every run that is kept here, in order; a damaged one says why, and hides no other."""
    found = []
    for run in numbers(cluster):
        try:
            record = _read(cluster, run)
        except UsageError as error:
            found.append(unreadable(run, error.message))
        else:
            found += [{**record, "command": record["user_command"]}] if record else []
    return found


def checked(rows: object) -> list[Record]:
    """Rows as a head told them, each checked by itself; those that are not even numbered are left out."""
    told = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [_row(row) for row in told if NUMBER.fullmatch(str(row.get("id")))]


def whole(record: object, run: int) -> str | None:
    """What is wrong with the record of a run as a head told it; None for one that can be used."""
    problem = store.damage(record, str(run), _END)
    failed = record.get("failed_rank") if isinstance(record, dict) else None
    return problem or ("failed_rank is not whole" if failed and not set(failed) >= _FAILED else None)


def unreadable(run: int, why: str) -> Record:
    nothing = dict.fromkeys(("np", "launcher", "started", "duration_s", "exit_code", "command"))
    return {**nothing, "id": run, "state": store.UNREADABLE, "reason": why}


def _row(row: Record) -> Record:
    run = int(row["id"])
    if row.get("state") == store.UNREADABLE:
        return unreadable(run, str(row.get("reason")))
    problem = store.damage(row, str(run), _ROW)
    return unreadable(run, f"the record of run {run} is damaged: {problem}") if problem else row


def _read(cluster: Cluster, run: int) -> Record | None:
    """The record of a run; None if there is none. An error names the run whose record is damaged."""
    file = cluster.runs / str(run) / "run.json"
    try:
        record = store.read(file)
        problem = store.damage(record, str(run), _SHAPE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = error.strerror or str(error)
    except (ValueError, RecursionError, MemoryError):
        problem = "it is not JSON" if file.stat().st_size else "it is empty"
    if problem:
        raise UsageError(
            f"the record of run {run} of cluster {cluster.name!r} is damaged: {problem}",
            hint=f"it is {file}; the run's logs may be whole",
        )
    if record["state"] not in FINAL:
        record["state"] = "lost"
    return record
