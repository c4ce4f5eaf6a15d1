from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hvdctl import collect, jobs, providers
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, JobFailed, UsageError
from hvdctl.spec import Spec
from support import RECORD, Hvdctl, answer, keep, make_nodes


@pytest.mark.parametrize("np", [0, -1, 5])
def test_more_ranks_than_slots_are_refused_with_the_number_there_is(np: int) -> None:
    with pytest.raises(UsageError, match=rf"--np {np}: the cluster has 4 slots \(2 nodes of 2\)"):
        jobs.request(jobs.Job(["x"], np=np), Spec(), make_nodes(2, slots=2), "/shared/work/x", 2)


def test_an_unknown_launcher_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'slurm' is not a launcher; choose one of: horovod, mpi, torch"):
        jobs.request(jobs.Job(["x"], launcher="slurm"), Spec(), make_nodes(1), "/shared/work/x", 2)


def test_submit_copies_the_folder_then_asks_the_head(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    answer(fake_nodes, "submit", {"id": 7})
    keep(cluster, 6)
    project = tmp_path / "my project"
    project.mkdir()
    (project / ".hvdctlignore").write_text("data/\n")
    number = jobs.submit(
        cluster,
        jobs.prepare(cluster, jobs.Job(["python", "a b.py"], env={"TOKEN": "secret"}, workdir=project)),
    )
    assert number == 7
    asked = json.loads((fake_nodes / "submit.request.node0").read_text())
    assert asked["command"] == ["python", "a b.py"]
    assert asked["np"] == 4
    assert asked["env"] == {"TOKEN": "secret"}
    assert asked["after"] == 6, "numbers go on after those of earlier clusters"
    copied = (fake_nodes / "rsync.log").read_text().splitlines()
    assert f"{project}/" in copied
    assert f"node0:{asked['workdir']}/" in copied
    assert "--exclude=.git" in copied
    assert f"--exclude-from={project / '.hvdctlignore'}" in copied
    assert "secret" not in (fake_nodes / "ssh.log").read_text(), "the environment is on no command line"


def test_torch_needs_pytorch(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    cluster.store_spec(Spec(name="demo", framework="tensorflow"))
    with pytest.raises(UsageError, match="--launcher torch needs PyTorch"):
        jobs.prepare(cluster, jobs.Job(["x"], launcher="torch", workdir=tmp_path))
    assert not (fake_nodes / "rsync.log").exists()


def test_the_home_folder_is_not_copied_by_accident(
    cluster: Cluster, fake_nodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is no working directory to copy"):
        jobs.prepare(cluster, jobs.Job(["x"]))
    with pytest.raises(UsageError, match="there is no such folder"):
        jobs.prepare(cluster, jobs.Job(["x"], workdir=tmp_path / "gone"))
    assert not (fake_nodes / "rsync.log").exists()


def test_what_the_head_refuses_is_told_in_its_words(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    answer(fake_nodes, "submit", {"error": "run 3 is under way"}, code=2)
    with pytest.raises(UsageError, match="run 3 is under way"):
        jobs.submit(cluster, jobs.prepare(cluster, jobs.Job(["x"], workdir=tmp_path)))


def test_an_agent_that_breaks_is_told_with_its_last_line(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    (fake_nodes / "submit.json").write_text("Traceback\nImportError: no module\n")
    (fake_nodes / "submit.code").write_text("1")
    with pytest.raises(HvdctlError, match="node0: hvd-agent submit failed: ImportError: no module"):
        jobs.submit(cluster, jobs.prepare(cluster, jobs.Job(["x"], workdir=tmp_path)))


def test_a_cancel_that_did_not_end_the_run_says_so(cluster: Cluster, fake_nodes: Path) -> None:
    answer(fake_nodes, "cancel", {"id": 3, "state": "running"}, code=1)
    with pytest.raises(HvdctlError, match="run 3 has not ended yet"):
        jobs.cancel(cluster, 3)


def test_a_copy_that_fails_says_why(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    (fake_nodes / "rsync.fail").write_text("rsync: write failed: No space left on device (28)\nrsync error: 11\n")
    with pytest.raises(HvdctlError, match="copying failed: no space is left on the share"):
        jobs.push(cluster, [tmp_path], "data")
    (fake_nodes / "rsync.fail").write_text("\nssh: connection refused\nrsync error: unexplained (code 255)\n")
    with pytest.raises(HvdctlError, match="copying failed: ssh: connection refused"):
        jobs.push(cluster, [tmp_path], "data")


def follow(cluster: Cluster, interrupts: list[int] | None = None) -> tuple[Any, bytes, list[str]]:
    out, said = bytearray(), list[str]()
    left = list(interrupts or [])
    count = lambda: left.pop(0) if len(left) > 1 else (left or [0])[0]  # noqa: E731
    record = jobs.follow(cluster, 3, out.extend, interrupts=count, say=said.append)
    return record, bytes(out), said


def test_output_is_handed_over_to_the_last_byte(cluster: Cluster, fake_nodes: Path) -> None:
    output = b"[0] caf\xc3\xa9 \xff\n" * 1000 + b"[1] no newline"
    (fake_nodes / "follow.log").write_bytes(output)
    answer(fake_nodes, "show", RECORD)
    record, seen, _ = follow(cluster)
    assert seen == output
    assert record == RECORD


def test_a_lost_connection_is_made_again_without_a_gap_or_a_repeat(
    cluster: Cluster, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (fake_nodes / "follow.log").write_bytes(bytes(range(256)) * 10)
    (fake_nodes / "follow.cut").write_text("1001")
    answer(fake_nodes, "show", RECORD)
    record, seen, _ = follow(cluster)
    assert seen == bytes(range(256)) * 10
    assert record == RECORD
    assert "--from 1001" in (fake_nodes / "ssh.log").read_text()


def test_a_head_that_stays_away_is_told_and_the_run_goes_on(
    cluster: Cluster, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (fake_nodes / "down").write_text("node0\n")
    with pytest.raises(HvdctlError, match=r"the output of run 3 can't be read from node0: .*refused") as failed:
        follow(cluster)
    assert "hvdctl logs -f 3 --name demo" in failed.value.hint


def test_the_first_interrupt_ends_the_run_and_the_second_leaves_it_to_the_head(
    cluster: Cluster, fake_nodes: Path
) -> None:
    (fake_nodes / "follow.log").write_bytes(b"")
    answer(fake_nodes, "show", {**RECORD, "state": "cancelled"})
    answer(fake_nodes, "cancel", {})
    record, _, said = follow(cluster, [1])
    assert record["state"] == "cancelled"
    assert "stopping every rank of run 3" in said[0]
    assert "hvd-agent cancel 3" in (fake_nodes / "ssh.log").read_text()
    assert follow(cluster, [2])[0] is None


@pytest.mark.parametrize(
    ("record", "code", "told"),
    [
        ({"state": "cancelled"}, 130, "run 3 was cancelled"),
        ({"state": "lost"}, 1, "run 3 was lost with its head"),
        (
            {
                "state": "failed",
                "exit_code": 7,
                "failed_rank": {"rank": 2, "node": "node1", "exit_code": 7, "tail": ["Traceback", "ValueError: x"]},
            },
            7,
            "run 3 failed: rank 2 on node1 ended with exit code 7\n    Traceback\n    ValueError: x",
        ),
        ({"state": "failed", "exit_code": 5}, 5, "run 3 failed: the launcher ended with exit code 5"),
        ({"state": "failed", "exit_code": None, "reason": "no such command"}, 1, "run 3 failed: no such command"),
    ],
)
def test_a_run_that_failed_is_judged(record: dict[str, Any], code: int, told: str) -> None:
    with pytest.raises(JobFailed) as failed:
        jobs.judge({"id": 3, **record})
    assert failed.value.message == told
    assert failed.value.exit_code == code


def test_a_run_that_succeeded_is_no_error() -> None:
    jobs.judge(RECORD)


def test_rows_are_of_the_head_and_of_clusters_before_it(cluster: Cluster, fake_nodes: Path) -> None:
    keep(cluster, 1)
    keep(cluster, 2, state="running")
    (cluster.runs / "notes").mkdir()
    answer(fake_nodes, "list", [{**RECORD, "id": 10, "state": "running"}, {**RECORD, "id": 2, "state": "failed"}])
    rows = jobs.rows(cluster)
    assert [(row["id"], row["state"]) for row in rows] == [(1, "succeeded"), (2, "failed"), (10, "running")]
    assert jobs.latest(cluster) == 10
    assert jobs.latest(cluster, active=True) == 10


def test_without_a_head_the_copies_kept_here_are_told(cluster: Cluster, fake_nodes: Path) -> None:
    (fake_nodes / "down").write_text("node0\n")
    keep(cluster, 1)
    keep(cluster, 2, state="running")
    assert [(row["id"], row["state"]) for row in jobs.rows(cluster)] == [(1, "succeeded"), (2, "lost")]
    assert jobs.show(cluster, 1)["state"] == "succeeded"
    with pytest.raises(UsageError, match="no run under way"):
        jobs.latest(cluster, active=True)


def test_a_run_that_never_was(cluster: Cluster) -> None:
    gone = Cluster("gone")
    with pytest.raises(UsageError, match="there is no run 9 of cluster 'gone'"):
        jobs.show(gone, 9)
    with pytest.raises(UsageError, match="there is no cluster 'gone'"):
        jobs.latest(gone)


def test_a_run_is_fetched_without_its_secrets(cluster: Cluster, fake_nodes: Path) -> None:
    share = fake_nodes / "share" / "runs" / "3"
    share.mkdir(parents=True)
    (share / "output.log").write_text("hello\n")
    (share / "rank-0.log").write_text("hello 0\n")
    (share / "env.json").write_text('{"TOKEN": "secret"}')
    collect.fetch(cluster, 3)
    assert sorted(file.name for file in (cluster.runs / "3").iterdir()) == ["output.log", "rank-0.log"]
    assert jobs.log_file(cluster, 3, None).read_text() == "hello\n"
    assert jobs.log_file(cluster, 3, 0).read_text() == "hello 0\n"
    with pytest.raises(UsageError, match=r"run 3 has no rank-9\.log") as refused:
        jobs.log_file(cluster, 3, 9)
    assert refused.value.hint == "there are: rank-0"


@pytest.mark.parametrize(
    ("path", "full"), [("", "/shared"), ("data", "/shared/data"), ("/shared/data/x", "/shared/data/x")]
)
def test_paths_on_the_share(path: str, full: str) -> None:
    assert str(jobs.on_share(path)) == full


@pytest.mark.parametrize("path", ["/etc/passwd", "../etc", "a/../../etc", "/shared/../etc", "/sharedx"])
def test_paths_off_the_share_are_refused(path: str) -> None:
    with pytest.raises(UsageError, match="is not on the share; write a path below /shared"):
        jobs.on_share(path)


@pytest.mark.parametrize("path", ["caf\udce9", "a\nb", "x" * 2000])
def test_odd_paths_on_the_share_are_refused_in_one_line(path: str) -> None:
    with pytest.raises(UsageError) as refused:
        jobs.on_share(path)
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 200


def test_each_working_directory_has_a_folder_of_its_own_that_stays() -> None:
    one = jobs.remote_dir(Path("/home/me/my project;x"))
    assert one == jobs.remote_dir(Path("/home/me/my project;x"))
    assert one != jobs.remote_dir(Path("/home/you/my project;x"))
    assert one.startswith("/shared/work/my-project-x-")
    assert jobs.remote_dir(Path("/")).startswith("/shared/work/root-")
    assert jobs.remote_dir(Path("/home/caf\udce9")).startswith("/shared/work/caf--")


def test_two_people_on_one_share_do_not_run_each_others_code(
    hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have their project in a folder of the same path, such as /root/train."""
    answer(fake_nodes, "submit", {"id": 3})

    def folder() -> str:
        assert hvdctl("run", "--name", "demo", "--detach", "--", "x").code == 0
        asked: str = json.loads((fake_nodes / "submit.request.node0").read_text())["workdir"]
        return asked

    assert folder() == jobs.remote_dir(Path.cwd()), "a share of the cluster's own is as it was"
    local = providers.REGISTRY["local"]
    for share, keeps in (("/srv/data", False), ("auto", True)):
        monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "clusters"))
        monkeypatch.setitem(providers.REGISTRY, "local", replace(local, keeps_share=keeps))
        cluster.store_spec(Spec(name="demo", nodes=2, slots=2, share=share))
        first = folder()
        assert first == folder()
        shutil.copytree(tmp_path / "clusters" / "demo", tmp_path / "other" / "demo", dirs_exist_ok=True)
        monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "other"))
        assert folder() != first


def test_push_refuses_what_is_not_there_and_goes_below_the_share(
    cluster: Cluster, fake_nodes: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"there is no .*gone here"):
        jobs.push(cluster, [tmp_path / "gone"], "")
    assert not (fake_nodes / "rsync.log").exists()
    assert jobs.push(cluster, [tmp_path], "data") == "/shared/data"
    assert "node0:/shared/data/" in (fake_nodes / "rsync.log").read_text().splitlines()


def test_pull_brings_it_here(cluster: Cluster, fake_nodes: Path, tmp_path: Path) -> None:
    (fake_nodes / "share" / "out").mkdir(parents=True)
    (fake_nodes / "share" / "out" / "model").write_text("weights")
    jobs.pull(cluster, "out/", tmp_path / "here" / "results")
    assert (tmp_path / "here" / "results" / "out" / "model").read_text() == "weights"
