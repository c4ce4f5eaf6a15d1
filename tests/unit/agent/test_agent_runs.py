"""Runs from submit to their end, with real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_node import Node, wait_for
from hvdctl.agent import outcome
from hvdctl.agent.launchers import Request

SAY = "import os, sys; print('rank', os.environ['HVDCTL_RANK'], sys.argv[1:])"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_run_succeeds_and_leaves_nothing(node: Node) -> None:
    run_id = node.submit(*python(SAY), np=3)
    record = node.finished(run_id)
    assert run_id == 1
    assert (record["state"], record["exit_code"], record["failed_rank"]) == ("succeeded", 0, None)
    assert record["duration_s"] == pytest.approx(record["ended"] - record["started"], abs=0.01)
    assert sorted(node.log(1).splitlines()) == [f"[rank {n} localhost] rank {n} []" for n in range(3)]
    assert node.log(1, "rank-2.log") == "rank 2 []\n"
    rank = json.loads(node.log(1, "rank-2.json"))
    assert (rank["rank"], rank["node"], rank["exit_code"]) == (2, "localhost", 0)
    assert not node.processes(1)


def test_words_reach_the_command_unchanged(node: Node) -> None:
    words = ["two words", "it's", '"quoted"', "$HOME", "a;b", "`id`", "*", "", "--", "back\\slash", "ü"]
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd()]))"
    run_id = node.submit(*python(code, *words), hosts=[["localhost", 1], ["node1", 1]])
    assert node.finished(run_id)["state"] == "succeeded"
    for rank in range(2):
        assert json.loads(node.log(run_id, f"rank-{rank}.log")) == [words, str(node.work)]
    assert "[rank 1 node1] " in node.log(run_id)


def test_environment_is_private_and_overrides(node: Node) -> None:
    code = "import os; print(os.environ['TOKEN'], os.environ['OMP_NUM_THREADS'], os.environ['PYTHONUNBUFFERED'])"
    run_id = node.submit(*python(code), np=1, env={"TOKEN": "s3 cret"}, threads=3)
    assert node.finished(run_id)["env"] == ["TOKEN"]
    assert node.log(run_id, "rank-0.log") == "s3 cret 3 1\n"
    folder = node.runs / str(run_id)
    assert stat.S_IMODE((folder / "env.json").stat().st_mode) == 0o600
    assert "s3 cret" not in (folder / "run.json").read_text() + (folder / "supervisor.log").read_text()
    second = node.submit(*python(code), np=1, env={"TOKEN": "", "OMP_NUM_THREADS": "7"}, threads=3)
    assert node.finished(second)["state"] == "succeeded"
    assert node.log(second, "rank-0.log") == " 7 1\n"


def test_failing_rank_is_named_with_its_last_lines(node: Node) -> None:
    code = (
        "import os, sys, time\n"
        "if os.environ['HVDCTL_RANK'] != '1': time.sleep(600)\n"
        "[print('line', n) for n in range(20)]\n"
        "sys.exit(37)"
    )
    run_id = node.submit(*python(code), hosts=[["localhost", 1], ["node1", 2]], np=3)
    record = node.finished(run_id)
    assert (record["state"], record["exit_code"]) == ("failed", 37)
    failed = record["failed_rank"]
    assert (failed["rank"], failed["node"], failed["exit_code"]) == (1, "node1", 37)
    assert failed["tail"] == [f"line {n}" for n in range(5, 20)]
    assert record["reason"] == "rank 1 on node1 ended with exit code 37"
    assert not node.processes(run_id)


def test_killed_rank_counts_as_128_plus_signal(node: Node) -> None:
    run_id = node.submit(*python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), np=1)
    assert node.finished(run_id)["exit_code"] == 137


def test_unknown_command_is_127(node: Node) -> None:
    record = node.finished(node.submit("no-such-program", np=1))
    assert (record["exit_code"], record["reason"]) == (
        127,
        "command not found: no-such-program (rank 0 on localhost)",
    )
    assert record["failed_rank"]["tail"] == ["hvd-agent: command not found: no-such-program"]


def test_missing_workdir_is_told(node: Node) -> None:
    record = node.finished(node.submit("true", np=1, workdir="/no/such/folder"))
    assert record["state"] == "failed"
    assert "working directory /no/such/folder" in record["reason"]


def test_missing_launcher_is_told(node: Node) -> None:
    node.env["PATH"] = "/usr/bin:/bin"
    record = node.finished(node.submit("true", launcher="torch"))
    assert record["state"] == "failed"
    assert "torchrun is not installed" in record["reason"]


def test_cancel_ends_a_stubborn_command(node: Node) -> None:
    run_id = node.submit(*python(STUBBORN), hosts=[["localhost", 1], ["node1", 1]])
    wait_for(lambda: node.log(run_id).count("up") == 2)
    record = node.ask("cancel", str(run_id))
    assert (record["state"], record["exit_code"]) == ("cancelled", 130)
    assert not node.processes(run_id)
    assert node.ask("cancel", str(run_id)) == record


def test_cancel_lets_ranks_say_their_last_words(node: Node) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
        "print('up'); time.sleep(600)"
    )
    run_id = node.submit(*python(code))
    wait_for(lambda: node.log(run_id).count("up") == 2)
    assert node.ask("cancel", str(run_id))["state"] == "cancelled"
    # Wrapper and launcher may both pass the signal on: a slow handler is then called twice.
    assert all(f"[rank {rank} localhost] saved" in node.log(run_id) for rank in (0, 1))


@pytest.mark.parametrize(("told_at", "state"), [(19.5, "cancelled"), (20.5, "succeeded"), (None, "succeeded")])
def test_ranks_that_ended_before_they_were_told_to_are_a_success(
    tmp_path: Path, told_at: float | None, state: str
) -> None:
    """The wrapper of a rank may have heard nothing when its command is gone."""
    record = {"exit_code": 0, "ended": 20.0, "told_to_end": False}
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(record | {"rank": rank, "node": "localhost"}))
    request = Request(1, 2, "horovod", (("localhost", 2),))
    assert outcome.judge(tmp_path, request, [0], None, cancelled=True, told_at=told_at)["state"] == state


def test_killed_supervisor_is_lost_then_cancelled(node: Node) -> None:
    run_id = node.submit(*python(STUBBORN))
    wait_for(lambda: node.log(run_id).count("up") == 2)
    os.kill(node.ask("show", str(run_id))["supervisor"]["pid"], signal.SIGKILL)
    wait_for(lambda: node.ask("show", str(run_id))["state"] == "lost")
    assert node.ask("list")[0]["state"] == "lost"
    assert node.call("follow", str(run_id)).stdout.count("up") == 2
    assert node.ask("cancel", str(run_id))["state"] == "cancelled"
    assert not node.processes(run_id)
    assert node.ask("show", str(run_id))["state"] == "cancelled"


def test_ranks_end_when_the_launcher_is_killed(node: Node) -> None:
    run_id = node.submit(*python("import time; print('up'); time.sleep(600)"))
    wait_for(lambda: node.log(run_id).count("up") == 2)
    for pid in node.processes(run_id):
        if b"horovodrun.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    assert node.finished(run_id)["state"] == "failed"
    assert not node.processes(run_id)


def test_background_process_neither_blocks_nor_stays(node: Node) -> None:
    run_id = node.submit("sh", "-c", "setsid sleep 600 & echo started; exit 0")
    assert node.finished(run_id)["state"] == "succeeded"
    assert not node.processes(run_id)


def test_follow_streams_live_and_ends(node: Node) -> None:
    gate = node.work / "gate"
    code = f"import os, time\nprint('first')\nwhile not os.path.exists({str(gate)!r}): time.sleep(.02)\nprint('last')"
    run_id = node.submit(*python(code), np=1)
    follower = node.start("follow", str(run_id), stdout=subprocess.PIPE)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"[rank 0 localhost] first\n"
    gate.touch()
    assert follower.stdout.read() == b"[rank 0 localhost] last\n"
    assert follower.wait(30) == 0
    skip = len("[rank 0 localhost] first\n")
    assert node.call("follow", str(run_id), "--from", str(skip)).stdout == "[rank 0 localhost] last\n"
    assert node.call("follow", str(run_id), "--rank", "0").stdout == "first\nlast\n"
    assert node.call("follow", str(run_id), "--rank", "1").returncode == 2


def test_torch_ends_all_nodes_when_one_fails(node: Node) -> None:
    node.env["FAKE_SECOND_NODE_FROM"] = "2"
    code = "import os, sys, time; print('up'); time.sleep(600) if os.environ['RANK'] != '2' else sys.exit(5)"
    run_id = node.submit(
        *python(code), launcher="torch", hosts=[["localhost", 2], ["node1", 1]], np=3, interface="eth9"
    )
    record = node.finished(run_id)
    assert (record["state"], record["exit_code"], record["failed_rank"]["node"]) == ("failed", 5, "node1")
    assert not node.processes(run_id)


def test_torch_with_uneven_slots_succeeds(node: Node) -> None:
    node.env["FAKE_SECOND_NODE_FROM"] = "2"
    code = "import os; print(os.environ['RANK'], os.environ['GLOO_SOCKET_IFNAME'])"
    run_id = node.submit(
        *python(code), launcher="torch", hosts=[["localhost", 2], ["node1", 1]], np=3, interface="eth9"
    )
    assert node.finished(run_id)["state"] == "succeeded"
    assert sorted(node.log(run_id).splitlines()) == [
        "[rank 0 localhost] 0 eth9",
        "[rank 1 localhost] 1 eth9",
        "[rank 2 node1] 2 eth9",
    ]


def test_simultaneous_submits_get_different_ids(node: Node) -> None:
    request = {"command": ["true"], "np": 1, "launcher": "horovod", "hosts": [["localhost", 1]]}
    callers = [node.start("submit", stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(6)]
    for caller in callers:
        assert caller.stdin is not None
        caller.stdin.write(json.dumps(request).encode())
        caller.stdin.close()
    answers = [json.loads(caller.stdout.read())["id"] for caller in callers if caller.stdout]
    assert sorted(answers) == [1, 2, 3, 4, 5, 6]
    for run_id in answers:
        assert node.finished(run_id)["state"] == "succeeded"
    rows = node.ask("list")
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert set(rows[0]) == {"id", "state", "command", "np", "launcher", "started", "duration_s", "exit_code"}


def test_ids_go_on_after_a_given_one(node: Node) -> None:
    assert [node.submit("true", np=1, after=7), node.submit("true", np=1, after=3)] == [8, 9]
    assert node.submit("true", np=1, id=5) == 5
    with pytest.raises(AssertionError, match="run 5 exists"):
        node.submit("true", np=1, id=5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": []}, "command is a list of words"),
        ({"launcher": "slurm"}, "one of horovod, mpi, torch, not 'slurm'"),
        ({"np": 3}, "np is 3, but the hosts have 2 slots"),
        ({"hosts": [["node0"]]}, "hosts is a list of [name, slots]"),
        ({"env": {"A": 1}}, "env maps names to text"),
        ({"id": "x"}, "id is a whole number"),
        ({"after": -1}, "after is a whole number"),
    ],
)
def test_bad_request_creates_nothing(node: Node, change: dict[str, Any], words: str) -> None:
    request = {"command": ["true"], "np": 2, "launcher": "mpi", "hosts": [["localhost", 2]]}
    done = node.call("submit", stdin=request | change)
    assert done.returncode == 2
    assert words in json.loads(done.stdout)["error"]
    assert not node.runs.exists()


@pytest.mark.parametrize("verb", ["show", "follow", "cancel", "rank", "supervise"])
def test_unknown_run(node: Node, verb: str) -> None:
    done = node.call(verb, "99")
    assert done.returncode == 2
    assert json.loads(done.stdout) == {"error": "no run 99; there are: none"}


def test_of_many_runs_spans_are_named(node: Node) -> None:
    for number in (1, 2, 3, 4, 6, 8, 9):
        (node.runs / str(number)).mkdir(parents=True)
        (node.runs / str(number) / "run.json").write_text("{}")
    done = node.call("show", "99")
    assert json.loads(done.stdout) == {"error": "no run 99; there are: 1 to 4, 6, 8 to 9"}
