"""`hvdctl bench` as a user calls it: what is wrong is told in one line before anything is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from bench_ranks import Site
from fake_engine import FakeEngine
from hvdctl.bench import plan, results
from hvdctl.bench.session import PointFailed
from hvdctl.cluster import Cluster
from hvdctl.errors import Interrupted
from hvdctl.spec import Spec
from support import Hvdctl


def bench(hvdctl: Hvdctl, *words: str) -> Any:
    return hvdctl("bench", "--name", "demo", "--no-micro", *words)


SMALL = ("--model", "convnet_cifar10", "--batch", "8", "--layout", "kx1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "two"], "--nodes 'two': write whole numbers from 1, with commas: 1,2,4"),
        (["--nodes", "0,1"], "--nodes '0,1': write whole numbers from 1"),
        (["--nodes", "-2"], "--nodes '-2': write whole numbers from 1"),
        (["--nodes", "1,4", "--layout", "kx1"], "layout 4x1 needs 4 nodes, 'demo' has 2"),
        (["--nodes", "100000000"], "layout 100000000x2 needs 100000000 nodes, 'demo' has 2"),
        (["--batch", ""], "--batch '': write whole numbers from 1"),
        (["--batch", "32,x"], "--batch '32,x': write whole numbers from 1"),
        (["--batch", "1.5"], "--batch '1.5': write whole numbers from 1"),
        (["--model", "resnet5"], "no model 'resnet5': there are resnet50"),
        (["--model", ","], "--model ',': write one or more, with commas"),
        (["--net", "fast"], "--net 'fast' is not a link rate; write 100m, 1g, 10g"),
        (["--net", ","], "--net ',': write one or more"),
        (["--device", "gpu"], "--device 'gpu': write real, or emulated:<gpu>"),
        (["--device", "emulated:p10"], "no GPU 'p10': there are p100"),
        (["--device", "emulated:p100", "--model", "convnet_cifar10"], "no published rate of convnet_cifar10 on p100"),
        (["--layout", "2by2"], "--layout '2by2': write NODESxRANKS such as 4x1"),
        (["--layout", "1x8"], "layout 1x8 needs 8 slots on a node, 'demo' has 2"),
        (["--launcher", "slurm"], "--launcher 'slurm' is not known; choose of: horovod-gloo"),
        (["--launcher", " "], "--launcher ' ': write one or more"),
        (["--threads", "many"], "--threads 'many': write whole numbers from 1"),
        (["--scaling", "linear"], "--scaling 'linear': choose of weak, strong, both"),
        (["--scaling", ""], "--scaling '': write one or more"),
        (["--scaling", "strong", "--batch", "2"], "4 ranks can't share 2 images evenly"),
        (["--stage", "maybe"], "--stage 'maybe': choose of no, yes, both"),
        (["--stage", "yes"], "--stage needs --data"),
        (["--data", "/etc"], "'/etc' is not on the share; write a path below /shared"),
        (["--data", "../x"], "'../x' is not on the share"),
        (["--data", "flowers"], "--data: there is no folder /shared/flowers on the share"),
        (["--data", "x", "--device", "emulated:p100"], "--data needs --device real"),
        (["--dilation", "fast"], "--dilation 'fast': write auto, or a factor from 1 to 1000"),
        (["--dilation", "0.5"], "--dilation '0.5': write auto, or a factor from 1 to 1000"),
        (["--dilation", "nan"], "--dilation 'nan': write auto"),
        (["--dilation", "4"], "--dilation needs an emulated device"),
        (["--ci", "0"], "--ci 0: write a number above 0"),
        (["--ci", "nan"], "--ci nan: write a number above 0"),
        (["--ci", "inf"], "--ci inf: write a number above 0"),
        (["--ci", "2%"], "'2%' is not a number"),
        (["--max-steps", "1"], "--max-steps 1: how well a mean is known takes at least 2 steps"),
        (["--max-steps", "-5"], "--max-steps -5: "),
        (["--max-steps", "few"], "'few' is not a whole number"),
        (["--max-seconds", "0"], "--max-seconds 0: write a number above 0"),
        (["--max-seconds", "inf"], "--max-seconds inf: write a number above 0"),
    ],
)
def test_bad_input_is_told_in_one_line(
    hvdctl: Hvdctl, cluster: Cluster, site: Site, words: list[str], told: str
) -> None:
    for more in ([], ["--dry-run"]):
        result = bench(hvdctl, *words, *more)
        assert result.code == 2, result.err
        assert [line for line in result.err.splitlines() if told in line] != [], result.err
        assert result.out == ""
        assert "defect" not in result.err
    assert site.log == []
    assert not (cluster.folder / "bench").exists()


def test_a_cluster_that_is_not_there(hvdctl: Hvdctl, tmp_path: Path) -> None:
    result = hvdctl("bench", "--name", "gone")
    assert (result.code, "there is no cluster 'gone'" in result.err) == (2, True)
    assert not (tmp_path / "clusters" / "gone").exists()


def test_a_cluster_of_tensorflow(hvdctl: Hvdctl, cluster: Cluster, site: Site) -> None:
    cluster.store_spec(Spec(name="demo", framework="tensorflow"))
    result = bench(hvdctl)
    assert (result.code, "bench needs framework: pytorch; 'demo' has tensorflow" in result.err) == (2, True)


def test_a_cluster_that_another_holds(hvdctl: Hvdctl, cluster: Cluster, site: Site) -> None:
    with cluster.locked("up --nodes 10"):
        result = bench(hvdctl, *SMALL)
    assert (result.code, "is held by `hvdctl up --nodes 10`" in result.err) == (3, True)
    assert site.log == []


def test_lost_nodes_are_named(hvdctl: Hvdctl, site: Site, engine: FakeEngine) -> None:
    engine.container("hvdctl-demo-node1")["State"]["Status"] = "exited"
    result = bench(hvdctl, *SMALL)
    assert (result.code, "error: lost: node1" in result.err) == (1, True)
    assert "`hvdctl up --name demo` makes them anew" in result.err


def test_an_output_of_another_bench(hvdctl: Hvdctl, site: Site, tmp_path: Path) -> None:
    assert bench(hvdctl, *SMALL, "--output", str(tmp_path / "out")).code == 0
    result = bench(hvdctl, *SMALL, "--batch", "16", "--output", str(tmp_path / "out"))
    assert result.code == 2
    assert f"--output {tmp_path / 'out'} holds results already" in result.err


def test_a_dry_run_shows_the_points_and_starts_nothing(hvdctl: Hvdctl, cluster: Cluster, site: Site) -> None:
    words = ("--dry-run", "--layout", "kx1", "--net", "1g,10g", "--device", "emulated:p100", "--scaling", "both")
    result = bench(hvdctl, *words)
    assert result.out.splitlines() == [
        f"resnet50 b{batch} {layout} {net} emulated:p100 horovod-gloo {scaling} synthetic"
        for layout in ("1x1", "2x1")
        for net in (("10g",) if layout == "1x1" else ("1g", "10g"))
        for scaling, batch in (("weak", 32), ("strong", 32 if layout == "1x1" else 16))
    ] + ["6 points; nothing was started"]
    data = json.loads(bench(hvdctl, *words, "--json").out)
    assert [one["ranks"] for one in data] == [1] * 2 + [2] * 4
    assert site.log == []
    assert not (cluster.folder / "bench").exists()


def test_by_default_all_nodes_and_slots_at_the_rate_that_the_links_have(hvdctl: Hvdctl, site: Site) -> None:
    told = bench(hvdctl, "--dry-run").out.splitlines()
    layouts = ("1x1", "1x2", "2x2")
    assert told[:-1] == [f"resnet50 b32 {layout} 1g real horovod-gloo weak synthetic" for layout in layouts]


def test_a_result_is_shown_with_its_efficiency(hvdctl: Hvdctl, site: Site) -> None:
    result = bench(hvdctl, *SMALL)
    assert result.code == 0, result.err
    head, one, two = (re.split(r"\s{2,}", line) for line in result.out.splitlines()[1:4])
    assert head[0] == "MODEL"
    assert one == ["convnet_cifar10", "8", "1x1", "1g", "horovod-gloo", "weak", "real", "12.8 ± 0.3", "100%"]
    assert two[2:] == ["2x1", "1g", "horovod-gloo", "weak", "real", "25.6 ± 0.5", "100%"]
    assert re.search(r"2 points in [\d.]+ s; report: /.*/report.html", result.out)


def test_without_its_baseline_no_efficiency_is_shown(hvdctl: Hvdctl, site: Site) -> None:
    result = bench(hvdctl, *SMALL, "--nodes", "2")
    assert "no baseline" in result.out
    assert "%" not in result.out


def test_what_is_emulated_says_so_in_every_row(hvdctl: Hvdctl, site: Site) -> None:
    words = ("--device", "emulated:p100", "--layout", "kx1", "--dilation", "4")
    rows = [line for line in bench(hvdctl, *words).out.splitlines() if line.startswith("resnet50")]
    assert len(rows) == 2
    assert all("emulated:p100 /4" in row for row in rows)


def test_a_failed_point_is_shown_with_its_reason_and_an_exit_code(hvdctl: Hvdctl, site: Site) -> None:
    site.fails["train 2x1 b8"] = PointFailed("rank 1 on node1 ended with exit code 137")
    result = bench(hvdctl, *SMALL)
    assert result.code == 1
    assert "failed: rank 1 on node1 ended with exit code 137" in result.out
    assert "1 failed; the same command tries only those again" in result.out
    site.fails.clear()
    site.log.clear()
    again = bench(hvdctl, *SMALL)
    assert (again.code, site.trained()) == (0, ["train 2x1 b8"]), "as it was said"


def test_an_interrupt_is_told_with_what_is_kept(hvdctl: Hvdctl, site: Site) -> None:
    site.fails["train 2x1 b8"] = Interrupted("interrupted")
    result = bench(hvdctl, *SMALL)
    assert result.code == 130
    assert "error: interrupted; 1 of 2 points are measured and kept" in result.err
    assert "the same command goes on with the rest" in result.err


def test_a_sweep_of_more_than_an_hour_says_so_and_asks(
    hvdctl: Hvdctl, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "guess", lambda _sweep, points, *_, **__: [3700.0 / len(points)] * len(points))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    result = bench(hvdctl, *SMALL)
    assert result.code == 2
    assert "2 points will take about 62 min. Go on? Nobody can be asked here." in result.err
    assert "add -y to agree" in result.err
    assert site.trained() == []
    assert bench(hvdctl, *SMALL, "-y").code == 0
    assert len(site.trained()) == 2


def test_a_sweep_of_less_than_an_hour_does_not_ask(hvdctl: Hvdctl, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "guess", lambda _sweep, points, *_, **__: [3500.0 / len(points)] * len(points))
    assert bench(hvdctl, *SMALL).code == 0


def test_json_is_one_document(hvdctl: Hvdctl, cluster: Cluster, site: Site) -> None:
    data = json.loads(bench(hvdctl, *SMALL, "--json").out)
    assert (data["state"], data["measured"], data["failed"], data["resumed"]) == ("complete", 2, 0, 0)
    assert [point["efficiency"] for point in data["points"]] == [1.0, 1.0]
    assert Path(data["folder"]) == results.latest(cluster.folder)
