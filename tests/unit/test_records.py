"""A damaged record of a run is named, and hides no other."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hvdctl import collect, jobs
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, UsageError
from support import RECORD, Hvdctl, answer, keep, refuse

DAMAGE = ["", "{", "[]", "{}", "[" * 100_000, json.dumps({**RECORD, "id": 2, "state": None}), json.dumps(RECORD)]
DAMAGE += [json.dumps({**RECORD, "id": 2}).ljust(2**20 + 1)]


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_copy_here_is_named_and_hides_no_other(hvdctl: Hvdctl, cluster: Cluster, text: str) -> None:
    keep(cluster, 1)
    (keep(cluster, 2) / "run.json").write_text(text)
    keep(cluster, 4)
    (cluster.folder / "nodes.json").unlink()
    told = hvdctl("jobs", "--name", "demo")
    assert told.code == 0, told.err
    states = {line.split()[0]: line.split()[1] for line in told.out.splitlines()[1:]}
    assert states == {"1": "succeeded", "2": "unreadable", "4": "succeeded"}
    assert "the record of run 2" in told.out
    with pytest.raises(UsageError, match="the record of run 2 of cluster 'demo' is damaged"):
        jobs.show(cluster, 2)
    assert jobs.latest(cluster) == 4
    with pytest.raises(UsageError, match="no run under way"):
        jobs.latest(cluster, active=True)
    assert jobs.last_kept(cluster) == 4


def test_what_a_head_tells_is_checked_row_by_row(hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path) -> None:
    good = {**RECORD, "id": 1}
    odd = [{"id": 2}, {"id": 3, "state": "running", "np": "x", "launcher": "mpi"}, {"id": "../4"}, 5, None]
    red = {**RECORD, "id": 6, "user_command": "\x1b[31mrm\x1b[0m\nrun\x9b2J 7"}
    answer(fake_nodes, "list", [good, *odd, red])
    told = hvdctl("jobs", "--name", "demo")
    assert told.code == 0, told.err
    states = {line.split()[0]: line.split()[1] for line in told.out.splitlines()[1:]}
    assert states == {"1": "succeeded", "2": "unreadable", "3": "unreadable", "6": "succeeded"}
    assert "\x1b" not in told.out and "\x9b" not in told.out


@pytest.mark.parametrize(
    "told", [[], 3, {}, {"id": 1}, {**RECORD, "id": 2}, {"id": 1, "state": "failed", "failed_rank": {"rank": 0}}]
)
def test_a_record_that_a_head_told_is_checked(cluster: Cluster, fake_nodes: Path, told: object) -> None:
    answer(fake_nodes, "show", told)
    with pytest.raises(UsageError, match="the record of run 1 on node0 is damaged"):
        jobs.show(cluster, 1)


def test_an_answer_that_is_no_list_is_no_traceback(cluster: Cluster, fake_nodes: Path) -> None:
    answer(fake_nodes, "list", {"odd": 1})
    assert jobs.rows(cluster) == []


def test_numbers_are_not_given_twice(cluster: Cluster) -> None:
    """Also those of runs whose record was lost."""
    (cluster.runs / "7").mkdir(parents=True)
    for odd in ("08", "-9", "1e3", "9999999999", "\u0663"):
        (cluster.runs / odd).mkdir()
    assert jobs.last_kept(cluster) == 7


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 3)])
@pytest.mark.parametrize(
    "refusal",
    [HvdctlError("the disk of /home has 5 bytes free"), OSError(errno.ENOSPC, "No space left on device", "/home/x")],
)
def test_a_full_disk_here_does_not_hide_how_a_run_ended(
    hvdctl: Hvdctl,
    cluster: Cluster,
    fake_nodes: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    code: int,
    refusal: Exception,
) -> None:
    def full(cluster: Cluster, run: int, say: Callable[[str], None] = print) -> Path:
        raise refusal

    monkeypatch.setattr(collect, "fetch", full)
    answer(fake_nodes, "submit", {"id": 3})
    answer(fake_nodes, "show", {**RECORD, "state": state, "exit_code": code, "duration_s": 1.5})
    (fake_nodes / "follow.log").write_text("last words\n")
    told = hvdctl("run", "--name", "demo", "--", "x")
    assert told.code == code
    assert "the logs of run 3 stay on the share: " in told.err
    assert ("succeeded in 1.5 s" in told.err) == (state == "succeeded")
    told = hvdctl("run", "--name", "demo", "--json", "--", "x")
    assert json.loads(told.out)["state"] == state


def test_a_run_whose_folder_refuses_is_named(hvdctl: Hvdctl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in (1, 2, 3):
        keep(cluster, run)
    (cluster.folder / "nodes.json").unlink()
    refuse(monkeypatch, cluster.runs / "2")
    told = hvdctl("jobs", "--name", "demo")
    assert told.code == 0, told.err
    states = {line.split()[0]: line.split()[1] for line in told.out.splitlines()[1:]}
    assert states == {"1": "succeeded", "2": "unreadable", "3": "succeeded"}
    assert "Permission denied" in told.out


def test_words_of_a_command_that_are_not_utf_8_are_shown(
    hvdctl: Hvdctl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(cluster, 1, user_command="x caf\udce9")
    (cluster.folder / "nodes.json").unlink()
    for words in ([], ["--json"]):
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
        monkeypatch.setattr(sys, "stdout", out)
        told = hvdctl("jobs", "--name", "demo", *words)
        assert told.code == 0, told.err
        out.flush()
        assert "caf\\udce9" in out.buffer.getvalue().decode()
