"""Jobs on two nodes: every launcher, every way to end, and what is kept of a run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Hvdctl, Output, interrupt, wait_for

pytestmark = pytest.mark.docker

ODD = ["two words", '$HOME;"quoted"', "it's"]


@pytest.mark.parametrize(("launcher", "backend"), [("horovod", "gloo"), ("mpi", "mpi"), ("torch", "torch")])
def test_every_launcher_runs_on_every_node_and_passes_arguments_whole(
    pair: Hvdctl, launcher: str, backend: str
) -> None:
    done = pair("run", "--launcher", launcher, "--", "python", "allreduce.py", *ODD)
    line = "|".join([f"sum 3 of 2 by {backend}", *ODD])
    # torchrun on the one node may complain, untagged, that the other's has left a moment before it.
    said = [one for one in done.out.splitlines() if launcher != "torch" or one.startswith("[rank ")]
    assert sorted(said) == [f"[rank 0 node0] {line}", f"[rank 1 node1] {line}"]


@pytest.mark.parametrize("launcher", ["horovod", "mpi", "torch"])
def test_a_failing_rank_is_named_and_its_exit_code_is_ours(pair: Hvdctl, launcher: str) -> None:
    done = pair("run", "--launcher", launcher, "--", "python", "failing.py", code=7)
    assert "rank 1 on node1 ended with exit code 7" in done.err
    assert "    rank 1 gives up" in done.err
    assert pair.processes("failing.py") == []


def test_what_is_kept_of_a_run(pair: Hvdctl) -> None:
    done = pair("run", "--np", "1", "--json", "--env", "SECRET=hush", "--", "sh", "-c", "echo out; echo err >&2")
    record = done.data
    kept = pair.folder / "runs" / str(record["id"])
    stored = json.loads((kept / "run.json").read_text())
    assert stored["state"] == "succeeded"
    assert stored["exit_code"] == 0
    assert stored["hosts"] == [["node0", 1]]
    assert stored["command"] == ["sh", "-c", "echo out; echo err >&2"]
    assert stored["duration_s"] > 0
    assert sorted((kept / "rank-0.log").read_text().split()) == ["err", "out"]
    assert not any("hush" in file.read_text() for file in kept.iterdir()), "a secret was copied"


def test_the_environment_of_spec_and_command(pair: Hvdctl) -> None:
    done = pair("run", "--np", "1", "--env", "MORE=given here", "--", "sh", "-c", 'echo "$GREETING, $MORE"')
    assert "from the spec, given here" in done.out


def test_ctrl_c_stops_every_rank_on_every_node(pair: Hvdctl) -> None:
    process = pair.start("run", "--", "python", "sleeper.py")
    output = Output(process)
    output.until("sleeping on", times=2)
    interrupt(process)
    assert "was cancelled" in output.rest()
    assert process.returncode == 130
    assert pair.processes("sleeper.py") == []


def test_a_second_ctrl_c_leaves_the_rest_to_the_head(pair: Hvdctl) -> None:
    process = pair.start("run", "--", "python", "sleeper.py", "stubborn")
    output = Output(process)
    output.until("sleeping on", times=2)
    interrupt(process)
    output.until("stopping every rank")
    interrupt(process)
    assert "the head ends run" in output.rest()
    assert process.returncode == 130
    wait_for(lambda: pair.processes("sleeper.py") == [])
    assert wait_for(lambda: pair("jobs", "--json").data[-1]["state"] == "cancelled")


def test_a_run_survives_the_loss_of_hvdctl(pair: Hvdctl, tmp_path: Path) -> None:
    (tmp_path / "ticker.py").write_text((pair.cwd / "ticker.py").read_text())
    here = Hvdctl(pair.home, pair.name, tmp_path)
    process = here.start("run", "--np", "1", "--", "python", "ticker.py")
    Output(process).until("ticker ready")
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = here("jobs", "--json").data[-1]
    assert run["state"] == "running"
    follower = here.start("logs", "-f", str(run["id"]))
    output = Output(follower)
    workdir = json.loads(_on_head(here, f"cat /shared/runs/{run['id']}/run.json"))["workdir"]
    for number in range(1, 4):
        _on_head(here, f"touch {workdir}/go-{number}")
        output.until(f"tick {number}")
    output.rest()
    assert follower.returncode == 0
    assert here("jobs", "--json").data[-1]["state"] == "succeeded"


def test_detached_runs_are_listed_shown_and_cancelled(pair: Hvdctl) -> None:
    number = pair("run", "--detach", "--json", "--", "python", "sleeper.py").data["id"]
    wait_for(lambda: pair("logs", str(number), code=None).out.count("sleeping on") == 2)
    only = pair("logs", str(number), "--rank", "1").out
    assert only == "sleeping on node1 as 1\n"
    assert pair("cancel", "--json").data["id"] == number
    assert pair.processes("sleeper.py") == []
    assert "no run under way" in pair("cancel", code=2).err


def test_two_runs_at_once_do_not_meet(pair: Hvdctl) -> None:
    both = [pair.start("run", "--launcher", one, "--", "python", "allreduce.py", one) for one in ("torch", "horovod")]
    told = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert "sum 3 of 2 by torch|torch" in told[0]
    assert "sum 3 of 2 by gloo|horovod" in told[1]


def test_a_taken_port_is_no_obstacle(pair: Hvdctl) -> None:
    bind = "import socket; s = socket.socket(); s.bind(('', 29400)); s.listen(); print('bound', flush=True)"
    listener = f"{bind}; import time; time.sleep(300)"
    number = pair("run", "--np", "1", "--detach", "--json", "--", "python", "-c", listener).data["id"]
    wait_for(lambda: "bound" in pair("logs", str(number), code=None).out)
    # torchrun's own processes meet at the port: its ranks need not load the framework for that.
    told = pair("run", "--launcher", "torch", "--", "sh", "-c", 'echo "port $MASTER_PORT of $WORLD_SIZE"').out
    ports = [line.split("port ")[1] for line in told.splitlines() if line.startswith("[rank ")]
    assert len(ports) == 2 and len(set(ports)) == 1 and ports[0].endswith(" of 2"), told
    assert not ports[0].startswith("29400 ")
    pair("cancel", str(number))


def test_push_pull_exec_and_ssh(pair: Hvdctl, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("something\n")
    pair("push", str(data), "--to", "sets")
    seen = pair("exec", "--all", "--json", "--", "cat", "/shared/sets/data/a.txt").data
    assert {one["node"]: one["stdout"] for one in seen} == {"node0": "something\n", "node1": "something\n"}
    pair("pull", "sets/data", str(tmp_path / "back"))
    assert (tmp_path / "back" / "data" / "a.txt").read_text() == "something\n"
    assert pair("exec", "node1", "--", "hostname").out == "node1\n"
    assert pair("exec", "--", "sh", "-c", "exit 5", code=5).code == 5
    assert "-F" in pair("ssh", "node1", "--print").out
    assert "node0, node1" in pair("ssh", "node7", code=2).err
    assert "node0, node1" in pair("exec", "node7", "--", "true", code=2).err
    assert "not on the share" in pair("pull", "../etc/passwd", code=2).err


def test_bad_requests_start_nothing(pair: Hvdctl) -> None:
    before = pair("jobs", "--json").data
    assert "2 slots" in pair("run", "--np", "3", "--", "true", code=2).err
    assert "horovod, mpi, torch" in pair("run", "--launcher", "slurm", "--", "true", code=2).err
    assert "novalue=VALUE" in pair("run", "--env", "novalue", "--", "true", code=2).err
    assert "no such folder" in pair("run", "--workdir", "/does/not/exist", "--", "true", code=2).err
    assert "no run 999" in pair("logs", "999", code=2).err
    assert pair("jobs", "--json").data == before


def test_a_command_that_is_not_there(pair: Hvdctl) -> None:
    done = pair("run", "--np", "1", "--", "no-such-program", code=127)
    assert "no-such-program" in done.err


def test_check_finds_all_well(pair: Hvdctl) -> None:
    told = pair("check", "--json").data
    assert told["ok"] is True
    names = [one["name"] for one in told["checks"]]
    assert {"terraform", "engine", "disk", "memory", "cores", "ssh to nodes", "share", "horovod build"} <= set(names)
    assert "link node1" in names


def test_nothing_is_open_to_others(pair: Hvdctl) -> None:
    """Keys are private, no port of the machine is used, and the nodes have no privilege."""
    for file in (pair.folder / "ssh").rglob("*"):
        if file.is_file() and file.suffix != ".pub":
            assert file.stat().st_mode & 0o077 == 0, file
    from hvdctl import engine
    from hvdctl.sites import local

    for node in engine.client().containers.list(filters={"label": f"{local.LABEL}={pair.name}"}):
        assert not any(node.attrs["NetworkSettings"]["Ports"].values())
        assert node.attrs["HostConfig"]["CapDrop"] == ["ALL"]
        assert node.attrs["Config"]["User"] == "1000:1000"
    config = (pair.folder / "ssh" / "config").read_text()
    assert config.count("StrictHostKeyChecking yes") == 2
    assert "StrictHostKeyChecking no" not in _on_head(pair, "cat .ssh/config")


def test_a_changed_host_key_is_refused(pair: Hvdctl, tmp_path: Path) -> None:
    known = pair.folder / "ssh" / "known_hosts"
    right = known.read_text()
    one, two = (line.split(" ", 1) for line in right.splitlines())
    try:
        known.write_text(f"{one[0]} {two[1]}\n{two[0]} {one[1]}\n")
        done = pair("exec", "--", "true", code=None)
        assert done.code != 0
        assert "host key" in done.err.lower()
    finally:
        known.write_text(right)
        known.chmod(0o600)


@pytest.mark.parametrize("launcher", ["horovod", "mpi", "torch"])
def test_a_launcher_gives_nothing_to_a_node_with_another_host_key(pair: Hvdctl, launcher: str) -> None:
    """The head knows the keys of both nodes, here each under the name of the other."""
    swap = "s/^node0/nodeX/; s/^node1/node0/; s/^nodeX/node1/"
    _on_head(pair, f"cp ~/.ssh/known_hosts ~/right && sed -i '{swap}' ~/.ssh/known_hosts")
    try:
        done = pair("run", "--launcher", launcher, "--", "touch", f"/home/hvd/given-{launcher}", code=None)
        assert done.code != 0
        there = pair("exec", "node1", "--", "ls", "/home/hvd").out
        assert f"given-{launcher}" not in there
    finally:
        _on_head(pair, "cp ~/right ~/.ssh/known_hosts")
    assert pair("run", "--launcher", launcher, "--", "true").code == 0


def _on_head(hvdctl: Hvdctl, command: str) -> str:
    return hvdctl("exec", "--", "sh", "-c", command).out
