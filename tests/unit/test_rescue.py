"""`down` does not delete what it could not bring home."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from hvdctl import guards, incoming, providers, rescue
from hvdctl.cluster import Cluster
from hvdctl.progress import Silent
from hvdctl.sites import local
from hvdctl.spec import Spec
from support import IMAGE, RECORD, Hvdctl, stand


@pytest.fixture
def used(cluster: Cluster, engine: FakeEngine, fake_nodes: Path) -> Cluster:
    """A cluster that stands, with a run and a notebook's bench on its share."""
    cluster.complete("share", 0)
    stand(engine, "node0", "node1")
    for name, text in (("runs/1/run.json", json.dumps({**RECORD, "id": 1})), ("bench/b/results.jsonl", "{}")):
        file = fake_nodes / "share" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return cluster


def stands(cluster: Cluster, engine: FakeEngine) -> bool:
    return cluster.exists and engine.names("containers") == ["hvdctl-demo-node0", "hvdctl-demo-node1"]


def down(hvdctl: Hvdctl, *words: str) -> tuple[int, str]:
    told = hvdctl("down", "--name", "demo", "-y", *words)
    return told.code, told.out + told.err


def test_results_come_home_before_the_share_goes(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "sync", lambda: synced.append(stands(used, engine)))
    assert down(hvdctl)[0] == 0
    assert synced == [True], "they are on the disk before anything is removed"
    assert (used.runs / "1" / "run.json").exists()
    assert (used.folder / "bench" / "b" / "results.jsonl").exists()
    assert engine.containers == {}


