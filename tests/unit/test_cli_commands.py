"""The verbs as a user calls them, on small nodes and a small engine."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fake_engine import FakeEngine
from hvdctl import __version__
from hvdctl.cluster import Cluster
from support import RECORD, Hvdctl, answer, hold, keep, stand, wait_for


def test_version(hvdctl: Hvdctl) -> None:
    assert hvdctl("--version").out == f"hvdctl {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "sys.argv = ['hvdctl', '--help']\n"
        "from hvdctl.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Usage: hvdctl" in done.stdout
    loaded = set(done.stderr.split())
    heavy = {"docker", "pydantic", "ansible_runner", "yaml", "python_terraform", "tf", "grpc", "jinja2", "requests"}
    heavy |= {"cryptography", "platformdirs", "rich.progress", "rich.status"}
    heavy |= {f"hvdctl.{name}" for name in ("pipeline", "spec", "cluster", "jobs", "images", "engine", "terraform")}
    assert not loaded & heavy


def test_init_writes_a_file_that_plan_and_up_read(hvdctl: Hvdctl) -> None:
    result = hvdctl("init")
    assert result.code == 0
    assert yaml.safe_load(Path("hvdctl.yml").read_text())["nodes"] == 2
    Path("hvdctl.yml").write_text("nodes: 7\n")
    refused = hvdctl("init")
    assert refused.code == 2
    assert "hvdctl.yml exists" in refused.err
    assert Path("hvdctl.yml").read_text() == "nodes: 7\n"
    assert hvdctl("init", "--force").code == 0
    assert hvdctl("init", "no/such/folder.yml").code == 2


def test_schema_is_json(hvdctl: Hvdctl) -> None:
    assert json.loads(hvdctl("schema").out)["properties"]["nodes"]["minimum"] == 1


@pytest.mark.parametrize(
    "words",
    [["up"], ["plan"], ["scale", "--nodes", "5"], ["down", "-y"], ["up", "--dry-run"], ["down", "-y", "--force"]],
)
def test_a_second_process_is_refused_and_the_holder_named(
    hvdctl: Hvdctl, cluster: Cluster, engine: FakeEngine, tmp_path: Path, words: list[str]
) -> None:
    holder = hold()
    try:
        result = hvdctl(words[0], "--name", "demo", *words[1:])
    finally:
        holder.communicate("")
    assert result.code == 3
    assert f"`hvdctl up --nodes 10` (process {holder.pid}" in result.err
    assert engine.containers == {}
    assert cluster.spec().nodes == 2


def test_an_up_that_is_killed_early_keeps_what_was_asked(
    engine: FakeEngine, fake_terraform: Path, tmp_path: Path
) -> None:
    (fake_terraform / "apply.wait").touch()
    words = ["up", "--name", "demo", "--nodes", "5", "--net", "2.5g", "--image", "test/node:1", "-y"]
    killed = subprocess.Popen(
        [sys.executable, "-m", "hvdctl", *words], cwd=tmp_path, env=dict(os.environ), stderr=subprocess.DEVNULL
    )
    try:
        wait_for((fake_terraform / "apply.env").exists, 60)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    spec = Cluster("demo").spec()
    assert (spec.nodes, spec.net) == (5, 2_500_000_000)
    with Cluster("demo").locked("up"):
        pass


def test_an_image_that_is_missing_is_refused_before_anything_is_made(hvdctl: Hvdctl, engine: FakeEngine) -> None:
    result = hvdctl("up", "--name", "demo", "--image", "no/such:1")
    assert result.code == 2
    assert "the engine has no image 'no/such:1'" in result.err
    assert not Cluster("demo").exists
    assert (engine.containers, engine.networks, engine.volumes) == ({}, {}, {})


def test_without_an_engine_up_says_how_to_get_one(hvdctl: Hvdctl) -> None:
    result = hvdctl("up", "--name", "demo", "--image", "x")
    assert result.code == 4
    assert "no Docker engine answers" in result.err
    assert "systemctl start docker" in result.err


def test_without_terraform_plan_says_how_to_get_it(
    hvdctl: Hvdctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = hvdctl("plan", "--image", "x")
    assert result.code == 4
    assert "neither terraform nor tofu is installed" in result.err
    assert not Cluster("default").folder.exists()


def test_down_asks_and_without_a_terminal_refuses(
    hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(fake_nodes, "list", [])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    result = hvdctl("down", "--name", "demo")
    assert result.code == 2
    assert "Remove cluster 'demo' (with all data on its share)?" in result.err
    assert "add -y to agree" in result.err
    assert cluster.exists


def test_fewer_nodes_are_asked_for_before_they_go(
    hvdctl: Hvdctl, cluster: Cluster, engine: FakeEngine, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(fake_nodes, "list", [])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    result = hvdctl("scale", "--name", "demo", "--nodes", "1")
    assert result.code == 2
    assert "Remove 1 of the 2 nodes of 'demo'?" in result.err
    assert cluster.spec().nodes == 2


def test_list_says_how_a_cluster_goes_that_is_not_known_here(hvdctl: Hvdctl, engine: FakeEngine) -> None:
    stand(engine, "node0", cluster="orphan")
    stand(engine, "node0", cluster="older", labels={})
    result = hvdctl("list")
    assert "unknown here" in result.out
    assert "unmarked" in result.out
    assert "`hvdctl down --name orphan --force` removes what is left" in result.err
    assert "older has no owner mark" in result.err


def test_list_and_status_of_nothing(hvdctl: Hvdctl, engine: FakeEngine) -> None:
    assert "no clusters" in hvdctl("list").out
    assert json.loads(hvdctl("list", "--json").out) == []
    assert hvdctl("status").code == 2


def test_exec_on_one_node_takes_its_exit_code(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    result = hvdctl("exec", "--name", "demo", "node1", "--", "sh", "-c", "echo on $NODE; exit 7")
    assert (result.code, result.out) == (7, "on node1\n")
    assert hvdctl("exec", "--name", "demo", "--", "sh", "-c", "echo on $NODE").out == "on node0\n"


def test_exec_on_all_tags_lines_and_names_who_failed(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    result = hvdctl("exec", "--name", "demo", "--all", "--", "sh", "-c", "echo hello; [ $NODE = node0 ]")
    assert result.out == "[node0] hello\n[node1] hello\n"
    assert result.code == 1
    assert "failed on node1 (exit code 1)" in result.err


def test_exec_on_all_can_run_the_program_head(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    (fake_nodes / "file").write_text("first\nsecond\n")
    result = hvdctl("exec", "--name", "demo", "--all", "--", "head", "-n", "1", str(fake_nodes / "file"))
    assert result.out == "[node0] first\n[node1] first\n"


def test_exec_as_json(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    (row,) = json.loads(hvdctl("exec", "--name", "demo", "--json", "node1", "--", "echo", "hi").out)
    assert row == {"node": "node1", "exit_code": 0, "stdout": "hi\n", "stderr": ""}


def test_ssh_prints_its_command(hvdctl: Hvdctl, cluster: Cluster) -> None:
    result = hvdctl("ssh", "--name", "demo", "--print", "node1")
    assert result.out.strip().endswith(f"-F {cluster.ssh_config} -t node1")
    assert hvdctl("ssh", "--name", "demo", "--print", "node7").code == 2


def test_run_shows_output_and_keeps_the_record(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    answer(fake_nodes, "submit", {"id": 3})
    answer(fake_nodes, "show", {**RECORD, "started": 0, "duration_s": 1.5})
    (fake_nodes / "follow.log").write_text("[0] step 1\n[1] step 1\n")
    (fake_nodes / "share" / "runs" / "3").mkdir(parents=True)
    result = hvdctl("run", "--name", "demo", "--", "python", "train.py")
    assert (result.code, result.out) == (0, "[0] step 1\n[1] step 1\n")
    assert "run 3 succeeded in 1.5 s" in result.err


def test_the_exit_code_of_a_run_becomes_ours(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    answer(fake_nodes, "submit", {"id": 3})
    failed = {"rank": 1, "node": "node1", "exit_code": 42, "tail": ["boom"]}
    answer(fake_nodes, "show", {**RECORD, "state": "failed", "exit_code": 42, "failed_rank": failed})
    (fake_nodes / "follow.log").write_text("")
    (fake_nodes / "share" / "runs" / "3").mkdir(parents=True)
    result = hvdctl("run", "--name", "demo", "--", "x")
    assert result.code == 42
    assert "rank 1 on node1 ended with exit code 42\n    boom" in result.err


def test_run_as_json_has_one_document_on_stdout(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    answer(fake_nodes, "submit", {"id": 3})
    answer(fake_nodes, "show", {**RECORD, "duration_s": 1})
    (fake_nodes / "follow.log").write_text("[0] hello\n")
    (fake_nodes / "share" / "runs" / "3").mkdir(parents=True)
    result = hvdctl("run", "--name", "demo", "--json", "--", "x")
    assert json.loads(result.out)["state"] == "succeeded"
    assert "[0] hello" in result.err


def test_jobs_says_where_the_head_can_not_be_asked(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    keep(cluster, 3)
    answer(fake_nodes, "list", [{**RECORD, "id": 4, "command": "x"}])
    whole = hvdctl("jobs", "--name", "demo")
    assert whole.err == ""
    (fake_nodes / "down").write_text("node0\n")
    part = hvdctl("jobs", "--name", "demo")
    assert part.code == 0
    assert "not all" in part.err
    assert len(part.out.splitlines()) == len(whole.out.splitlines()) - 1
    refused = hvdctl("jobs", "--name", "nobody")
    assert refused.code == 2
    assert "there is no cluster 'nobody'" in refused.err


def test_run_detached_says_how_to_follow(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    answer(fake_nodes, "submit", {"id": 4})
    result = hvdctl("run", "--name", "demo", "--detach", "--", "x")
    assert "run 4 started; `hvdctl logs -f 4 --name demo` follows it" in result.out


def test_jobs_logs_and_cancel(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    answer(fake_nodes, "list", [{**RECORD, "state": "running", "exit_code": None}])
    listed = hvdctl("jobs", "--name", "demo").out
    assert listed.splitlines()[0].split() == ["RUN", "STATE", "NP", "LAUNCHER", "TOOK", "EXIT", "COMMAND"]
    assert listed.splitlines()[1].split() == ["3", "running", "4", "horovod", "x"]
    (fake_nodes / "share" / "runs" / "3").mkdir(parents=True)
    (fake_nodes / "share" / "runs" / "3" / "output.log").write_text("[0] said\n")
    answer(fake_nodes, "show", RECORD)
    assert hvdctl("logs", "--name", "demo").out == "[0] said\n"
    answer(fake_nodes, "cancel", {**RECORD, "state": "cancelled"})
    assert "run 3: cancelled" in hvdctl("cancel", "--name", "demo").out


def test_logs_of_a_cluster_that_is_gone_are_kept(hvdctl: Hvdctl) -> None:
    (keep(Cluster("gone"), 1) / "output.log").write_text("[0] before\n")
    assert hvdctl("logs", "--name", "gone").out == "[0] before\n"
    assert "succeeded" in hvdctl("jobs", "--name", "gone").out


def test_push_and_pull(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    Path("data").mkdir()
    assert "data → /shared/sets" in hvdctl("push", "--name", "demo", "data", "--to", "sets").out
    assert hvdctl("push", "--name", "demo", "data", "--to", "../../etc").code == 2
    (fake_nodes / "share").mkdir()
    (fake_nodes / "share" / "model").write_text("weights")
    assert hvdctl("pull", "--name", "demo", "model", "out/").code == 0
    assert Path("out/model").read_text() == "weights"
    for _ in range(2):
        assert hvdctl("pull", "--name", "demo", "model", "mine").code == 0
        assert Path("mine").read_text() == "weights"


def test_the_name_comes_from_the_file(hvdctl: Hvdctl, cluster: Cluster) -> None:
    Path("hvdctl.yml").write_text("name: demo\n")
    assert hvdctl("ssh", "--print").code == 0
    assert "'other'" in hvdctl("ssh", "--print", "--name", "other").err


def test_image_build_names_what_it_knows(hvdctl: Hvdctl) -> None:
    result = hvdctl("image", "build", "mxnet")
    assert result.code == 2
    assert "'mxnet' is not an image; choose one of: pytorch, tensorflow, all, vm" in result.err
