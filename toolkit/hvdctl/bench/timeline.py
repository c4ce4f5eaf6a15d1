"""Timelines: what every rank did when, and Horovod's own record of each tensor, in one file for a trace viewer."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdctl import jobs
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError

_REMOTE = "horovod-timeline.json"
# Horovod numbers its rows from 0; the ranks come above them.
_RANKS = 1_000_000
_STARTED = "start_time_since_epoch_in_micros"
_SPLIT = {"exchange": "exposed"}

Event = dict[str, Any]


def remote(run: int) -> str:
    """Where Horovod writes its own on the share."""
    return str(jobs.SHARE / "runs" / str(run) / _REMOTE)


def keep(cluster: Cluster, run: int, ranks: Sequence[Event], folder: Path, key: str, dilation: float) -> Event:
    """Fetch Horovod's timeline, merge it with the ranks', and return the record for the results."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            jobs.pull(cluster, remote(run), Path(scratch))
            own = parse((Path(scratch) / _REMOTE).read_text(errors="replace"))
        except (HvdctlError, OSError):
            own = []  # torch DDP has none
    about = {"point": key, "dilation": dilation, "note": "times are those of this machine: dilation is not undone"}
    file = f"timeline-{re.sub(r'[^a-z0-9._]+', '-', key)}.json"
    write(folder / file, json.dumps({"traceEvents": merge(ranks, own), "otherData": about}) + "\n", mode=0o644)
    return {
        "kind": "timeline",
        "file": file,
        "point": key,
        "dilation": dilation,
        "ranks": [_short(rank, dilation) for rank in ranks],
    }


def parse(text: str) -> list[Event]:
    """The events of a Horovod timeline, which may lack its end."""
    text = text.strip().rstrip(",")
    whole = text.rpartition("\n")[0].rstrip().rstrip(",")  # without the last event, which may be torn anywhere
    for tried in (text, text + "]", whole + "]"):
        try:
            events = json.loads(tried)
        except ValueError:
            continue
        return [event for event in events if event]
    return []


def merge(ranks: Sequence[Event], own: Sequence[Event]) -> list[Event]:
    """One list of trace events: a row for each rank, then Horovod's, on one clock that starts with the first step."""
    zero = min((rank["zero"] for rank in ranks), default=0.0)
    events: list[Event] = []
    for rank in ranks:
        row = {"pid": _RANKS + rank["rank"], "tid": 0}
        events.append(
            {**row, "ph": "M", "name": "process_name", "args": {"name": f"rank {rank['rank']} {rank['node']}"}}
        )
        events.append({**row, "ph": "M", "name": "process_sort_index", "args": {"sort_index": rank["rank"] - _RANKS}})
        shift = rank["zero"] - zero
        for name, start, end in rank["spans"]:
            begin, length = (shift + start) * 1e6, (end - start) * 1e6
            events.append({**row, "ph": "X", "name": name, "ts": round(begin, 1), "dur": round(length, 1)})
    return events + _shifted(own, zero)


def _shifted(own: Sequence[Event], zero: float) -> list[Event]:
    """Horovod counts from the start of its process, and tells when that was."""
    told = [event.get("args") or {} for event in own]
    started = next((args[_STARTED] for args in told if _STARTED in args), None)
    if started is None:
        return []
    offset = started - zero * 1e6
    kept = [event for event in own if _STARTED not in (event.get("args") or {})]
    return [{**event, "tid": 0, "ts": event["ts"] + offset} if "ts" in event else event for event in kept]


def _short(rank: Event, dilation: float) -> Event:
    """For the report: the parts under the names that the split has, in the time of the emulated cluster."""
    spans = [[_SPLIT.get(name, name), start / dilation, end / dilation] for name, start, end in rank["spans"]]
    return {"rank": rank["rank"], "node": rank["node"], "spans": spans}
