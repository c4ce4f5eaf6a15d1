"""The results file survives kills, tells what is wrong with it, and never gives an efficiency without a baseline."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import bench_sample as sample
import pytest
from hvdctl.bench import results
from hvdctl.errors import UsageError
from support import Hvdctl


def point(model: str = "resnet50", batch: int = 32, nodes: int = 1, net: int | None = 10**9, **axes: Any) -> Any:
    return sample.point(model, batch, nodes, net, random.Random(1), **axes)


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    store = results.Store(tmp_path / "new" / "folder")
    for record in sample.records():
        store.append(record)
    assert store.read() == sample.records()
    assert results.read(tmp_path / "new" / "folder") == results.read(tmp_path / "new" / "folder" / "results.jsonl")


def test_unknown_kinds_and_keys_are_kept(tmp_path: Path) -> None:
    odd = [sample.bench() | {"mood": "good"}, {"kind": "weather", "sun": True}]
    assert results.read(sample.write(tmp_path, odd)) == odd


def test_the_torn_line_of_a_killed_run_is_passed_over_and_then_cut_off(tmp_path: Path) -> None:
    store = results.Store(tmp_path)
    store.append(sample.bench())
    with store.path.open("a") as file:
        file.write('{"kind": "point", "key": "resn')
    assert [record["kind"] for record in store.read()] == ["bench"]
    store.append(point())
    assert [record["kind"] for record in store.read()] == ["bench", "point"]
    assert "resn\n" not in store.path.read_text()


def test_a_last_record_without_a_newline_is_not_lost(tmp_path: Path) -> None:
    store = results.Store(tmp_path)
    store.append(sample.bench())
    with store.path.open("a") as file:
        file.write(json.dumps(point()))
    assert len(store.read()) == 2
    store.append(point(nodes=2))
    assert [record.get("nodes") for record in store.read()] == [None, 1, 2]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no record of a bench"),
        (b"\n\n", "has no record of a bench"),
        (b'{"kind": "end", "state": "complete"}\n', "has no record of a bench"),
        (b"hello\nyou\n", "line 1 is not JSON: 'hello'"),
        (b"[1, 2]\n", "line 1 is no record: '[1, 2]'"),
        (b'{"no": "kind"}\n', "line 1 is no record"),
        (b"\x89PNG\xff\xfe\n", "is not a results file: it holds bytes that are not text"),
        (b'{"kind": "bench", "version": 9, "id": "x", "created": 1}\n', "line 1 has version 9 of the format"),
        (b'{"kind": "bench", "id": "x", "created": 1}\n', "line 1 has version None"),
        (b'{"kind": "bench", "version": 1, "id": "x"}\n', "line 1: the bench has no 'created'"),
    ],
)
def test_a_file_that_is_not_a_results_file(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "results.jsonl").write_bytes(content)
    with pytest.raises(UsageError) as error:
        results.read(tmp_path)
    assert told in error.value.message
    assert str(tmp_path / "results.jsonl") in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batch": "many"}, 'batch of the point can\'t be "many"'),
        ({"batch": True}, "batch of the point can't be true"),
        ({"ranks": 0}, "ranks of the point can't be 0"),
        ({"status": "fine"}, 'status of the point can\'t be "fine"'),
        ({"images_per_s": None}, "images_per_s of the point can't be null"),
        ({"images_per_s": -1}, "images_per_s of the point can't be -1"),
        ({"images_per_s": float("nan")}, "images_per_s of the point can't be NaN"),
        ({"split_s": [1, 2]}, "split_s of the point can't be [1, 2]"),
        ({"dilation": 0}, "dilation of the point can't be 0"),
    ],
)
def test_a_point_that_can_t_be_right(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match="line 2: ") as error:
        results.read(sample.write(tmp_path, [sample.bench(), point() | change]))
    assert told in error.value.message


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "links", "net": None, "pairs": [{"source": "a", "target": "b"}]},
        {"kind": "links", "net": None, "pairs": None},
        {"kind": "allreduce", "nodes": 2, "slots": 1, "ranks": 2, "net": None, "rows": [{"bytes": 1}]},
        {"kind": "timeline", "ranks": [{"rank": 0, "spans": [["forward", 0]]}]},
        {"kind": "prediction", "model": "vgg16"},
        {"kind": "end"},
    ],
)
def test_other_records_are_checked_too(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"results.jsonl, line 2: .* of? ?the|results.jsonl, line 2: the"):
        results.read(sample.write(tmp_path, [sample.bench(), record]))


@pytest.mark.parametrize("name", ["nothing-here", "nothing/here.jsonl", "x" * 300])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"there is no results file|can't be read"):
        results.read(tmp_path / name)


def test_of_a_point_that_was_run_again_the_last_counts() -> None:
    again = sample.records()
    points = results.points(again)
    tried = [record for record in again if record.get("key") == points[0]["key"]]
    assert [record["status"] for record in tried] == ["failed", "ok"]
    assert points[0]["status"] == "ok"
    assert len({one["key"] for one in points}) == len(points) == 68


def test_efficiency_is_the_share_of_the_single_rank_s_rate() -> None:
    one, four = point(nodes=1), point(nodes=4)
    one["images_per_s"], four["images_per_s"] = 200.0, 600.0
    assert results.efficiency(four, [one, four]) == 0.75
    assert results.efficiency(one, [one, four]) == 1.0


@pytest.mark.parametrize(
    "other",
    [
        {"model": "vgg16"},
        {"batch": 64},
        {"device": "emulated:k80"},
        {"device": "real"},
        {"launcher": "torch-ddp"},
        {"threads": 2},
        {"data": "/shared/flowers"},
        {"scaling": "strong"},
        {"slots": 2},
        {"nodes": 2},
    ],
)
def test_no_efficiency_without_the_same_single_rank(other: dict[str, Any]) -> None:
    four = point(nodes=4)
    assert results.baseline(four, [point(**other), four]) is None
    assert results.efficiency(four, [point(**other), four]) is None


def test_a_failed_point_has_no_efficiency_and_is_no_baseline() -> None:
    one, four = point(), point(nodes=4)
    assert results.efficiency(sample.failed(four, "gone"), [one, four]) is None
    assert results.efficiency(four, [sample.failed(one, "gone"), four]) is None


def test_strong_scaling_is_measured_by_the_same_global_batch() -> None:
    whole = point(batch=64, scaling="strong")
    wrong = point(batch=32, scaling="strong")
    half = point(batch=32, nodes=2, scaling="strong")
    assert results.baseline(half, [wrong, whole, half]) is whole


def test_a_single_rank_of_another_link_will_do_but_one_of_the_same_is_preferred() -> None:
    slow, fast, four = point(net=10**9), point(net=10**10), point(nodes=4, net=10**10)
    assert results.baseline(four, [slow, four]) == slow
    assert results.baseline(four, [slow, fast, four]) == fast
    assert results.baseline(four, [fast, slow, four]) == fast


def test_series_are_in_order_whatever_the_order_of_the_records() -> None:
    mixed = [point(nodes=n, net=net) for net in (None, 10**10, 10**9) for n in (4, 1, 2)]
    found = results.series(mixed, ["net"])
    assert list(found) == [(10**9,), (10**10,), (None,)]
    assert all([one["ranks"] for one in group] == [1, 2, 4] for group in found.values())


def test_benches_are_listed_with_their_state(tmp_path: Path) -> None:
    def bench(cluster: str, name: str, lines: list[Any]) -> None:
        sample.write(tmp_path / cluster / "bench" / name, lines)

    whole = sample.records()
    bench("a", "1", whole)
    bench("a", "2", [sample.bench() | {"created": sample.CREATED + 10}, point()])
    bench("b", "3", [sample.bench() | {"created": sample.CREATED + 20}, {"kind": "end", "state": "interrupted"}])
    (tmp_path / "b" / "bench" / "4").mkdir()
    bench("b", "5", [{"kind": "end", "state": "complete"}])
    found = {row["id"]: row for row in results.benches(tmp_path)}
    assert {name: row["state"] for name, row in found.items()} == {
        "1": "complete",
        "2": "unfinished",
        "3": "interrupted",
        "5": "unreadable",
    }
    assert (found["1"]["ok"], found["1"]["failed"], found["1"]["cluster"]) == (67, 1, "a")
    assert "no record of a bench" in found["5"]["reason"]
    assert results.latest(tmp_path / "a") == tmp_path / "a" / "bench" / "2"
    assert results.latest(tmp_path / "c") is None
    assert results.benches(tmp_path / "nothing") == []


def test_a_bench_that_went_on_after_its_end_is_unfinished_until_it_ends_again() -> None:
    end = {"kind": "end", "state": "interrupted"}
    assert results.state([sample.bench(), end]) == "interrupted"
    assert results.state([sample.bench(), end, point()]) == "unfinished"


def test_a_bench_is_found_by_id_folder_or_file(tmp_path: Path) -> None:
    folder = sample.write(tmp_path / "demo" / "bench" / "20261117-031500", sample.records())
    file = folder / "results.jsonl"
    assert results.locate("20261117-031500", tmp_path) == file
    assert results.locate(str(folder), tmp_path) == results.locate(str(file), tmp_path) == file
    with pytest.raises(UsageError, match="there is no bench 'yesterday'"):
        results.locate("yesterday", tmp_path)
    sample.write(tmp_path / "other" / "bench" / "20261117-031500", sample.records())
    with pytest.raises(UsageError, match="is of several clusters: "):
        results.locate("20261117-031500", tmp_path)


def test_report_list_on_the_command_line(hvdctl: Hvdctl, tmp_path: Path) -> None:
    assert "no benches; `hvdctl bench` makes one" in hvdctl("report", "list").out
    sample.write(tmp_path / "clusters" / "demo" / "bench" / "20261117-031500", sample.records())
    told = hvdctl("report", "list")
    assert told.code == 0
    assert told.out.splitlines()[1].split()[:2] == ["demo", "20261117-031500"]
    (row,) = json.loads(hvdctl("report", "list", "--json").out)
    assert (row["state"], row["ok"], row["failed"]) == ("complete", 67, 1)
