"""Records of runs: a full share takes the last word, and a damaged one hides no other."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_node import Node
from hvdctl.agent import query, store

# Every file that the agent makes is refused while the marker is there, as on a share that a job has filled.
_FULL = """\
import errno, os
real = os.open
def refuse(path, flags, *rest, **more):
    if flags & os.O_CREAT and os.path.exists({marker!r}) and str(path).startswith({runs!r}):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return real(path, flags, *rest, **more)
os.open = refuse
"""
_FILL = """\
import json, sys
from pathlib import Path
from agent_node import Node
from hvdctl.agent import store
node = Node(Path(sys.argv[1]))
run = node.submit("sh", "-c", sys.argv[2], str(node.runs), np=2)
refused = {"command": ["x"], "np": 1, "launcher": "mpi", "hosts": [["localhost", 1]]}
print(json.dumps([node.finished(run), node.ask("list"), node.call("submit", stdin=refused).stdout]))
"""
# Both ranks have begun; then the share is filled to the last byte.
_JOB = """\
until [ -s "$0/1/rank-0.json" ] && [ -s "$0/1/rank-1.json" ]; do sleep 0.05; done
cat /dev/zero >"$0/filler" 2>/dev/null
"""


@pytest.fixture
def full(node: Node, tmp_path: Path) -> Path:
    """A marker: where it is, the share is full."""
    marker, folder = tmp_path / "full", tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_FULL.format(marker=str(marker), runs=str(node.runs)))
    node.env["PYTHONPATH"] = f"{folder}:{node.env['PYTHONPATH']}"
    return marker


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_a_share_that_the_job_has_filled_takes_the_last_word(node: Node, full: Path, code: int, state: str) -> None:
    run = node.submit("sh", "-c", f'touch "{full}"; exit {code}', np=1)
    record = node.finished(run)
    assert (record["state"], record["exit_code"]) == (state, code)
    assert record["ended"] is not None
    assert [row["state"] for row in node.ask("list")] == [state]


def test_a_full_share_refuses_a_run_in_a_line_and_keeps_nothing_of_it(node: Node, full: Path) -> None:
    node.finished(node.submit("true"))
    full.touch()
    told = node.call("submit", stdin={"command": ["x"], "np": 1, "launcher": "mpi", "hosts": [["localhost", 1]]})
    assert (told.returncode, "No space left on device" in json.loads(told.stdout)["error"]) == (2, True)
    assert [entry.name for entry in node.runs.iterdir()] == ["1"]
    full.unlink()
    assert node.submit("true") == 2


@pytest.mark.optional
@pytest.mark.parametrize(("code", "state"), [("0", "succeeded"), ("3", "failed")])
def test_a_real_full_file_system_takes_the_last_word(tmp_path: Path, code: str, state: str) -> None:
    (tmp_path / "runs").mkdir()
    within = 'mount -t tmpfs -o size=512k tmpfs "$1/runs" || exit 77; shift; exec "$@"'
    driver = [sys.executable, "-c", _FILL, str(tmp_path), f"{_JOB}exit {code}"]
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", within, "sh", str(tmp_path), *driver]
    done = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr
    record, rows, refused = json.loads(done.stdout)
    assert (record["state"], record["exit_code"]) == (state, int(code))
    assert [row["state"] for row in rows] == [state]
    assert "No space left on device" in refused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ('{"id": 2, "sta', "it is not JSON"),
        ("[]", "it is a JSON list"),
        ("{}", "id is missing"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_a_damaged_record_is_named_and_hides_no_other(node: Node, text: str, why: str) -> None:
    for _ in range(3):
        node.finished(node.submit("true", np=1))
    (node.runs / "2" / "run.json").write_text(text)
    rows = node.ask("list")
    assert [(row["id"], row["state"]) for row in rows] == [(1, "succeeded"), (2, "unreadable"), (3, "succeeded")]
    assert why in rows[1]["reason"]
    told = node.call("show", "2")
    assert told.returncode == 2
    assert "the record of run 2" in json.loads(told.stdout)["error"]
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    "fields", [{"started": "x"}, {"id": 9}, {"state": None}, {"np": True}, {"duration_s": float("nan")}]
)
def test_a_record_of_another_shape_is_named(node: Node, fields: dict[str, Any]) -> None:
    record = node.finished(node.submit("true", np=1))
    (node.runs / "1" / "run.json").write_text(json.dumps(record | fields))
    (row,) = node.ask("list")
    assert row["state"] == "unreadable"
    assert next(iter(fields)) in row["reason"] or "of run 9" in row["reason"]


def test_a_record_is_on_the_disk_before_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    folder = tmp_path / "1"
    folder.mkdir()

    def fsync(handle: int) -> None:
        place = Path(f"/proc/self/fd/{handle}").readlink()
        seen.append("folder" if place == folder else "content" if not (folder / "run.json").exists() else "late")

    monkeypatch.setattr(os, "fsync", fsync)
    store.keep(folder, {"id": 1})
    assert seen == ["content", "folder"]
    assert store.read(folder / "run.json") == {"id": 1}


def test_a_link_in_place_of_a_run_hides_no_other(node: Node, tmp_path: Path) -> None:
    run = node.submit("true", np=1)
    assert node.finished(run)["state"] == "succeeded"
    # It leads to a record that is none of this share's.
    (tmp_path / "run.json").write_text("{}")
    (node.runs / "99").symlink_to(tmp_path)
    assert [row["id"] for row in node.ask("list")] == [run]


def _loop(lock: Path) -> None:
    lock.symlink_to(lock)


@pytest.mark.parametrize("plant", [_loop, os.mkfifo, os.mkdir])
def test_an_odd_lock_is_named_and_hides_no_other(node: Node, plant: Callable[[Path], None]) -> None:
    """Of a run that has no final state: only then is its lock looked at."""
    for _ in range(3):
        record = node.finished(node.submit("true", np=1))
    (node.runs / "2" / "run.json").write_text(json.dumps(record | {"id": 2, "state": "running"}))
    (node.runs / "2" / "lock").unlink()
    plant(node.runs / "2" / "lock")
    rows = node.ask("list")
    assert [(row["id"], row["state"]) for row in rows] == [(1, "succeeded"), (2, "unreadable"), (3, "succeeded")]
    assert "the lock of run 2" in rows[1]["reason"]
    told = node.call("show", "2")
    assert (told.returncode, "the lock of run 2" in json.loads(told.stdout)["error"]) == (2, True)


@pytest.mark.parametrize(
    ("error", "why"),
    [(OSError(errno.ESTALE, "Stale file handle"), "Stale file handle"), (MemoryError(), "MemoryError")],
)
def test_what_the_share_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    def refuse(folder: Path) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(store, "load", refuse)
    row = query.row(tmp_path / "7")
    assert (row["id"], row["state"], row["reason"]) == (7, "unreadable", f"run 7 can't be read: {why}")


def test_a_share_that_can_not_say_what_a_run_is_hides_no_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server has gone, or the disk is broken."""
    for _ in range(2):
        node.finished(node.submit("true", np=1))
    monkeypatch.setenv("HVD_RUNS", str(node.runs))
    real = os.lstat, os.stat, os.open

    def broken(index: int) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **more: Any) -> Any:
            if str(path).startswith(str(node.runs / "1")):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real[index](path, *rest, **more)

        return call

    for index, name in enumerate(("lstat", "stat", "open")):
        monkeypatch.setattr(os, name, broken(index))
    rows = [query.row(store.runs() / str(number)) for number in store.ids()]
    assert [(row["id"], row["state"]) for row in rows] == [(1, "unreadable"), (2, "succeeded")]
    assert "Input/output error" in rows[0]["reason"]


def test_a_record_of_many_bytes_is_not_read(node: Node) -> None:
    record = node.finished(node.submit("true", np=1))
    (node.runs / "1" / "run.json").write_text(json.dumps(record).ljust(2**20 + 1))
    (row,) = node.ask("list")
    assert row["state"] == "unreadable"
    assert row["reason"] == "the record of run 1 can't be read: it has more than 1024 KiB"


def test_a_command_that_no_record_takes_is_refused_and_leaves_nothing(node: Node) -> None:
    request = {"command": ["x" * 1000] * 600, "np": 1, "launcher": "mpi", "hosts": [["localhost", 1]]}
    told = node.call("submit", stdin=request)
    assert (told.returncode, "the command is too long" in json.loads(told.stdout)["error"]) == (2, True)
    assert list(node.runs.iterdir()) == []
    assert node.finished(node.submit("true", *["x" * 1000] * 200, np=1))["state"] == "succeeded"


def test_an_environment_may_be_larger_than_a_record(node: Node) -> None:
    environment = {f"A{number}": "x" * 100_000 for number in range(12)}
    assert node.finished(node.submit("true", np=1, env=environment))["state"] == "succeeded"
