"""A bench that goes on where an earlier one stopped, and one that must not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_ranks import P100, REAL, Heard, Site, interrupted, newest, points, run
from hvdctl.bench import results
from hvdctl.bench.session import PointFailed
from hvdctl.cluster import Cluster
from hvdctl.errors import UsageError


def test_the_same_sweep_tries_failed_points_again_and_no_others(cluster: Cluster, site: Site) -> None:
    site.fails["train 2x1 b8"] = PointFailed("rank 1 ended")
    first = run(cluster, REAL)
    site.fails.clear()
    site.log.clear()
    second = run(cluster, REAL)
    assert site.trained() == ["train 2x1 b8"]
    assert (second.folder, second.measured, second.failed, second.resumed) == (first.folder, 4, 0, 3)


def test_an_interrupted_sweep_goes_on_where_it_stopped(cluster: Cluster, site: Site) -> None:
    file = interrupted(cluster, site, "train 2x1 b8")
    kept = file.read_text()
    assert (results.state(newest(cluster)), len(points(newest(cluster)))) == ("interrupted", 2)
    assert site.log[-1] == "close"
    site.log.clear()
    heard = Heard()
    outcome = run(cluster, REAL, heard)
    assert site.trained() == ["train 2x1 b8", "train 2x1 b16"]
    assert (outcome.folder, outcome.measured, outcome.resumed) == (file.parent, 4, 2)
    assert "going on: 2 of 4 points are measured already" in heard.notes
    assert file.read_text().startswith(kept), "what was written stays"
    assert len(results.of_kind(newest(cluster), "bench")) == 1


@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_a_killed_sweep_goes_on_also_after_a_torn_last_line(cluster: Cluster, site: Site, cut: int) -> None:
    file = interrupted(cluster, site, "train 2x1 b8")
    whole = [line for line in file.read_bytes().splitlines(keepends=True) if b'"kind": "end"' not in line]
    file.write_bytes(b"".join(whole)[:-cut])
    site.log.clear()
    outcome = run(cluster, REAL)
    assert (outcome.folder, outcome.measured, outcome.failed) == (file.parent, 4, 0)
    torn = [] if cut == 1 else ["train 1x1 b16"]
    assert site.trained() == [*torn, "train 2x1 b8", "train 2x1 b16"]
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_sweep_that_was_killed_in_its_first_line_is_in_nobodys_way(cluster: Cluster, site: Site) -> None:
    folder = cluster.folder / "bench" / "20200101-000000"
    folder.mkdir(parents=True)
    (folder / results.FILE).write_text('{"kind": "bench", "vers')
    outcome = run(cluster, REAL)
    assert (outcome.measured, outcome.folder != folder) == (4, True)


@pytest.mark.parametrize("change", ["sweep", "nodes", "fresh", "whole"])
def test_another_sweep_starts_anew(cluster: Cluster, site: Site, change: str) -> None:
    if change == "whole":
        run(cluster, REAL)
    else:
        interrupted(cluster, site, "train 2x1 b8")
    old = results.latest(cluster.folder)
    assert old is not None
    old = old.rename(old.with_name("20200101-000000"))
    asked = replace(REAL, ci=0.01) if change == "sweep" else REAL
    if change == "nodes":
        cluster.store_nodes([replace(node, id=f"new{node.id}") for node in cluster.nodes()])
    site.log.clear()
    outcome = run(cluster, asked, fresh=change == "fresh")
    assert len(site.trained()) == 4
    assert (outcome.folder != old, outcome.resumed) == (True, 0)


def test_a_folder_of_ones_own_is_gone_on_with_too(cluster: Cluster, site: Site, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert interrupted(cluster, site, "train 2x1 b8", output=out) == out / results.FILE
    assert run(cluster, REAL, output=out).resumed == 2
    assert results.latest(cluster.folder) is None


@pytest.mark.parametrize("other", ["sweep", "whole", "sample", "no results"])
def test_a_folder_with_another_benchs_results_is_refused_and_left_alone(
    cluster: Cluster, site: Site, tmp_path: Path, other: str
) -> None:
    file = tmp_path / "out" / results.FILE
    if other == "sample":
        results.Store(file.parent).append({"kind": "bench", "version": 1, "id": "x", "created": 1})
    elif other == "no results":
        file.parent.mkdir()
        file.write_text("hello\n")
    else:
        run(cluster, replace(REAL, ci=0.01) if other == "sweep" else REAL, output=file.parent)
    before = file.read_bytes()
    site.log.clear()
    with pytest.raises(UsageError, match=str(file.parent)):
        run(cluster, REAL, output=file.parent)
    assert file.read_bytes() == before
    assert site.log == []


def test_an_output_that_is_a_file_is_refused_before_anything_starts(
    cluster: Cluster, site: Site, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"--output .*file is not a folder"):
        run(cluster, REAL, output=tmp_path / "file")
    assert site.log == []


def test_a_sweep_that_goes_on_keeps_the_dilation_that_was_found(cluster: Cluster, site: Site) -> None:
    interrupted(cluster, site, "train 2x1 b32", P100)
    site.log.clear()
    site.carried = 1e6
    run(cluster, P100)
    assert not [words for words in site.log if words.startswith("allreduce")]
    assert {p["dilation"] for p in results.points(newest(cluster)) if p["nodes"] == 2} == {1.0, 10.0}


def test_a_changed_environment_starts_a_bench_of_its_own(cluster: Cluster, site: Site) -> None:
    interrupted(cluster, site, "train 2x1 b16")
    cluster.store_spec(cluster.spec().model_copy(update={"env": {"HOROVOD_CYCLE_TIME": "9"}}))
    assert run(cluster, REAL).resumed == 0
    assert len(results.benches(cluster.folder.parent)) == 2