def test_only_the_head_is_asked_about(used: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    observe = local.observe

    def observed(cluster: str, nodes: list[str] | None = None) -> dict[str, str]:
        asked.append(nodes)
        return observe(cluster, nodes)

    monkeypatch.setattr(local, "observe", observed)
    rescue.results(used, Silent(), keep_data=False, force=False)
    assert (used.runs / "1" / "run.json").exists()
    assert asked == [["node0"]]


def test_a_failed_copy_keeps_the_cluster_and_force_gives_it_up(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    (fake_nodes / "rsync.fail").write_text("kex_exchange: Connection timed out\n")
    code, told = down(hvdctl)
    assert code == 1
    assert "nothing was removed, as results in /shared/runs and /shared/bench of 'demo' could not be collected" in told
    assert "Connection timed out" in told
    assert "hvdctl down --force --name demo" in told
    assert stands(used, engine)
    assert down(hvdctl, "--force")[0] == 0
    assert (engine.containers, used.exists) == ({}, False)


def test_a_full_disk_here_is_not_blamed_on_the_share(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = shutil.disk_usage("/")._replace(free=10)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: little)
        code, told = down(hvdctl)
    assert code == 1
    assert f"the disk of {used.folder} has 10 bytes free" in told
    assert "space is left on the share" not in told
    assert stands(used, engine)
    assert down(hvdctl)[0] == 0


def test_a_disk_that_fills_while_results_come_is_named(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    said = 'rsync: [receiver] write failed on "/x": No space left on device (28)\n'
    here = fake_nodes / "bin"
    here.mkdir()
    (here / "prlimit").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 11\n")
    (here / "prlimit").chmod(0o755)
    before = os.environ["PATH"]
    try:
        os.environ["PATH"] = f"{here}:{before}"
        code, told = down(hvdctl)
    finally:
        os.environ["PATH"] = before
    assert (code, f"no space is left on this machine's disk, in {used.folder}" in told) == (1, True)
    assert stands(used, engine)


def test_no_room_for_the_folder_itself(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp")

    with monkeypatch.context() as patch:
        patch.setattr(incoming, "copy", lambda cluster, base, things, target, *, modes, limit, keeps: full())
        code, told = down(hvdctl)
    assert (code, "No space left on device (/tmp)" in told) == (1, True)
    assert stands(used, engine)


def test_what_is_too_large_keeps_the_cluster_until_more_is_allowed(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    with (fake_nodes / "share" / "runs" / "1" / "output.log").open("wb") as file:
        file.truncate(100 * 2**20)
    code, told = down(hvdctl, "--max-size", "64m")
    assert code == 1
    assert "left out: runs/1/output.log (over the limit of 64.0 MiB)" in told
    assert "--max-size" in told
    assert (used.runs / "1" / "run.json").exists(), "the others came"
    assert stands(used, engine)
    assert down(hvdctl, "--max-size", "none")[0] == 0
    assert (used.runs / "1" / "output.log").stat().st_size == 100 * 2**20


def test_a_run_that_is_refused_has_a_way_out_of_its_own(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    """It was fetched while it was under way; then a job damaged its record."""
    (used.runs / "1").mkdir(parents=True)
    (used.runs / "1" / "run.json").write_text(json.dumps({**RECORD, "id": 1, "started": 1000.0}))
    (fake_nodes / "share" / "runs" / "1" / "run.json").write_text("{")
    (fake_nodes / "share" / "runs" / "1" / "output.log").write_text("all of it")
    code, told = down(hvdctl)
    assert code == 1
    assert "the record of run 1 on the share is missing or damaged" in told
    assert f"move {used.runs / '1'} to another folder" in told
    assert "--max-size" not in told
    assert "`hvdctl pull runs --name demo` copies them elsewhere" in told
    assert stands(used, engine)
    (used.runs / "1").rename(used.folder / "aside")
    assert down(hvdctl)[0] == 0
    assert (used.runs / "1" / "output.log").read_text() == "all of it"


def test_a_page_of_the_users_own_keeps_the_cluster(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    (fake_nodes / "share" / "bench" / "b" / "notes.html").write_text("mine")
    code, told = down(hvdctl)
    assert code == 1
    assert "left out: bench/b/notes.html (a page that a browser would run)" in told
    assert "`hvdctl pull bench --name demo` copies them elsewhere" in told
    assert stands(used, engine)
    assert down(hvdctl, "--force")[0] == 0


def test_links_and_devices_keep_no_cluster(hvdctl: Hvdctl, used: Cluster, fake_nodes: Path) -> None:
    (fake_nodes / "share" / "runs" / "6").symlink_to("/etc")
    code, told = down(hvdctl)
    assert (code, "left out (not a file or folder): runs/6" in told) == (0, True)
    assert not os.path.lexists(used.runs / "6")


@pytest.mark.parametrize("state", ["exited", None])
def test_a_lost_head_keeps_its_share(hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, state: str | None) -> None:
    """The volume is there, with all that was not collected: `up` makes a head that can be asked."""
    if state:
        engine.container("hvdctl-demo-node0")["State"]["Status"] = state
    else:
        del engine.containers[next(iter(engine.containers))]
    code, told = down(hvdctl)
    assert code == 1
    assert f"the head node0 does not run ({state or 'gone'})" in told
    assert "`hvdctl up --name demo` restores it" in told
    assert used.exists
    assert "hvdctl-demo-node1" in engine.names("containers")
    assert down(hvdctl, "--force")[0] == 0


def test_a_cluster_of_which_nothing_is_left_is_forgotten(hvdctl: Hvdctl, used: Cluster, engine: FakeEngine) -> None:
    engine.containers.clear()
    assert down(hvdctl)[0] == 0
    assert not used.exists


def test_a_share_that_stays_keeps_no_cluster(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    (fake_nodes / "rsync.fail").write_text("broken\n")
    code, told = down(hvdctl, "--keep-data")
    assert (code, "results not collected: copying failed: broken; they stay in" in told) == (0, True)
    assert engine.containers == {}


def test_a_folder_that_is_the_share_stays(
    hvdctl: Hvdctl, used: Cluster, fake_nodes: Path, tmp_path: Path, engine: FakeEngine
) -> None:
    used.store_spec(Spec(name="demo", nodes=2, slots=2, image=IMAGE, share=str(tmp_path)))
    (fake_nodes / "rsync.fail").write_text("broken\n")
    code, told = down(hvdctl)
    assert (code, "they stay in" in told) == (0, True)
    assert engine.containers == {}


@pytest.mark.parametrize("damage", ["{", None])
def test_without_its_records_a_cluster_is_not_taken_for_one_that_ran_nothing(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path, damage: str | None
) -> None:
    records = used.folder / "phases.json"
    records.write_text(damage) if damage else records.unlink()
    (fake_nodes / "rsync.fail").write_text("Connection timed out\n")
    code, told = down(hvdctl)
    assert code == (2 if damage else 1), told
    assert ("phases.json is not what hvdctl wrote" if damage else "nothing was removed") in told
    assert "--force" in told
    assert stands(used, engine)
    assert down(hvdctl, "--force")[0] == 0


def test_what_came_home_is_not_all_if_the_head_went_on(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    """A `down` that was ended after it had collected, and removed nothing; later the head stopped."""
    used.complete("collected", 0)
    engine.container("hvdctl-demo-node0")["State"]["Status"] = "exited"
    code, told = down(hvdctl)
    assert (code, "the head node0 does not run (exited)" in told) == (1, True), told
    assert engine.containers


def test_a_half_made_cluster_has_nothing_to_save(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, fake_nodes: Path
) -> None:
    for phase in ("share", "configure"):
        used.forget(phase)
    (fake_nodes / "rsync.fail").write_text("nobody is there\n")
    assert down(hvdctl)[0] == 0
    assert engine.containers == {}


def test_a_cluster_that_took_kept_data_has_something_to_save(engine: FakeEngine, cluster: Cluster) -> None:
    local = providers.REGISTRY["local"]
    assert not guards.kept_data(Cluster("new"), local)
    stand(engine, "share", cluster="new")
    assert guards.kept_data(Cluster("new"), local)
    assert not guards.kept_data(cluster, local), "one that is known has its own records"


def test_a_down_that_was_cut_short_after_all_came_home_is_gone_on_with(
    hvdctl: Hvdctl, used: Cluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_only(cluster: str, *, keep_data: bool, step: object) -> None:
        del engine.containers[next(iter(engine.containers))]

    with monkeypatch.context() as half:
        half.setattr(local, "sweep", first_only)
        code, told = down(hvdctl)
    assert (code, "still there: container hvdctl-demo-node1" in told) == (1, True)
    assert (used.runs / "1" / "run.json").exists()
    assert down(hvdctl)[0] == 0
    assert engine.containers == {}


def test_after_another_up_results_are_asked_for_again(used: Cluster) -> None:
    used.complete("collected", 0)
    rescue.outdated(used)
    assert not used.record("collected")
