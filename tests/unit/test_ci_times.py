"""Lanes that are small shell commands."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from support import runs, wait_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "ci_times.py"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_slow[x]" time="12.5"/>
<testcase classname="tests.unit.test_a" name="test_quick" time="0.1"/>
</testsuite></testsuites>"""


@pytest.fixture
def times() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_times", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lanes_and_slowest_tests_are_listed(times: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "times"
    assert times.measure(folder, "lint", ["true"]) == 0
    assert times.measure(folder, "unit", ["sh", "-c", "exit 5"]) == 5
    (folder / "unit.xml").write_text(REPORT)
    told = times.report(folder).splitlines()
    assert told[0].split() == ["LANE", "TIME", "TESTS"]
    assert told[1].split()[:2] == ["lint", "0"]
    assert told[2].endswith("2  failed with exit code 5")
    assert told[3].startswith("all")
    assert told[-2:] == ["   12.5 s  unit     test_a::test_slow[x]", "    0.1 s  unit     test_a::test_quick"]


def test_a_lane_that_was_killed_has_its_time_and_no_tests(times: ModuleType, tmp_path: Path) -> None:
    times.measure(tmp_path, "e2e", ["sh", "-c", "kill -9 $$"])
    (tmp_path / "e2e.xml").write_text("<testsuites><testsu")
    assert times.report(tmp_path).splitlines()[1].endswith("failed with exit code -9")


def test_nothing_was_run(times: ModuleType, tmp_path: Path) -> None:
    assert times.report(tmp_path) == "no lane was run yet"


def test_the_report_comes_last_and_the_exit_code_is_kept(
    times: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lane = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import ci_times, pathlib\n"
    lane += (
        f"sys.exit(ci_times.measure(pathlib.Path({str(tmp_path)!r}), 'unit', ['sh', '-c', 'echo 3 passed; exit 1']))"
    )
    (tmp_path / "lanes.jsonl").write_text(json.dumps({"lane": "old", "seconds": 1, "code": 0}) + "\n")
    assert times.hold(tmp_path, [sys.executable, "-c", lane], *locks(tmp_path)) == 1
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "3 passed"
    assert said[2].startswith("LANE") and said[3].startswith("unit")
    assert "old" not in "\n".join(said), "earlier times are forgotten"


def locks(folder: Path, clone: str = "clone") -> tuple[Path, Path]:
    """The lock of a clone and the one that all clones share."""
    return folder / clone / "lock", folder / "cache" / "test.lock"


@contextlib.contextmanager
def running(folder: Path, *command: str, clone: str = "clone") -> Iterator[subprocess.Popen[str]]:
    """Another process that wants the locks and runs the command; it has the clone's when the block begins."""
    own, machine = locks(folder, clone)
    hold = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import ci_times\n"
    hold += "from pathlib import Path\n"
    hold += f"sys.exit(ci_times.hold(Path({str(folder)!r}), {command!r}, Path({str(own)!r}), Path({str(machine)!r})))"
    child = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: own.exists() and own.read_text().startswith(f"{child.pid} "))
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_a_second_one_in_the_same_folder_is_refused_in_one_line(
    times: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, "sleep", "60") as first:
        began = time.monotonic()
        assert times.hold(tmp_path, ["echo", "ran"], *locks(tmp_path)) == 3
        assert time.monotonic() - began < 5
        told = capfd.readouterr()
        assert told.out == ""
        assert told.err == f"error: the tests are already running in this folder (process {first.pid})\n"
    assert times.hold(tmp_path, ["true"], *locks(tmp_path)) == 0, "the lock is gone with its process"


def test_one_in_another_clone_waits_for_the_first_to_end(tmp_path: Path) -> None:
    began, gate, ended = (tmp_path / name for name in ("began", "gate", "ended"))
    lane = f"touch {began}; while [ ! -e {gate} ]; do sleep .02; done; touch {ended}"
    with running(tmp_path, "sh", "-c", lane) as first:
        wait_for(began.exists)
        with running(tmp_path, "test", "-e", str(ended), clone="other") as second:
            assert second.stdout is not None
            line = f"waiting for the tests in {SCRIPT.parents[1]} (process {first.pid}) to end\n"
            assert second.stdout.readline() == line
            gate.touch()
            assert (first.wait(30), second.wait(30)) == (0, 0)
            assert second.stdout.read().splitlines() == ["", "no lane was run yet"]


