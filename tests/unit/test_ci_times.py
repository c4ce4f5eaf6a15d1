"""Lanes that are small shell commands."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from support import wait_for

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
    assert times.hold(tmp_path, [sys.executable, "-c", lane]) == 1
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "3 passed"
    assert said[2].startswith("LANE") and said[3].startswith("unit")
    assert "old" not in "\n".join(said), "earlier times are forgotten"


def test_a_second_one_in_the_same_folder_is_refused_in_one_line(
    times: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hold = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import ci_times, pathlib\n"
    hold += f"ci_times.hold(pathlib.Path({str(tmp_path)!r}), ['sleep', '60'])"
    first = subprocess.Popen([sys.executable, "-c", hold], start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "lock").exists() and (tmp_path / "lock").read_text() == str(first.pid))
        began = time.monotonic()
        assert times.hold(tmp_path, ["echo", "ran"]) == 3
        assert time.monotonic() - began < 5
        told = capfd.readouterr()
        assert told.out == ""
        assert told.err == f"error: the tests are already running in this folder (process {first.pid})\n"
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert times.hold(tmp_path, ["true"]) == 0, "the lock is gone with its process"
