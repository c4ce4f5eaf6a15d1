"""Ranks that stay up: ssh, rsync and the agent are the fakes of all tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdctl.bench import session
from hvdctl.bench.plan import Layout
from hvdctl.bench.session import PointFailed, Session
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, Interrupted
from support import RECORD, answer

HELLO = {"event": "result", "found": {"versions": {"torch": "2"}, "nodes": ["node0"], "machine": {}}}
NO_ONE = lambda: 0  # noqa: E731


class Head:
    """The node that ranks are asked on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        answer(folder, "submit", {"id": 7})
        answer(folder, "cancel", {"id": 7, "state": "cancelled"})
        answer(folder, "show", {"id": 7, "state": "succeeded"})
        self.answers(1, HELLO)

    def answers(self, turn: int, *told: dict[str, Any], stays: bool = False) -> None:
        text = "".join(json.dumps({"seq": turn, **one}) + "\n" for one in told)
        (self.folder / f"ask.{turn}").write_text(text)
        if stays:
            (self.folder / f"ask.{turn}.wait").touch()

    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "ask.log").read_text().splitlines()]

    def cancelled(self) -> bool:
        return "node0 hvd-agent cancel 7\n" in (self.folder / "ssh.log").read_text()


@pytest.fixture
def head(cluster: Cluster, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    """Sessions that a test leaves open are closed with it."""
    made: list[Session] = []
    begin = Session.__init__

    def noted(self: Session, *given: Any, **named: Any) -> None:
        made.append(self)
        begin(self, *given, **named)

    monkeypatch.setattr(Session, "__init__", noted)
    yield Head(fake_nodes)
    for one in made:
        one.close()


def test_ranks_are_started_as_the_layout_says(cluster: Cluster, head: Head) -> None:
    ranks = Session(cluster, Layout(2, 1), "horovod-mpi", NO_ONE, threads=3, env={"HOROVOD_CYCLE_TIME": "5"})
    asked = json.loads((head.folder / "submit.request.node0").read_text())
    assert (asked["np"], asked["launcher"], asked["threads"]) == (2, "mpi", 3)
    assert asked["hosts"] == [["node0", 1], ["node1", 1]], "one on each node, not two on the first"
    assert asked["env"] == {"HOROVOD_CYCLE_TIME": "5", "HVD_BENCH_LAUNCHER": "horovod-mpi"}
    assert f"{session.WORKER}/" in (head.folder / "rsync.log").read_text().splitlines()
    assert (ranks.run, ranks.hello) == (7, HELLO["found"])
    assert head.asked() == [{"op": "hello", "seq": 1}]


def test_threads_are_those_of_the_cores_where_none_are_asked(cluster: Cluster, head: Head) -> None:
    Session(cluster, Layout(1, 2), "horovod-gloo", NO_ONE)
    asked = json.loads((head.folder / "submit.request.node0").read_text())
    assert asked["hosts"] == [["node0", 2]]
    assert asked["threads"] == max(1, (os.cpu_count() or 1) // 2)


def test_progress_is_handed_on_and_the_answer_returned(cluster: Cluster, head: Head) -> None:
    head.answers(
        2, {"event": "progress", "steps": 3}, {"event": "progress", "steps": 6}, {"event": "result", "found": {"n": 1}}
    )
    head.answers(3, {"event": "result", "found": {"rows": []}})
    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    heard: list[int] = []
    assert ranks.ask({"op": "train"}, lambda told: heard.append(told["steps"])) == {"n": 1}
    assert heard == [3, 6]
    assert ranks.ask({"op": "allreduce"}) == {"rows": []}
    assert [(one["op"], one["seq"]) for one in head.asked()] == [("hello", 1), ("train", 2), ("allreduce", 3)]


def test_ranks_are_held_by_a_connection_and_leave_with_it(cluster: Cluster, head: Head) -> None:
    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    assert "node0 hvd-agent hold 7\n" in (head.folder / "ssh.log").read_text()
    holder = ranks.holder
    assert holder is not None
    assert holder.poll() is None
    ranks.close()
    assert holder.poll() is not None
    assert not head.cancelled(), "they ended by themselves"
    assert not ranks.ready


def test_ranks_that_do_not_leave_are_ended(cluster: Cluster, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_FAREWELL_S", 0.3)
    answer(head.folder, "show", {"id": 7, "state": "running"})
    Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE).close()
    assert head.cancelled()


def test_an_error_of_a_rank_fails_the_point_and_the_ranks_stay(cluster: Cluster, head: Head) -> None:
    head.answers(2, {"event": "error", "reason": "rank 1: no images in /shared/x"})
    head.answers(3, {"event": "result", "found": {"n": 5}})
    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    with pytest.raises(PointFailed, match="rank 1: no images in /shared/x"):
        ranks.ask({"op": "train"})
    assert ranks.ready
    assert ranks.ask({"op": "train"}) == {"n": 5}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (
            {
                "state": "failed",
                "failed_rank": {"rank": 3, "node": "node1", "exit_code": 1, "tail": ["Traceback", "OSError: x", " "]},
            },
            "rank 3 on node1 ended with exit code 1: OSError: x",
        ),
        (
            {"state": "failed", "failed_rank": {"rank": 0, "node": "node0", "exit_code": 137, "tail": None}},
            "rank 0 on node0 ended with exit code 137",
        ),
        ({"state": "lost"}, "the head was lost"),
        ({"state": "failed", "reason": "mpirun is not installed"}, "mpirun is not installed"),
        ({"state": "cancelled", "reason": None}, "the ranks ended (cancelled)"),
    ],
)
def test_ranks_that_ended_say_why(cluster: Cluster, head: Head, record: dict[str, Any], told: str) -> None:
    head.answers(2, {"event": "ended", "run": {"id": 7, **record}})
    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    with pytest.raises(PointFailed) as failed:
        ranks.ask({"op": "train"})
    assert failed.value.message == told
    assert not ranks.ready
    ranks.close()
    assert len(head.asked()) == 2, "nobody is there to be told to end"


