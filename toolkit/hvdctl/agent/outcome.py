"""How a run ended, from what its ranks recorded and its launcher returned."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from . import store
from .blame import first_failure
from .launchers import Request
from .output import tail


def judge(
    folder: Path,
    request: Request,
    codes: list[int],
    problem: str | None,
    *,
    cancelled: bool,
    told_at: float | None = None,
) -> dict[str, Any]:
    """The final fields of run.json, and `unclean` if processes of the run may be left.

    `told_at` is when the ranks began to be told to end.
    """
    ranks = _records(folder, request, patient=not cancelled and codes != [] and not any(codes))
    done = [record for record in ranks if record and record["exit_code"] == 0]
    # Ranks may well end with 0 when they are told to; a run that was done before anyone told it is a success.
    # A command may be gone before the wrapper around it has heard anything.
    told = cancelled and any(record and _told(record, told_at) for record in ranks)
    clean = len(done) == request.np and not any(codes) and not told
    end: dict[str, Any] = {"state": "succeeded", "exit_code": 0, "reason": None, "failed_rank": None}
    if clean:
        return end | {"unclean": False}
    end["unclean"] = True
    if cancelled:
        return end | {"state": "cancelled", "exit_code": store.CANCELLED, "reason": "cancelled"}
    end["state"] = "failed"
    failed = first_failure([record for record in ranks if record])
    if failed is not None:
        where = {"rank": failed["rank"], "node": failed["node"], "exit_code": failed["exit_code"]}
        end["failed_rank"] = where | {"tail": tail(folder / f"rank-{failed['rank']}.log")}
        end["exit_code"] = failed["exit_code"]
        end["reason"] = failed.get("problem") or (
            f"rank {failed['rank']} on {failed['node']} ended with exit code {failed['exit_code']}"
        )
        return end
    end["exit_code"] = next((code for code in codes if code), 1)
    end["reason"] = problem or _launcher_words(folder, request, ranks, codes)
    return end


def _told(record: dict[str, Any], told_at: float | None) -> bool:
    return bool(record.get("told_to_end")) or (told_at is not None and (record.get("ended") or 0) >= told_at)


def _records(folder: Path, request: Request, *, patient: bool) -> list[dict[str, Any] | None]:
    """What each rank recorded; a share may show files of other nodes a moment late."""
    deadline = time.monotonic() + (3.0 if patient else 0.0)
    while True:
        records = [_record(folder / f"rank-{rank}.json") for rank in range(request.np)]
        complete = all(record and record["exit_code"] is not None for record in records)
        if complete or time.monotonic() >= deadline:
            return records
        time.sleep(0.1)


def _record(path: Path) -> dict[str, Any] | None:
    try:
        return store.read(path)
    except (OSError, ValueError):
        return None


def _launcher_words(folder: Path, request: Request, ranks: list[dict[str, Any] | None], codes: list[int]) -> str:
    if not any(codes):
        silent = [rank for rank, record in enumerate(ranks) if record is None or record["exit_code"] is None]
        named = ", ".join(f"{rank} ({request.host_of(rank)})" for rank in silent)
        return f"no end was recorded by rank {named}"
    words = [line.strip() for line in tail(folder / "output.log", 40) if line.strip("- ")]
    words = [line for line in words if not line.startswith("[rank ")]
    last = f": {words[-1]}" if words else ""
    return f"the launcher ended with exit code {next(code for code in codes if code)}{last}"
