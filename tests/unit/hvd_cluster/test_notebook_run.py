"""A function on many ranks, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import hvd_cluster as hc
import pytest
from hvd_cluster import calls, launch
from notebook_head import Head, wait_for

pytestmark = pytest.mark.usefixtures("head")


def rank() -> int:
    return int(os.environ["HVDCTL_RANK"])


@pytest.fixture(autouse=True)
def by_value() -> Any:
    """As functions of a notebook go: the module of a test can't be imported by ranks."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Own(Exception):
    """An exception that only the notebook knows."""


def test_results_come_by_rank_with_closures_and_arguments(head: Head) -> None:
    offset = 100

    def work(factor: int, extra: int = 0) -> tuple[int, int]:
        return rank(), factor * rank() + offset + extra

    assert hc.run(work, args=(10,), kwargs={"extra": 1}) == [(0, 101), (1, 111)]
    assert hc.run(lambda: "alone", 1) == ["alone"]
    assert head.left() == [], "nothing of a call stays on the share"
    assert [(row["state"], row["np"], row["command"]) for row in head.records()] == [
        ("succeeded", 2, "notebook: run(work)"),
        ("succeeded", 1, "notebook: run(<lambda>)"),
    ]


def test_ranks_get_the_environment_of_spec_and_call(head: Head) -> None:
    names = ("FROM_SPEC", "MINE", "OMP_NUM_THREADS")
    told = hc.run(lambda: [os.environ.get(name) for name in names], env={"MINE": "x"})
    assert told == [["yes", "x", str(max(1, (os.cpu_count() or 1) // 2))]] * 2
    head.describe(cpus=4, env={})
    assert hc.run(lambda: os.environ["OMP_NUM_THREADS"]) == ["4", "4"]


def test_ranks_inherit_nothing_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://of.the.kernel")
    monkeypatch.setenv("MY_API_KEY", "secret")
    assert hc.run(lambda: [os.environ.get("MPLBACKEND"), os.environ.get("MY_API_KEY")], 1) == [[None, None]]


def test_ranks_work_where_the_notebook_lies(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = head.share / "notebooks"
    folder.mkdir()
    (folder / "helper.py").write_text("NAME = 'beside the notebook'\n")
    monkeypatch.chdir(folder)

    def work() -> tuple[str, str]:
        import helper  # type: ignore[import-not-found]

        return str(Path.cwd()), helper.NAME

    assert hc.run(work, 1) == [(str(folder), "beside the notebook")]
    monkeypatch.chdir("/")
    assert hc.run(Path.cwd, 1) == [head.share]


def test_output_comes_while_ranks_run(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def work() -> None:
        print(f"first of {rank()}", flush=True)
        for step in range(1000):
            hc.report(step=step)
            time.sleep(0.02)
            if (Path(os.environ["HVD_SHARED"]) / "go").exists():
                return

    def live(record: dict[str, Any]) -> None:
        seen.append(capsys.readouterr().out)
        if "[rank 0 localhost] first of 0" in "".join(seen):
            (head.share / "go").touch()

    hc.run(work, live=live)
    assert (head.share / "go").exists()


def test_much_output_is_shortened_and_the_result_comes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "Shown", partial(launch.Shown, 1000))

    def work() -> str:
        for index in range(500):
            print("line", index)
        return "done"

    assert hc.run(work, np=1) == ["done"]
    told = capsys.readouterr().out.splitlines()
    shown = [line for line in told if "] line " in line]
    assert 0 < len(shown) < 100
    assert told[-1].startswith(f"... {500 - len(shown)} more lines; `hvdctl logs ")


def test_a_rank_that_fails_in_the_middle_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        print("almost", end="")
        raise ValueError("x")

    with pytest.raises(hc.RankError):
        hc.run(work, np=1)
    assert capsys.readouterr().out == "[rank 0 localhost] almost\n"


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    hc.run(lambda: print("hello"), quiet=True)
    assert capsys.readouterr().out == ""


def test_a_failed_rank_is_told_with_its_traceback(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        if rank() == 1:
            raise Own("no luck")
        time.sleep(300)

    began = time.monotonic()
    with pytest.raises(hc.RankError) as raised:
        hc.run(work)
    error = raised.value
    assert time.monotonic() - began < 30, "the other rank is not waited for"
    assert (error.rank, error.node, error.run) == (1, "node1", 1)
    assert str(error).startswith("rank 1 on node1: Own: no luck\n\nTraceback")
    assert 'raise Own("no luck")' in error.traceback
    assert "worker.py" not in error.traceback, "frames of ours are no help"
    assert isinstance(error.__cause__, Own)
    assert "no luck" not in capsys.readouterr().out, "the cell need not show it twice"
    assert "no luck" in (head.runs / "1" / "rank-1.log").read_text()
    assert (head.left(), head.processes()) == ([], [])


def test_a_rank_that_ends_without_a_word_is_told_with_its_last_lines() -> None:
    def work() -> None:
        print("last words", flush=True)
        os._exit(7)

    with pytest.raises(hc.RankError, match=r"(?s)ended with exit code 7.*last words"):
        hc.run(work, 1)


def test_a_rank_that_was_killed_is_blamed_and_not_the_one_that_lost_it() -> None:
    def work() -> None:
        if rank() == 1:
            print("last words", flush=True)
            os._exit(137)
        time.sleep(1)
        raise RuntimeError("HorovodInternalError: Connection closed by peer")

    with pytest.raises(hc.RankError, match=r"(?s)rank 1 on node1: it ended with exit code 137.*killed.*last words"):
        hc.run(work)


def test_a_rank_that_cant_tell_why_it_failed_ends_all_the_same(head: Head) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise OSError("no words")

    def work() -> None:
        raise Unspeakable

    with pytest.raises(hc.RankError, match="rank 0 on localhost: it ended with exit code 1"):
        hc.run(work, 1)
    assert head.left() == []


def test_sys_exit_is_a_failure_too() -> None:
    with pytest.raises(hc.RankError, match="rank 0 on localhost: SystemExit: enough"):
        hc.run(lambda: sys.exit("enough"), 1)


def test_a_result_that_cant_be_sent_names_rank_and_type() -> None:
    with pytest.raises(hc.RankError, match=r"rank 1 on node1: its result is of type _thread\.lock"):
        hc.run(lambda: threading.Lock() if rank() else 0)


def test_a_module_that_ranks_dont_have_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def work():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    with pytest.raises(hc.RankError, match=r"(?s)No module named 'only_here'.*put it on the share"):
        hc.run(only_here.work, 1)


LOCK = threading.Lock()


wrong: Any = hc.run  # for arguments that its signature does not allow


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: wrong(None), TypeError, "run\\(\\) takes a function, not NoneType; leave out the parentheses"),
        (lambda: hc.run(rank, 3), ValueError, "np=3: the cluster has 2 slots on 2 nodes; use np=1 to 2"),
        (lambda: hc.run(rank, 0), ValueError, "np=0"),
        (lambda: hc.run(rank, True), TypeError, "np is a whole number"),
        (lambda: hc.run(rank, args="ab"), TypeError, "args is a list or tuple"),
        (lambda: wrong(rank, env={"N": 2}), TypeError, "write {'N': '2'}"),
        (lambda: wrong(rank, live=3), TypeError, "live is a LivePlot"),
        (lambda: hc.run(rank, timeout=0), ValueError, "timeout is a number of seconds above 0"),
        (lambda: hc.run(lambda: LOCK), TypeError, "'LOCK', which <lambda> uses, a lock, can't be sent to the ranks"),
        (lambda: hc.run(print, args=(LOCK,)), TypeError, "argument 0 of print, a lock, can't be sent"),
    ],
)
def test_what_cant_work_is_refused_before_anything_starts(
    head: Head, call: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as refused:
        call()
    assert (head.runs.exists(), head.left()) == (False, [])
    # What IPython shows: no frame of the package.
    assert refused.value._render_traceback_() == [f"{error.__name__}: {refused.value}"]  # type: ignore[attr-defined]


def test_what_a_killed_kernel_left_on_the_share_goes_with_the_next_call(head: Head) -> None:
    script = "from hvd_cluster import calls; print(calls.private_folder(), flush=True); input()"
    kernel = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    folder = Path(kernel.stdout.readline().strip())
    (folder / "func.pkl").write_bytes(b"large")
    assert hc.run(lambda: 1, 1) == [1]
    assert head.left() == [folder], "its kernel lives"
    kernel.kill()
    kernel.communicate()
    assert hc.run(lambda: 2, 1) == [2]
    assert head.left() == []


def test_what_the_head_of_another_cluster_has_on_the_same_share_stays(head: Head) -> None:
    folder = calls.private_folder()
    told = json.loads(head.file.read_text())
    head.file.write_text(json.dumps(told | {"cluster": "other"}))
    gone = folder.with_name(folder.name.replace(f".{os.getpid()}.", ".1."))
    folder.rename(gone)
    assert hc.run(lambda: 1, 1) == [1]
    assert head.left() == [gone], "whether its kernel lives is known there alone"
    head.file.write_text(json.dumps(told))
    assert hc.run(lambda: 1, 1) == [1]
    assert head.left() == []


def test_a_cluster_of_the_same_name_of_another_owner_has_a_folder_of_its_own(head: Head) -> None:
    """On a folder as share, the head of each is node0 of `default`: one must not clear up what the other has."""
    head.describe(owner="0123456789abcdef")
    live = calls.private_folder()
    gone = live.with_name(live.name.replace(f".{os.getpid()}.", ".1."))
    live.rename(gone)
    head.describe(owner="fedcba9876543210")
    assert hc.run(lambda: 1, 1) == [1]
    assert gone.is_dir()
    head.describe(owner="0123456789abcdef")
    assert hc.run(lambda: 1, 1) == [1]
    assert not gone.exists()


def test_a_rank_starts_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCTL_RANK", "0")
    with pytest.raises(hc.ClusterError, match="is a rank of a run"):
        hc.run(rank)


def test_a_run_that_the_agent_refuses_says_why(head: Head) -> None:
    head.runs.write_text("not a folder")
    with pytest.raises(hc.ClusterError, match=r"the node's agent refused the run: .+"):
        hc.run(rank)
    assert head.left() == []
    head.runs.unlink()


def test_timeout_ends_all_ranks(head: Head) -> None:
    with pytest.raises(TimeoutError, match=r"run 1 took longer than 1 s and was ended on all ranks"):
        hc.run(lambda: time.sleep(300), timeout=1)
    assert (head.records()[0]["state"], head.processes(), head.left()) == ("cancelled", [], [])


def test_an_interrupt_ends_all_ranks_and_is_raised_again(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        signal.raise_signal(signal.SIGINT)

    def work() -> None:
        hc.report(step=1)
        time.sleep(300)

    with pytest.raises(KeyboardInterrupt):
        hc.run(work, live=interrupt)
    assert "ending run 1 on all ranks" in capsys.readouterr().out
    assert (head.records()[0]["state"], head.processes(), head.left()) == ("cancelled", [], [])


def test_a_listener_that_fails_ends_the_run(head: Head) -> None:
    def work() -> None:
        hc.report(step=1)
        time.sleep(300)

    with pytest.raises(ZeroDivisionError):
        hc.run(work, live=lambda record: 1 / 0)  # type: ignore[arg-type]
    assert (head.records()[0]["state"], head.processes(), head.left()) == ("cancelled", [], [])


def test_a_killed_notebook_leaves_no_ranks(head: Head) -> None:
    code = "import hvd_cluster as hc, time\nhc.run(lambda: [print('up', flush=True), time.sleep(300)])"
    notebook = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert notebook.stdout is not None
    assert "up" in notebook.stdout.readline()
    os.killpg(notebook.pid, signal.SIGKILL)
    notebook.wait()
    notebook.stdout.close()
    wait_for(lambda: head.records()[0]["state"] == "cancelled")
    wait_for(lambda: not head.processes() and not head.left())


def test_a_run_that_others_cancel_says_so(head: Head) -> None:
    def cancel(record: dict[str, Any]) -> None:
        subprocess.run(["hvd-agent", "cancel", "1"], capture_output=True, check=True)

    def work() -> None:
        hc.report(step=1)
        time.sleep(300)

    with pytest.raises(hc.ClusterError, match="run 1 was cancelled"):
        hc.run(work, live=cancel)