def test_a_lane_beside_make_test_is_refused_in_one_line_unless_that_started_it(
    times: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(times.STARTED_BY, raising=False)
    own, _ = locks(tmp_path)
    with running(tmp_path, "sleep", "60") as first:
        assert times.lane(tmp_path, "e2e", ["echo", "ran"], own) == 3
        told = capfd.readouterr()
        assert told.out == ""
        assert told.err == f"error: the tests are already running in this folder (process {first.pid})\n"
        monkeypatch.setenv(times.STARTED_BY, str(first.pid))
        assert times.lane(tmp_path, "e2e", ["true"], own) == 0
    monkeypatch.delenv(times.STARTED_BY)
    assert times.lane(tmp_path, "e2e", ["true"], own) == 0


def test_lanes_may_run_side_by_side_but_make_test_not_beside_one(times: ModuleType, tmp_path: Path) -> None:
    own, _ = locks(tmp_path)
    with times.locked(own, shared=True) as holder:
        assert holder == []
        assert times.lane(tmp_path, "lint", ["true"], own) == 0
        assert times.hold(tmp_path, ["true"], *locks(tmp_path)) == 3
    assert times.hold(tmp_path, ["true"], *locks(tmp_path)) == 0


@dataclass
class Project:
    """The real Makefile; every program in it notes in a log when it begins and ends, and lint waits for the gate."""

    folder: Path

    def make(self, *words: str) -> subprocess.Popen[str]:
        env = {"PATH": os.environ["PATH"], "HVDCTL_CACHE": str(self.folder / "cache")}
        argv = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *words]
        return subprocess.Popen(
            argv, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def log(self) -> list[str]:
        file = self.folder / "log"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "project"
    for name in ("scripts", ".venv/bin"):
        (folder / name).mkdir(parents=True)
    for file in (SCRIPT, SCRIPT.parents[1] / "Makefile"):
        shutil.copy(file, folder / file.relative_to(SCRIPT.parents[1]))
    note = f"#!/bin/sh\ncd {folder}; echo begin $0 >>log\n"
    note += "case $0 in *lint.sh) while [ ! -e gate ]; do sleep .02; done ;; esac\nsleep .1; echo end >>log\n"
    for name in ("scripts/lint.sh", "scripts/system.sh", ".venv/bin/pytest", ".venv/bin/hvdctl"):
        (folder / name).write_text(note)
        (folder / name).chmod(0o755)
    for name in ("scripts/setup.py", "pyproject.toml", ".venv/.developers"):
        (folder / name).touch()
    made = Project(folder)
    yield made
    made.open_gate()


def test_make_test_runs_every_lane_and_refuses_others_meanwhile(project: Project) -> None:
    with project.make("test") as first:
        try:
            wait_for(lambda: "begin scripts/lint.sh" in project.log())
            for lane in ("e2e", "vm", "unit"):
                with project.make(lane) as second:
                    said = second.communicate(timeout=60)[0]
                assert second.returncode == 2
                assert said.startswith("error: the tests are already running in this folder (process ")
        finally:
            project.open_gate()
        told = first.communicate(timeout=60)[0]
    assert first.returncode == 0, told
    lanes = [line.split()[0] for line in told.split("TESTS\n")[1].splitlines()]
    assert lanes == ["test-setup", "lint", "unit", "browser", "e2e", "vm", "all"]


def test_lanes_run_one_after_the_other_also_with_j(project: Project) -> None:
    project.open_gate()
    with project.make("-j3", "lanes") as all_:
        told = all_.communicate(timeout=60)[0]
    assert all_.returncode == 0, told
    kinds = [line.split()[0] for line in project.log()]
    assert kinds == ["begin", "end"] * 7


def test_ci_writes_no_golden_cases_and_allows_no_skips(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(SCRIPT.parents[1] / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "bin" / "make").write_text('#!/bin/sh\necho "$*: CI=$CI ${UPDATE_GOLDEN-unset}"\n')
    (tmp_path / "bin" / "make").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "UPDATE_GOLDEN": "1"}
    told = subprocess.run([tmp_path / ".ci" / "run"], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == "test: CI=true unset\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_lanes_end_with_it(tmp_path: Path, number: int) -> None:
    lane = f"echo $$ >{tmp_path}/lane; exec sleep 60"
    with running(tmp_path, "sh", "-c", lane) as first:
        pid = int(str(wait_for(lambda: (tmp_path / "lane").exists() and (tmp_path / "lane").read_text())))
        first.send_signal(number)
        said = first.communicate(timeout=30)[0]
        wait_for(lambda: not runs(pid))
    assert (number == signal.SIGTERM) == ("no lane was run yet" in said), "SIGTERM leaves time for the report"


def test_what_a_lane_leaves_running_does_not_keep_the_lock(times: ModuleType, tmp_path: Path) -> None:
    daemon = f"setsid sleep 60 >/dev/null 2>&1 & echo $! >{tmp_path}/daemon"
    assert times.hold(tmp_path, ["sh", "-c", daemon], *locks(tmp_path)) == 0
    pid = int((tmp_path / "daemon").read_text())
    try:
        assert runs(pid)
        assert times.hold(tmp_path, ["true"], *locks(tmp_path)) == 0
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_sigterm_that_comes_as_the_lane_starts_ends_it(times: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def signalled(command: list[str]) -> subprocess.Popen[bytes]:
        child = real(command)
        os.kill(os.getpid(), signal.SIGTERM)
        return child

    monkeypatch.setattr(times.subprocess, "Popen", signalled)
    assert times.finish(["sleep", "60"]) == -signal.SIGTERM
