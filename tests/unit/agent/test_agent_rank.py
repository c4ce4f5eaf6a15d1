"""The wrapper around one rank, without a launcher."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_node import Node, wait_for
from hvdctl.agent.blame import first_failure, lost_a_peer
from hvdctl.agent.environment import of_command, rank_of
from hvdctl.agent.launchers import Request
from hvdctl.agent.store import AgentError

REQUEST = Request(4, 2, "horovod", (("node0", 1), ("node1", 1)), "eth0", 2)


@pytest.fixture
def run(node: Node) -> Path:
    """A run's folder as submit leaves it."""
    folder = node.runs / "4"
    folder.mkdir(parents=True)
    record = {"id": 4, "state": "succeeded", "command": ["echo", "own"], "workdir": None, "user_command": ""}
    record |= {"np": 2, "launcher": "horovod", "hosts": [["node0", 1], ["node1", 1]]}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "env.json").write_text("{}")
    node.env |= {"HOROVOD_RANK": "1", "HVDCTL_RUN": "4"}
    return folder


def test_odd_output(node: Node, run: Path) -> None:
    wild = b"plain\n\xff\xfe\r10%\r90%\rdone\r\n" + b"x" * 70_000 + b"\nno newline"
    (run / "wild").write_bytes(wild)
    wrapper = node.start("rank", "4", "--", "cat", str(run / "wild"), stdout=subprocess.PIPE)
    said = wrapper.communicate(timeout=30)[0].decode().splitlines()
    assert wrapper.returncode == 0
    assert (run / "rank-1.log").read_bytes() == wild
    assert all(line.startswith("[rank 1 node1] ") for line in said)
    words = [line.removeprefix("[rank 1 node1] ") for line in said]
    assert words[:2] == ["plain", "done"]
    assert "".join(words[2:]) == "x" * 70_000 + "no newline"


def test_both_streams_and_exit_code(node: Node, run: Path) -> None:
    done = node.call("rank", "4", "--", "sh", "-c", "echo out; echo err >&2; exit 9")
    assert done.returncode == 9
    assert done.stdout == "[rank 1 node1] out\n[rank 1 node1] err\n"
    assert json.loads((run / "rank-1.json").read_text())["exit_code"] == 9


def test_command_of_the_run_by_default(node: Node, run: Path) -> None:
    assert node.call("rank", "4").stdout == "[rank 1 node1] own\n"


def test_not_executable_is_126(node: Node, run: Path) -> None:
    done = node.call("rank", "4", "--", str(run / "env.json"))
    assert done.returncode == 126
    assert "Permission denied" in done.stdout


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_signals_reach_the_command(node: Node, run: Path, signum: int, code: int) -> None:
    waiting = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); print('up'); time.sleep(600)"
    wrapper = node.start("rank", "4", "--", sys.executable, "-c", waiting, stdout=subprocess.PIPE)
    assert wrapper.stdout is not None and wrapper.stdout.readline()
    wrapper.send_signal(signum)
    assert wrapper.wait(30) == code
    assert json.loads((run / "rank-1.json").read_text())["told_to_end"] is True
    wait_for(lambda: not node.processes(4))


def test_command_dies_with_a_killed_wrapper(node: Node, run: Path) -> None:
    wrapper = node.start(
        "rank",
        "4",
        "--",
        sys.executable,
        "-c",
        "import time; print(1, flush=True); time.sleep(600)",
        stdout=subprocess.PIPE,
    )
    assert wrapper.stdout is not None and wrapper.stdout.readline()
    wrapper.kill()
    wrapper.wait(30)
    wait_for(lambda: not node.processes(4))


def test_command_ends_when_nobody_listens(node: Node, run: Path) -> None:
    wrapper = node.start("rank", "4", "--", "sh", "-c", "while :; do echo x; sleep .05; done", stdout=subprocess.PIPE)
    assert wrapper.stdout is not None and wrapper.stdout.readline()
    wrapper.stdout.close()
    assert wrapper.wait(30) == 143


def test_command_ends_when_the_shell_above_is_gone(node: Node, run: Path) -> None:
    # As over ssh: the session goes, a shell in between stays.
    agent = f"{sys.executable} {node.agent} rank 4 -- sleep 600"
    upper = subprocess.Popen(["sh", "-c", f"sh -c '{agent}; true'; true"], env=node.env, start_new_session=True)
    wait_for(lambda: (run / "rank-1.json").exists() and len(node.processes(4)) >= 4)
    upper.kill()
    upper.wait()
    wait_for(lambda: not node.processes(4))


