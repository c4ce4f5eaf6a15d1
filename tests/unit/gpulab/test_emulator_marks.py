"""What killed emulators left goes; what others have on the same engine stays, whatever its path and process id."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import engine as engine_module
from hvdctl import owner
from hvdctl.gpulab.emulator import containers, marks
from hvdctl.gpulab.emulator.containers import LABEL, Containers
from hvdctl.gpulab.emulator.home import Home
from hvdctl.gpulab.emulator.workers import DEFAULT
from support import IMAGE

Labels = dict[str, str]


@pytest.fixture(scope="module")
def dead() -> str:
    """The id of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return str(ended.pid)


@contextmanager
def process(*words: str) -> Iterator[str]:
    """The id of a process with these words in its command line."""
    runs = subprocess.Popen([sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE)
    assert runs.stdin is not None
    try:
        yield str(runs.pid)
    finally:
        runs.communicate(b"\n")


@pytest.fixture
def emulator() -> Iterator[str]:
    with process("emulate") as pid:
        yield pid


def leave(name: str, labels: Labels) -> None:
    """A job and its network."""
    client: Any = engine_module.client()
    client.containers.create(IMAGE, name=f"{name}-job", labels=labels)
    client.networks.create(f"{name}-net", labels=labels)


def names(engine: FakeEngine) -> list[str]:
    return [*engine.names("containers"), *engine.names("networks")]


def test_an_emulator_removes_its_own_and_nothing_of_another_home_with_the_same_path(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two containers, each with a file system of its own, that share the socket of one engine."""
    folder = tmp_path / "emulator"
    theirs = Containers(Home(folder).id, folder, DEFAULT)
    leave("theirs", theirs._labels())
    shutil.rmtree(folder)
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "another"))
    ours = Containers(Home(folder).id, folder, DEFAULT)
    assert ours.label != theirs.label
    leave("ours", ours._labels())
    ours.open()
    assert names(engine) == ["theirs-job", f"hvdctl-gpulab-{ours.label}", "theirs-net"]


def test_a_copy_of_the_folder_in_another_home_removes_nothing_of_the_first(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Home(tmp_path).id
    leave("theirs", Containers("copied", tmp_path, DEFAULT)._labels())
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "another"))
    assert Home(tmp_path).id != first
    Containers("copied", tmp_path, DEFAULT).sweep()
    assert names(engine) == ["theirs-job", "theirs-net"]


def test_what_a_killed_emulator_of_this_home_left_goes(engine: FakeEngine, tmp_path: Path, dead: str) -> None:
    leave("killed", {LABEL: "gone", **marks.labels(), marks.PID: dead})
    containers.clear_killed(tmp_path)
    assert names(engine) == []


@pytest.mark.parametrize(
    "other",
    [
        lambda labels: {**labels, owner.MARK: "0" * 16},
        lambda labels: {**labels, marks.BOOT: "another"},
        lambda labels: {**labels, marks.NAMESPACE: "pid:[1]"},
        lambda labels: {**labels, marks.PID: "?"},
        lambda labels: {name: labels[name] for name in (LABEL, marks.PID)},
    ],
    ids=["of another home", "on another machine", "in another container", "without its process", "of an older version"],
)
def test_what_may_belong_to_an_emulator_that_runs_stays(
    engine: FakeEngine, tmp_path: Path, dead: str, other: Callable[[Labels], Labels]
) -> None:
    leave("other", other({LABEL: "x", **marks.labels(), marks.PID: dead}))
    containers.clear_killed(tmp_path)
    assert names(engine) == ["other-job", "other-net"]


def test_jobs_of_an_emulator_that_runs_stay_also_if_proc_hides_it(
    engine: FakeEngine, tmp_path: Path, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave("live", {LABEL: "x", **marks.labels(), marks.PID: emulator})
    containers.clear_killed(tmp_path)
    assert names(engine) == ["live-job", "live-net"]

    def hides(self: Path) -> bytes:
        raise FileNotFoundError(self)

    def refuses(pid: int, signal: int) -> None:
        raise PermissionError

    with monkeypatch.context() as hidden:
        hidden.setattr(Path, "read_bytes", hides)
        containers.clear_killed(tmp_path)
    with monkeypatch.context() as hidden:
        hidden.setattr(os, "kill", refuses)
        containers.clear_killed(tmp_path)
    assert names(engine) == ["live-job", "live-net"]


def test_a_process_id_that_another_program_has_by_now_is_no_emulator(engine: FakeEngine, tmp_path: Path) -> None:
    with process() as pid:
        leave("killed", {LABEL: "x", **marks.labels(), marks.PID: pid})
        containers.clear_killed(tmp_path)
    assert names(engine) == []


def test_a_cluster_of_another_home_clears_the_emulator_whose_login_it_has(
    engine: FakeEngine, tmp_path: Path, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "emulator")
    home.prepare()
    home.describe("http://127.0.0.1:7/api/", 8, secure=False)
    leave("killed", {LABEL: home.id, **marks.labels(), marks.PID: dead})
    leave("beside", {LABEL: "x", **marks.labels(), marks.PID: dead})
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "another"))
    containers.clear_killed(tmp_path)
    assert names(engine) == ["beside-job", "killed-job", "beside-net", "killed-net"]
    containers.clear_killed(home.folder)
    assert names(engine) == ["beside-job", "beside-net"]
