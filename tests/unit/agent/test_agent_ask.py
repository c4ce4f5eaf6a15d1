"""Requests to the program of a run: `ask` with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_node import Node, wait_for

# As bench's worker does: takes requests from the inbox and says what it finds, with words for others in between.
SERVES = """
import json, os, pathlib, time
folder = pathlib.Path(os.environ["HVD_RUNS"]) / os.environ["HVDCTL_RUN"]
seen = 0
def say(text):
    with (folder / "outbox").open("a") as out:
        out.write(text)
while True:
    lines = (folder / "inbox").read_text().splitlines() if (folder / "inbox").exists() else []
    for line in lines[seen:]:
        asked = json.loads(line)
        if asked["op"] == "end":
            raise SystemExit(asked.get("code", 0))
        say(json.dumps({"seq": 99, "event": "result", "found": "another's"}) + "\\n")
        say(json.dumps({"seq": asked["seq"], "event": "progress", "steps": 3}) + "\\n")
        last = {"seq": asked["seq"], "event": asked.get("event", "result"), "found": asked["op"]}
        text = json.dumps(last) + "\\n"
        say(text[:9])
        time.sleep(0.1)
        say(text[9:])
    seen = len(lines)
    time.sleep(0.02)
"""


@pytest.fixture
def run(node: Node) -> int:
    return node.submit(sys.executable, "-c", SERVES, np=1)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_progress_comes_before_the_answer_and_nothing_of_others(node: Node, run: int) -> None:
    for seq in (1, 2):
        told = lines(node.call("ask", str(run), stdin={"op": f"hello {seq}", "seq": seq}))
        assert told == [
            {"seq": seq, "event": "progress", "steps": 3},
            {"seq": seq, "event": "result", "found": f"hello {seq}"},
        ]
    inbox = (node.runs / str(run) / "inbox").read_text().splitlines()
    assert [json.loads(line) for line in inbox] == [{"op": f"hello {seq}", "seq": seq} for seq in (1, 2)]


def test_an_error_is_an_answer_too(node: Node, run: int) -> None:
    told = lines(node.call("ask", str(run), stdin={"op": "x", "seq": 1, "event": "error"}))
    assert [one["event"] for one in told] == ["progress", "error"]


def test_the_end_of_the_run_is_told_with_its_record(node: Node, run: int) -> None:
    told = lines(node.call("ask", str(run), stdin={"op": "end", "seq": 1, "code": 7}))
    assert [(one["seq"], one["event"]) for one in told] == [(1, "ended")]
    assert (told[0]["run"]["state"], told[0]["run"]["failed_rank"]["exit_code"]) == ("failed", 7)


def test_a_run_that_ended_before_is_told_at_once(node: Node, run: int) -> None:
    node.ask("cancel", str(run))
    (told,) = lines(node.call("ask", str(run), stdin={"op": "hello", "seq": 5}))
    assert (told["seq"], told["event"], told["run"]["state"]) == (5, "ended", "cancelled")


def test_an_answer_given_just_before_the_end_is_not_lost(node: Node) -> None:
    run = node.submit("true", np=1)
    node.finished(run)
    (node.runs / str(run) / "outbox").write_text('{"seq": 1, "event": "result", "found": 42}\n{"seq": 2, "ev')
    assert lines(node.call("ask", str(run), stdin={"op": "x", "seq": 1}))[0]["found"] == 42
    assert lines(node.call("ask", str(run), stdin={"op": "x", "seq": 2}))[0]["event"] == "ended"


def test_a_program_ends_when_whoever_holds_it_is_gone(node: Node, run: int) -> None:
    holder = node.start("hold", str(run), stdin=subprocess.PIPE)
    assert lines(node.call("ask", str(run), stdin={"op": "x", "seq": 1}))[-1]["found"] == "x"
    assert holder.poll() is None
    assert holder.stdin is not None
    holder.stdin.close()
    assert node.finished(run)["state"] == "succeeded"
    assert holder.wait(30) == 0


def test_whoever_asks_may_leave(node: Node, run: int) -> None:
    asker = node.start("ask", str(run), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert asker.stdin is not None
    asker.stdin.write(b'{"op": "x", "seq": 1}')
    asker.stdin.close()
    wait_for(lambda: (node.runs / str(run) / "inbox").exists())
    asker.kill()
    asker.wait()
    assert lines(node.call("ask", str(run), stdin={"op": "y", "seq": 2}))[-1]["found"] == "y"


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"op": "hello"}, "seq is a whole number, not None"),
        ({"op": "hello", "seq": "1"}, "seq is a whole number, not '1'"),
        (["hello"], "stdin holds a JSON list, not an object"),
        (None, "stdin holds no JSON"),
    ],
)
def test_a_bad_request_reaches_nobody(node: Node, request_: Any, told: str) -> None:
    run = node.submit("true", np=1)
    done = node.call("ask", str(run), stdin=request_)
    assert done.returncode == 2
    assert told in json.loads(done.stdout)["error"]
    assert not Path(node.runs / str(run) / "inbox").exists()


def test_a_run_that_is_not_there(node: Node) -> None:
    done = node.call("ask", "99", stdin={"op": "hello", "seq": 1})
    assert (done.returncode, json.loads(done.stdout)) == (2, {"error": "no run 99; there are: none"})
    assert "usage: ask ID" in json.loads(node.call("ask").stdout)["error"]
