from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hvdctl.bench import timeline
from hvdctl.cluster import Cluster

START = 1_000_000_000_000_000  # microseconds since the epoch
OWN = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": START}},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "p0_0"}},
    {"ph": "B", "name": "ALLREDUCE", "ts": 2_500_000, "pid": 1},
    {"ph": "E", "ts": 2_600_000, "pid": 1},
]
RANKS: list[dict[str, Any]] = [
    {"rank": 0, "node": "node0", "zero": START / 1e6 + 2.0, "spans": [["forward", 0.0, 0.25], ["exchange", 0.25, 1.0]]},
    {"rank": 1, "node": "node1", "zero": START / 1e6 + 2.5, "spans": [["forward", 0.0, 0.25], ["exchange", 0.25, 0.5]]},
]


def written(events: list[dict[str, Any]], end: str = "\n]\n") -> str:
    return "[\n" + ",\n".join(json.dumps(event) for event in events) + end


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (written(OWN), 4),
        (written(OWN, ",\n"), 4),
        (written(OWN, ""), 4),
        (written(OWN, "\n"), 4),
        (written([*OWN, {}]), 4),
        (written(OWN)[:-5], 3),
        (written(OWN)[:-30], 3),
        (written(OWN, ',\n{"ph": "B", "na'), 4),
        (written(OWN, ",\n{"), 4),
        ("[\n", 0),
        ("", 0),
        ("not JSON", 0),
    ],
)
def test_a_timeline_that_lacks_its_end_is_read_as_far_as_it_goes(text: str, count: int) -> None:
    assert timeline.parse(text) == OWN[:count]


def test_all_that_is_merged_has_one_clock() -> None:
    events = timeline.merge(RANKS, OWN)
    spans = {
        (event["pid"] % 1000, event["name"]): (event["ts"], event["dur"]) for event in events if event["ph"] == "X"
    }
    assert spans == {
        (0, "forward"): (0.0, 250_000.0),
        (0, "exchange"): (250_000.0, 750_000.0),
        (1, "forward"): (500_000.0, 250_000.0),
        (1, "exchange"): (750_000.0, 250_000.0),
    }
    (began,) = (event["ts"] for event in events if event["ph"] == "B")
    assert began == pytest.approx(500_000), "half a second after the first rank's first step"


def test_ranks_have_a_row_each_above_those_of_horovod() -> None:
    told = [event for event in timeline.merge(RANKS, OWN) if event["ph"] == "M"]
    names = {event["pid"]: event["args"]["name"] for event in told if event["name"] == "process_name"}
    order = {event["pid"]: event["args"]["sort_index"] for event in told if event["name"] == "process_sort_index"}
    rows = sorted(names, key=lambda pid: order.get(pid, 0))
    assert [names[pid] for pid in rows] == ["rank 0 node0", "rank 1 node1", "p0_0"]


def test_without_its_start_horovods_part_is_left_out() -> None:
    assert timeline.merge(RANKS, OWN[1:]) == timeline.merge(RANKS, [])


def test_it_is_kept_beside_the_results(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    remote = fake_nodes / "share" / "runs" / "7"
    remote.mkdir(parents=True)
    (remote / "horovod-timeline.json").write_text(written(OWN, ",\n{"))
    record = timeline.keep(cluster, 7, RANKS, tmp_path / "out", "the key", 2.0)
    kept = json.loads((tmp_path / "out" / "timeline-the-key.json").read_text())["traceEvents"]
    assert {"rank 0 node0", "p0_0"} <= {event.get("args", {}).get("name") for event in kept}
    assert (record["kind"], record["file"], record["point"]) == ("timeline", "timeline-the-key.json", "the key")
    assert record["ranks"][0] == {
        "rank": 0,
        "node": "node0",
        "spans": [["forward", 0.0, 0.125], ["exposed", 0.125, 0.5]],
    }, "the dilation of 2 is undone, and the parts are called as in the split"


def test_without_horovods_own_the_ranks_are_kept(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    (fake_nodes / "rsync.fail").write_text("rsync: no such file\n")
    record = timeline.keep(cluster, 7, RANKS, tmp_path, "the key", 1.0)
    kept = json.loads((tmp_path / "timeline-the-key.json").read_text())["traceEvents"]
    assert [event["name"] for event in kept if event["ph"] == "X"] == ["forward", "exchange"] * 2
    assert len(record["ranks"]) == 2
