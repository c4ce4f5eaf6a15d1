from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hvdctl import process
from hvdctl.errors import ToolMissing
from support import ends_at_once, runs, wait_for


def test_a_missing_tool_is_named_with_its_package() -> None:
    with pytest.raises(ToolMissing, match="no-such-tool is not on PATH") as missing:
        process.tool("no-such-tool")
    assert missing.value.exit_code == 4
    assert "apt-get install no-such-tool" in missing.value.hint


def test_words_are_never_read_by_a_shell(tmp_path: Path) -> None:
    words = ["a b", "$HOME", "; touch x", "*", "--help"]
    done = process.capture([sys.executable, "-c", "import sys; print(sys.argv[1:])", *words])
    assert done.stdout.strip() == str(words)


def test_lines_come_as_they_are_said_and_are_logged() -> None:
    said: list[str] = []
    log = io.StringIO()
    code = process.lines(["sh", "-c", "echo one; echo two >&2; printf '\\377\\n'; exit 3"], said.append, log=log)
    assert code == 3
    assert said == ["one", "two", "�"]
    assert log.getvalue() == "one\ntwo\n�\n"


@pytest.mark.parametrize("same", [True, False])
def test_a_command_may_stay_in_the_terminals_session_and_misses_its_ctrl_c(same: bool) -> None:
    said: list[str] = []
    code = "import os; print(os.getsid(0), os.getpgrp())"
    process.lines([sys.executable, "-c", code], said.append, same_terminal=same)
    session, group = map(int, said[0].split())
    assert (session == os.getsid(0)) is same
    assert group != os.getpgrp()


def test_the_child_is_ended_where_its_listener_fails() -> None:
    seen: list[int] = []

    def fail(line: str) -> None:
        seen.append(int(line))
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        process.lines(["sh", "-c", "echo $$; exec sleep 600"], fail)
    wait_for(lambda: not runs(seen[0]))


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv ties children to their parent")
def test_children_end_with_a_killed_hvdctl(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"from hvdctl import process; process.lines(['sh', '-c', 'echo $$ > {pid_file}; exec sleep 600'], print)"
    parent = subprocess.Popen([sys.executable, "-c", script])
    child = int(str(wait_for(lambda: pid_file.exists() and pid_file.read_text().strip())))
    assert runs(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not runs(child))


def test_gather_runs_side_by_side_and_keeps_the_order(tmp_path: Path) -> None:
    # Each waits for the other's file: one after the other would never end.
    meet = "touch {0}/{1}; until [ -e {0}/{2} ]; do sleep 0.02; done; echo {1}"
    commands = [["sh", "-c", meet.format(tmp_path, a, b)] for a, b in (("x", "y"), ("y", "x"))]
    assert [done.stdout for done in process.gather(commands, timeout=60)] == ["x\n", "y\n"]


def test_gather_counts_silence_as_a_failure() -> None:
    slow, good = process.gather([["sleep", "600"], ["true"]], timeout=0.5)
    assert slow.returncode == 124
    assert "no answer within" in slow.stderr
    assert good.returncode == 0


def test_gather_of_nothing() -> None:
    assert process.gather([], timeout=1) == []


def test_each_works_on_no_more_than_so_many_and_keeps_the_order() -> None:
    meeting, busy, most = threading.Barrier(3), 0, 0
    lock = threading.Lock()

    def work(thing: int) -> int:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        meeting.wait(timeout=30)  # one after the other would never end
        with lock:
            busy -= 1
        return thing * thing

    assert process.each(work, range(6), at_once=3) == [0, 1, 4, 9, 16, 25]
    assert most == 3


GATHERS = """
import sys
from hvdctl import process
process.AT_ONCE = 2
process.gather([["sh", "-c", f"echo $$ >>{sys.argv[1]}; exec sleep 29"]] * 3, timeout=60)
"""


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv ties children to their parent")
def test_ctrl_c_leaves_a_gather_at_once_and_its_commands_end(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asking = subprocess.Popen([sys.executable, "-c", GATHERS, str(asked)], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: asked.exists() and len(asked.read_text().split()) == 2)
    ends_at_once(asking, asked)
    assert len(asked.read_text().split()) == 2, "none is started after that"


def test_an_error_of_one_is_an_error_of_the_gather() -> None:
    with pytest.raises(FileNotFoundError):
        process.gather([["true"], ["true"]], timeout=5, run=_missing)


def _missing(argv: object, *, timeout: float) -> subprocess.CompletedProcess[str]:
    raise FileNotFoundError("gone")


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_processes_are_ended_by_their_environment_in_whatever_session(tmp_path: Path, trap: str) -> None:
    pids = tmp_path / "pids"
    script = f"{trap}echo $$ >>{pids}; while :; do sleep 0.1; done"
    marked = {**os.environ, "HVD_TEST_MARK": str(tmp_path)}
    ours = subprocess.Popen(["setsid", "sh", "-c", script], env=marked)
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, "HVD_TEST_MARK": f"{tmp_path}2"})
    try:
        wait_for(lambda: pids.exists() and pids.read_text().strip())
        process.end(f"HVD_TEST_MARK={tmp_path}", patience=1)
        assert not runs(int(pids.read_text()))
        assert runs(other.pid)
    finally:
        for one in (ours, other):
            one.kill()
            one.wait()


def test_what_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! >{tmp_path}/child; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        process.capture(["sh", "-c", script], timeout=0.5)
    wait_for(lambda: not runs(int((tmp_path / "child").read_text())))
