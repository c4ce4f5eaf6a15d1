"""Sweeps on ranks that answer at once; the engine, ssh and the agent are the fakes of all tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_ranks import P100, REAL, G, Heard, Site, newest, points, run
from fake_engine import FakeEngine
from hvdctl import links, pipeline
from hvdctl.bench import plan, ranks, results, sweep
from hvdctl.bench.plan import Layout
from hvdctl.bench.session import COMMAND, NOTEBOOK, PointFailed
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, Interrupted, LockedError, PhaseError, UsageError
from hvdctl.links import Measured
from support import RECORD, answer


def test_a_sweep_from_start_to_end(cluster: Cluster, site: Site) -> None:
    heard = Heard()
    outcome = run(cluster, REAL, heard)
    assert (outcome.state, outcome.measured, outcome.failed, outcome.resumed) == ("complete", 4, 0, 0)
    assert site.log == [
        "start 1x1 horovod-gloo",
        "train 1x1 b8",
        "train 1x1 b16",
        "close",
        "start 2x1 horovod-gloo",
        f"link {G}",
        "train 2x1 b8",
        "train 2x1 b16",
        "close",
        "report",
    ]
    records = newest(cluster)
    assert outcome.folder == cluster.folder / "bench" / records[0]["id"]
    bench, end = records[0], records[-1]
    assert (bench["kind"], bench["version"], bench["digest"]) == ("bench", 1, REAL.digest)
    assert bench["versions"]["torch"] == "2.9.1"
    assert bench["image"]["id"] == "sha256:1"
    assert [node["id"] for node in bench["cluster"]["nodes"]] == ["id0", "id1"]
    assert (end["kind"], end["state"], end["reason"]) == ("end", "complete", None)
    one = points(records)["2x1 b16"]
    assert one["images_per_s"] == pytest.approx(2 * 16 / 0.625)
    assert one["images_per_s_ci"] == pytest.approx(0.02 * 2 * 16 / 0.625)
    assert (one["dilation"], one["link_bits"], one["steps"], one["converged"]) == (1.0, G, 3, True)
    assert "fit" in {record["kind"] for record in records}
    assert any("images/s" in note for note in heard.notes)
    assert any("4 of 4, about" in detail for detail in heard.details)


def test_values_of_the_environment_are_not_in_the_results(cluster: Cluster, site: Site) -> None:
    cluster.store_spec(cluster.spec().model_copy(update={"env": {"TOKEN": "s3cret"}}))
    outcome = run(cluster, REAL)
    text = (outcome.folder / results.FILE).read_text()
    assert "TOKEN" in text
    assert "s3cret" not in text


def test_a_bench_keeps_the_line_without_secrets(cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["bench", "--env", "TOKEN=hush hush", "--output", "my results", "--batch", "8", "--option=password=hush"]
    monkeypatch.setattr("sys.argv", ["hvdctl", *words])
    outcome = run(cluster, REAL)
    command = newest(cluster)[0]["command"]
    assert command == "hvdctl bench --env TOKEN=... --batch 8 --option=password=..."
    assert not [file for file in outcome.folder.rglob("*") if file.is_file() and b"hush" in file.read_bytes()]


def test_a_failing_point_is_recorded_with_its_reason_and_the_sweep_goes_on(cluster: Cluster, site: Site) -> None:
    site.fails["train 1x1 b16"] = PointFailed("rank 0 on node0 ended with exit code 137")
    heard = Heard()
    outcome = run(cluster, REAL, heard)
    assert (outcome.state, outcome.measured, outcome.failed) == ("complete", 3, 1)
    failed = points(newest(cluster))["1x1 b16"]
    assert (failed["status"], failed["reason"]) == ("failed", "rank 0 on node0 ended with exit code 137")
    assert "images_per_s" not in failed
    assert any(note.startswith("failed: ") and "exit code 137" in note for note in heard.notes)


def test_after_a_failed_point_ranks_are_started_anew(cluster: Cluster, site: Site) -> None:
    site.fails["train 1x1 b8"] = PointFailed("rank 0 ended")
    run(cluster, REAL)
    at = site.log.index("train 1x1 b8")
    assert site.log[at + 1 : at + 3] == ["start 1x1 horovod-gloo", "train 1x1 b16"]


def test_ranks_that_do_not_start_fail_their_points_alone(cluster: Cluster, site: Site) -> None:
    site.fails["start 2x1"] = PointFailed("mpirun is not installed")
    assert run(cluster, REAL).failed == 2
    assert {key: one["status"] for key, one in points(newest(cluster)).items()} == {
        "1x1 b8": "ok",
        "1x1 b16": "ok",
        "2x1 b8": "failed",
        "2x1 b16": "failed",
    }


@pytest.mark.parametrize("error", [PointFailed("rank 0 ended"), Interrupted("interrupted"), HvdctlError("no way")])
def test_ranks_that_never_came_up_leave_nothing_behind(cluster: Cluster, site: Site, error: HvdctlError) -> None:
    site.fails["start 1x1"] = error
    with pytest.raises(HvdctlError) as failed:
        run(cluster, REAL)
    assert "results so far" not in failed.value.hint
    assert results.latest(cluster.folder) is None
    site.fails.clear()
    assert run(cluster, REAL).measured == 4


def test_what_the_head_refuses_at_the_start_is_told_in_its_words(cluster: Cluster, site: Site) -> None:
    site.fails["start 1x1"] = UsageError("run 3 is under way")
    with pytest.raises(UsageError, match="run 3 is under way"):
        run(cluster, REAL)


def test_dilation_is_undone_in_the_record(cluster: Cluster, site: Site) -> None:
    heard = Heard()
    asked: list[dict[str, Any]] = []
    site.before = asked.append
    run(cluster, replace(P100, batches=(64,), dilation=4.0), heard)
    records = newest(cluster)
    one = next(p for p in results.points(records) if p["nodes"] == 2 and p["net"] == 10 * G)
    compute = 64 / 219.0
    assert one["split_s"]["compute"] == pytest.approx(compute, rel=0.1)
    assert one["step_s"] == pytest.approx(1.25 * one["split_s"]["compute"])
    assert one["step_times_s"] == pytest.approx([share * one["step_s"] for share in (0.9, 1.0, 1.1)])
    assert one["images_per_s"] == pytest.approx(2 * 64 / one["step_s"])
    assert one["late"] == pytest.approx(0.0)
    assert (one["dilation"], one["link_bits"], one["emulated"]) == (4.0, 2.5 * G, True)
    trained = [request for request in asked if request["op"] == "train"]
    assert trained[0]["seconds"] == pytest.approx(4 * one["split_s"]["compute"]), "the ranks do take 4 times as long"
    assert any("(dilation 4)" in note for note in heard.notes)
    assert results.of_kind(records, "calibration") == []


@pytest.mark.parametrize(
    ("files", "damaged", "told"),
    [
        (23, 0, "; staged 4.2 MB in 23 files to a node in 1.5 s"),
        (0, 0, "; staged before"),
        (None, 2, "; 2 damaged images left out"),
        (None, 0, "images/s (dilation"),
    ],
)
def test_what_reading_files_cost_is_told(
    cluster: Cluster, site: Site, files: int | None, damaged: int, told: str
) -> None:
    heard = Heard()
    site.data = {"staged_s": 1.5, "staged_bytes": 4_200_000, "staged_files": files, "damaged": damaged}
    run(cluster, P100, heard)
    assert all(point["data_read"] == site.data for point in results.points(newest(cluster)))
    assert any(told in note for note in heard.notes), heard.notes


def test_dilation_is_found_so_that_the_links_are_the_limit(cluster: Cluster, site: Site) -> None:
    heard = Heard()
    run(cluster, P100, heard)
    records = newest(cluster)
    found = {record["net"]: record["dilation"] for record in results.of_kind(records, "calibration")}
    assert found == {G: 1.0, 10 * G: 10.0}, "2 Gbit/s are carried, half of which may be used"
    assert {(p["nodes"], p["link_bits"]) for p in results.points(records)} == {(1, None), (2, G)}
    assert {(p["nodes"], p["dilation"]) for p in results.points(records)} == {(1, 8.0), (2, 1.0), (2, 10.0)}
    assert any("10g is emulated with time dilation 10: 2x1 ranks move 2 Gbit/s" in note for note in heard.notes)
    assert site.log.index("link None") < site.log.index("allreduce 2x1 2"), "on open links"


def test_a_dilation_that_would_take_for_ever_is_refused(cluster: Cluster, site: Site) -> None:
    site.carried = 1e6
    for _ in range(2):  # also where the same sweep would go on
        with pytest.raises(UsageError, match="1g would take time dilation 2000: a step of") as no:
            run(cluster, P100)
        assert "choose fewer nodes, a lower --net or a smaller --batch" in no.value.hint
        assert site.trained() == []
        assert site.log[-2:] == ["close", f"link {G}"]
    site.carried = 2e9
    run(cluster, P100)
    assert len(site.trained()) == 3, "the CPUs were only busy"


@pytest.mark.parametrize(
    ("net", "carried", "factor"),
    [(None, 1e9, 1.0), (G, None, 1.0), (G, 2e9, 1.0), (G, 1.99e9, 2.0), (10 * G, 4e9, 5.0), (G // 10, 9e9, 1.0)],
)
def test_how_much_slower_time_must_run(
    net: int | None, carried: float | None, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "CARRIED", 0.5)
    assert sweep.dilation(net, carried) == factor


def test_a_late_device_is_told(cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "compute_seconds", lambda point: 0.1)
    honest = ranks._record

    def slow(point: Any, found: Any, dilation: float, compute: Any) -> Any:
        return honest(point, found | {"split_s": {"compute": 0.12}}, dilation, compute)

    monkeypatch.setattr(ranks, "_record", slow)
    heard = Heard()
    run(cluster, replace(P100, dilation=1.0), heard)
    assert any("compute was 20% late: the CPUs are the limit, raise --dilation" in note for note in heard.notes)


@pytest.mark.parametrize("error", [HvdctlError("node0 can't be reached"), Interrupted("x"), ZeroDivisionError()])
def test_links_are_put_back_also_after_an_error(cluster: Cluster, site: Site, error: Exception) -> None:
    site.fails["train 2x1 b32"] = error
    with pytest.raises(type(error)):
        run(cluster, replace(P100, nets=(10**8,), dilation=1.0))
    assert site.log[-2:] == ["close", f"link {G}"]


def test_links_are_put_back_in_the_end(cluster: Cluster, site: Site) -> None:
    run(cluster, replace(REAL, nets=(10**8, None)))
    assert [words for words in site.log if words.startswith("link")] == [
        *(f"link {net}" for net in (10**8, None)),
        f"link {G}",
    ]


def test_a_cluster_that_died_ends_the_sweep_with_one_line_and_the_results_kept(
    cluster: Cluster, site: Site, engine: FakeEngine
) -> None:
    def die(request: dict[str, Any]) -> None:
        if request["batch"] == 8 and site.trained()[-1:] == ["train 1x1 b16"]:
            engine.container("hvdctl-demo-node1")["State"]["Status"] = "exited"
            raise PointFailed("rank 1 on node1 ended with exit code 255")

    site.before = die
    with pytest.raises(HvdctlError) as ended:
        run(cluster, replace(REAL, nets=(10**8,)))
    assert ended.value.message == "lost: node1"
    file = (results.latest(cluster.folder) or Path()) / results.FILE
    assert str(file) in ended.value.hint
    assert "`hvdctl up --name demo`" in ended.value.hint
    records = newest(cluster)
    assert {key: one["status"] for key, one in points(records).items()} == {
        "1x1 b8": "ok",
        "1x1 b16": "ok",
        "2x1 b8": "failed",
    }
    assert (results.state(records), records[-1]["reason"]) == ("failed", "lost: node1")
    assert site.log[-1] != f"link {G}", "Terraform would make the node anew, but not configure it"


def test_a_head_that_can_not_be_reached_ends_the_sweep(cluster: Cluster, site: Site) -> None:
    site.fails["train 2x1 b8"] = HvdctlError("node0 can't be reached: timed out")
    with pytest.raises(HvdctlError, match="node0 can't be reached: timed out") as ended:
        run(cluster, REAL)
    assert "results so far: " in ended.value.hint
    assert (results.state(newest(cluster)), len(points(newest(cluster)))) == ("failed", 2)
    site.fails.clear()
    assert run(cluster, REAL).resumed == 2


def test_links_that_can_not_be_shaped_end_the_sweep(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Cluster, net: int | None, step: Any) -> None:
        raise PhaseError("terraform apply failed: no tc")

    monkeypatch.setattr(pipeline, "relink", refuse)
    with pytest.raises(PhaseError, match="no tc"):
        run(cluster, REAL)
    assert results.state(newest(cluster)) == "failed"


def test_a_lost_node_is_told_before_anything_is_started(cluster: Cluster, site: Site, engine: FakeEngine) -> None:
    engine.container("hvdctl-demo-node1")["State"]["Status"] = "exited"
    with pytest.raises(HvdctlError, match="lost: node1"):
        run(cluster, REAL)
    assert site.log == []
    assert results.latest(cluster.folder) is None


def test_a_missing_image_folder_is_told_before_anything_is_started(cluster: Cluster, site: Site) -> None:
    with pytest.raises(UsageError, match="--data: there is no folder /shared/flowers on the share"):
        run(cluster, replace(REAL, data="flowers"))
    assert site.log == []


def test_the_time_it_will_take_is_agreed_to_before_the_first_point(cluster: Cluster, site: Site) -> None:
    asked: list[tuple[str, float]] = []

    def agree(what: str, seconds: float) -> None:
        asked.append((what, seconds))
        raise UsageError("nothing was changed")

    with pytest.raises(UsageError, match="nothing was changed"):
        run(cluster, REAL, agree=agree)
    assert [what for what, _ in asked] == ["4 points"]
    assert asked[0][1] > 0
    assert site.log == ["start 1x1 horovod-gloo", "close", f"link {G}"]
    run(cluster, REAL)
    assert len(site.trained()) == 4


def test_ranks_that_a_killed_bench_left_are_ended_first(cluster: Cluster, site: Site, fake_nodes: Path) -> None:
    answer(fake_nodes, "list", [{**RECORD, "id": 5, "state": "running", "command": " ".join(COMMAND)}])
    answer(fake_nodes, "cancel", {"id": 5, "state": "cancelled"})
    heard = Heard()
    run(cluster, REAL, heard)
    assert heard.notes[0] == "ended run 5, which a killed bench had left"


def test_a_notebook_that_measures_is_left_alone_and_told(cluster: Cluster, site: Site, fake_nodes: Path) -> None:
    answer(fake_nodes, "list", [{**RECORD, "id": 5, "state": "running", "command": NOTEBOOK}])
    with pytest.raises(LockedError, match=r"a notebook measures .* run 5"):
        run(cluster, REAL)
    assert site.log == []
    assert not list(cluster.folder.glob("bench/*"))
    assert "cancel" not in (fake_nodes / "ssh.log").read_text()


def test_the_network_is_measured_once_for_each_rate_on_the_smallest_and_the_largest_layout(
    cluster: Cluster, site: Site
) -> None:
    asked = replace(REAL, layouts=(Layout(1, 1), Layout(2, 1), Layout(2, 2)), nets=(10**8, G), micro=True)
    heard = Heard()
    run(cluster, asked, heard)
    records = newest(cluster)
    allreduces = [(f"{r['nodes']}x{r['slots']}", r["net"]) for r in results.of_kind(records, "allreduce")]
    assert allreduces == [("2x1", 10**8), ("2x1", G), ("2x2", 10**8), ("2x2", G)]
    assert [(r["net"], len(r["pairs"])) for r in results.of_kind(records, "links")] == [(10**8, 2), (G, 2)]
    assert "slowest link: node0 to node1, 90 Mbit/s, limited to 100 Mbit/s" in heard.notes


def test_the_slowest_link_of_a_sample_says_of_how_many() -> None:
    heard = Heard()
    record = {"net": None, "pairs": [{"source": "node0", "target": "node1", "bits": 9e8}] * 200, "of": 9900}
    sweep._tell_slowest(record, heard)
    assert heard.notes == ["slowest link: node0 to node1, 900 Mbit/s, of 200 measured pairs of 9900"]


def test_a_network_that_cant_be_measured_fails_no_point(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Measured:
        raise HvdctlError("the link from node0 to node1 can't be measured: no answer")

    monkeypatch.setattr(links, "measure", broken)
    heard = Heard()
    outcome = run(cluster, replace(REAL, micro=True), heard)
    assert (outcome.measured, outcome.failed) == (4, 0)
    assert any("the network of 2x1 was not measured: the link from node0" in note for note in heard.notes)


def test_links_that_were_half_shaped_are_put_back(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_: Cluster, net: int | None, step: Any) -> None:
        site.log.append(f"link {net}")
        if net != G:
            raise PhaseError("terraform apply failed")

    monkeypatch.setattr(pipeline, "relink", half)
    with pytest.raises(PhaseError):
        run(cluster, replace(REAL, nets=(G, 10**8)))
    assert [words for words in site.log if words.startswith("link")] == [f"link {G}", f"link {10**8}", f"link {G}"]


def test_ranks_that_have_ended_meanwhile_are_started_anew(
    cluster: Cluster, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(self: Any, session: Any, *_: Any) -> None:
        session.ready = session.layout.nodes == 1

    monkeypatch.setattr(sweep._Bench, "_micro", long)
    outcome = run(cluster, replace(REAL, batches=(8,)))
    assert (outcome.measured, outcome.failed) == (2, 0)
    assert site.log.count("start 2x1 horovod-gloo") == 2


def test_a_timeline_is_kept_of_the_largest_layout(cluster: Cluster, site: Site, fake_nodes: Path) -> None:
    (fake_nodes / "share" / "runs" / "7").mkdir(parents=True)
    asked = replace(P100, nets=(10 * G,), dilation=10.0, timeline=True)
    outcome = run(cluster, asked)
    (record,) = results.of_kind(newest(cluster), "timeline")
    one = next(p for p in results.points(newest(cluster)) if p["nodes"] == 2)
    assert record["point"] == one["key"]
    assert record["ranks"][0]["spans"][-1][2] == pytest.approx(one["step_s"]), "as long as the step, undilated"
    assert (outcome.folder / record["file"]).exists()
    assert "timeline" not in one


def test_settings_reach_the_ranks_and_bytes_the_kernel(cluster: Cluster, site: Site) -> None:
    point = replace(REAL.points()[0], fusion_mb=0.5, cycle_ms=2.5, threads=3)
    made: Any = ranks.start(cluster, point, lambda: 0, {"HOROVOD_TIMELINE": "DYNAMIC"})
    assert made.how["threads"] == 3
    assert made.how["env"] == {
        "HOROVOD_FUSION_THRESHOLD": "524288",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_TIMELINE": "DYNAMIC",
    }
    assert made.purpose == point.session
    assert sweep.scaled(10 * G, 3) == 3_333_333_328
    assert sweep.scaled(None, 3) is None


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (99, "99 s"), (100, "2 min"), (3600, "60 min"), (7200, "2.0 h"), (90000, "25.0 h")],
)
def test_times(seconds: float, shown: str) -> None:
    assert sweep.shown_time(seconds) == shown