def test_ranks_that_end_before_they_greet_fail_the_point(cluster: Cluster, head: Head) -> None:
    head.answers(1, {"event": "ended", "run": {"state": "failed", "reason": "no space left"}})
    with pytest.raises(PointFailed, match="no space left"):
        Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)


def test_ranks_that_never_greet_are_ended(cluster: Cluster, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_GREETING_S", 0.3)
    head.answers(1, stays=True)
    with pytest.raises(PointFailed, match="the ranks gave no answer in time"):
        Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    assert head.cancelled()


def test_ranks_that_are_busy_are_ended_without_a_word_to_them(cluster: Cluster, head: Head) -> None:
    head.answers(2, {"event": "progress", "steps": 3}, stays=True)
    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    with pytest.raises(PointFailed, match="in time"):
        ranks.ask({"op": "train"}, timeout=0.3)
    ranks.close()
    assert head.cancelled()
    assert [one["op"] for one in head.asked()] == ["hello", "train"]
    ranks.close()
    assert (head.folder / "ssh.log").read_text().count("cancel") == 1


def test_an_interrupt_is_noticed_while_ranks_work(cluster: Cluster, head: Head) -> None:
    head.answers(2, {"event": "progress", "steps": 3}, stays=True)
    presses = 0

    def press(_: object) -> None:
        nonlocal presses
        presses = 1

    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", lambda: presses)
    with pytest.raises(Interrupted):
        ranks.ask({"op": "train"}, press)
    ranks.close()
    assert head.cancelled()


def test_a_head_that_is_gone_is_no_failed_point(cluster: Cluster, head: Head) -> None:
    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    (head.folder / "down").write_text("node0\n")
    with pytest.raises(HvdctlError, match=r"node0 can't be reached: .*Connection refused") as failed:
        ranks.ask({"op": "train"})
    assert not isinstance(failed.value, PointFailed)
    ranks.close()  # without a word


def test_what_the_agent_refuses_is_told_in_its_words(cluster: Cluster, head: Head) -> None:
    (head.folder / "ask.1").write_text('{"error": "no run 7; there are: 8"}\n')
    with pytest.raises(HvdctlError, match="run 7: no run 7; there are: 8"):
        Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)


def test_ranks_that_nobody_asked_for_minutes_count_as_gone(
    cluster: Cluster, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Session(cluster, Layout(1, 1), "horovod-gloo", NO_ONE)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 200)
    assert ranks.ready
    monkeypatch.setattr(time, "monotonic", lambda: now + 290)
    assert not ranks.ready


def test_only_ranks_that_a_bench_left_are_ended(cluster: Cluster, head: Head) -> None:
    ours = " ".join(session.COMMAND)
    rows = [
        {**RECORD, "id": 4, "command": ours},
        {**RECORD, "id": 5, "command": "python3 main.py", "state": "running"},
        {**RECORD, "id": 6, "command": "python3 train.py", "state": "running"},
        {**RECORD, "id": 7, "command": ours, "state": "running"},
        {**RECORD, "id": 8, "command": session.NOTEBOOK},
    ]
    answer(head.folder, "list", rows)
    assert session.end_leftovers(cluster) == [7]
    called = (head.folder / "ssh.log").read_text()
    assert [line for line in called.splitlines() if "cancel" in line] == ["node0 hvd-agent cancel 7"]