def test_reap_takes_only_its_own_run(node: Node, run: Path) -> None:
    others = [subprocess.Popen(["sleep", "600"], env=node.env | {"HVDCTL_RUN": name}) for name in ("44", "5")]
    stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"], env=node.env)
    wait_for(lambda: len(node.processes(4)) == 2)
    assert node.ask("reap", "4", "--grace", "0.2")["left"] == []
    assert stubborn.wait(30) == -signal.SIGKILL
    assert not node.processes(4)
    for other in others:
        assert other.poll() is None
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("launcher", "environ", "rank"),
    [
        ("horovod", {"HOROVOD_RANK": "3", "RANK": "1"}, 3),
        ("mpi", {"OMPI_COMM_WORLD_RANK": "2", "HOROVOD_RANK": "3", "RANK": "1"}, 2),
        ("torch", {"OMPI_COMM_WORLD_RANK": "2", "HOROVOD_RANK": "3", "RANK": "1"}, 1),
    ],
)
def test_rank_of(launcher: str, environ: dict[str, str], rank: int) -> None:
    assert rank_of(launcher, environ) == rank


def test_rank_of_nothing() -> None:
    with pytest.raises(AgentError, match="no rank was given"):
        rank_of("mpi", {"HOME": "/"})


def test_environment_of_a_command() -> None:
    made = of_command({"PATH": "/bin", "OMP_NUM_THREADS": "8"}, {"NCCL_SOCKET_IFNAME": "ib0"}, REQUEST, 1, 8)
    assert made == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "2",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "TP_SOCKET_IFNAME": "eth0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
        "HVDCTL_RUN": "4",
        "HVDCTL_RANK": "1",
    }


@pytest.mark.parametrize(("rank", "cores", "threads"), [(0, 8, "8"), (1, 8, "2"), (4, 8, "2"), (2, 2, "1")])
def test_a_rank_has_its_share_of_its_nodes_own_cores(rank: int, cores: int, threads: str) -> None:
    request = REQUEST._replace(np=5, hosts=(("node0", 1), ("node1", 4)), threads=None)
    assert of_command({"OMP_NUM_THREADS": "1"}, {}, request, rank, cores)["OMP_NUM_THREADS"] == threads


def test_user_cannot_remove_the_marks() -> None:
    assert of_command({}, {"HVDCTL_RUN": "9"}, REQUEST, 1, 8)["HVDCTL_RUN"] == "4"
    assert of_command({}, {}, REQUEST._replace(launcher="mpi"), 1, 8)["HOROVOD_CONTROLLER"] == "mpi"


def failure(rank: int, code: int | None, ended: float, *, told: bool = False, lost: bool = False) -> dict[str, Any]:
    return {"rank": rank, "exit_code": code, "ended": ended, "told_to_end": told, "lost_a_peer": lost}


@pytest.mark.parametrize(
    ("records", "rank"),
    [
        ([failure(0, 143, 1.0, told=True), failure(1, 0, 0.5), failure(2, 3, 2.0), failure(3, None, 0.0)], 2),
        # The cause shuts Horovod down at exit, so the others have failed before it has ended.
        ([failure(0, 1, 1.0, lost=True), failure(1, 7, 1.5, told=True)], 1),
        ([failure(0, 1, 1.0, lost=True), failure(1, 143, 0.5, told=True)], 0),
        ([failure(0, 137, 2.0), failure(1, 1, 1.0, lost=True)], 0),
        ([failure(0, 1, 2.0), failure(1, 1, 1.0)], 1),
    ],
)
def test_first_failure_is_the_cause(records: list[dict[str, Any]], rank: int) -> None:
    failed = first_failure(records)
    assert failed is not None and failed["rank"] == rank


def test_no_failure() -> None:
    assert first_failure([failure(0, 0, 1.0)]) is None


def test_lost_a_peer() -> None:
    assert lost_a_peer(["x", "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."])
    assert lost_a_peer(["RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:4782"])
    assert not lost_a_peer(["ValueError: bad learning rate"])
