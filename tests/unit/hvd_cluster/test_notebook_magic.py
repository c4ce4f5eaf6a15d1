"""`%%hvd`: a cell on every rank."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import hvd_cluster as hc
import pytest
from notebook_head import Head


@pytest.fixture
def shell(head: Head, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "hvd_cluster")
    yield made
    assert made.history_manager
    made.history_manager.end_session()
    InteractiveShell.clear_instance()


def cell(shell: Any, text: str) -> BaseException | None:
    """Run a cell as the notebook does; the error that it ended with."""
    done = shell.run_cell(text, store_history=True)
    error: BaseException | None = done.error_before_exec or done.error_in_exec
    return error


def test_the_last_value_is_shown_by_rank(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cell(shell, "%%hvd\nprint('hello', node)\nx = rank + 1\nx * 10\n") is None
    said = capsys.readouterr().out
    assert "[rank 0 localhost] hello" in said
    assert said.splitlines()[-2:] == ["[rank 0 localhost] => 10", "[rank 1 node1] => 20"]


def test_a_semicolon_hides_it_and_statements_have_none(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cell(shell, "%%hvd -np 1\nrank + 1;  # hidden\n") is None
    assert cell(shell, "%%hvd -np 1\nx = 1\n") is None
    assert "=>" not in capsys.readouterr().out


def test_push_and_out(shell: Any) -> None:
    shell.user_ns |= {"factor": 3, "names": ["a"], "found": None}
    assert cell(shell, "%%hvd --push factor,names --out found\n[factor * rank, names]") is None
    assert shell.user_ns["found"] == [[0, ["a"]], [3, ["a"]]]
    assert "x" not in shell.user_ns


def test_quiet_shows_values_only(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cell(shell, "%%hvd -np 1 --quiet\nprint('loud')\n5")
    assert "loud" not in (said := capsys.readouterr().out)
    assert "=> 5" in said


def test_a_syntax_error_is_found_before_anything_starts(shell: Any, head: Head) -> None:
    error = cell(shell, "%%hvd\nx = 1\nif x\n    print(3)\n")
    assert isinstance(error, hc.ClusterError)
    assert "Cell In[1], line 3\n    if x" in str(error)
    assert "SyntaxError: expected ':'" in str(error)
    assert not head.runs.exists()
    assert "no % and no ! commands" in str(cell(shell, "%%hvd\n!ls\n"))


def test_a_traceback_shows_the_lines_of_the_cell(shell: Any) -> None:
    error = cell(shell, "%%hvd\ndef f():\n    return 1 / (rank - 1)\n\nf()\n")
    assert isinstance(error, hc.RankError)
    assert (error.rank, error.node) == (1, "node1")
    assert "Cell In[1], line 5" in error.traceback
    assert "Cell In[1], line 3, in f\n    return 1 / (rank - 1)" in error.traceback
    assert "cells.py" not in error.traceback
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_function_of_a_cell_has_its_lines_too(shell: Any) -> None:
    cell(shell, "import hvd_cluster as hc\ndef work():\n    raise KeyError('x')  # here\n")
    error = cell(shell, "hc.run(work, 1)")
    assert isinstance(error, hc.RankError)
    assert "Cell In[1], line 3, in work\n    raise KeyError('x')  # here" in error.traceback


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-np 9", "-np 9: the cluster has 2 slots"),
        ("-np x", "invalid int value: 'x'"),
        ("--push nowhere", "--push nowhere: the notebook has no variable"),
        ("--push lock", "--push lock: cannot pickle '_thread.lock' object"),
        ("--out a-b", "'a-b' is no name of a variable"),
        ("--frob", "unrecognized arguments: --frob"),
        ("'", "No closing quotation"),
    ],
)
def test_what_cant_work_is_refused_before_anything_starts(shell: Any, head: Head, line: str, words: str) -> None:
    shell.user_ns["lock"] = threading.Lock()
    error = cell(shell, f"%%hvd {line}\n1")
    assert type(error).__name__ == "UsageError"
    assert words in str(error)
    assert (head.runs.exists(), head.left()) == (False, [])


def test_a_last_value_that_cant_be_kept_is_told(shell: Any) -> None:
    error = cell(shell, "%%hvd -np 1 --out x\nimport threading\nthreading.Lock()")
    assert "--out: the last value is of type lock" in str(error)
    assert cell(shell, "%%hvd -np 1\nimport threading\nthreading.Lock()") is None, "shown it can be"


def test_horovod_is_there_where_the_cell_speaks_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd_cluster import cells

    monkeypatch.setattr(cells, "horovod", lambda: "Horovod")
    assert cells.execute("def f():\n    return hvd\nf()", "cell", {}, True)[1] == "Horovod"
    assert cells.execute("hvd", "cell", {"hvd": "pushed"}, True)[1] == "pushed"
    monkeypatch.setattr(cells, "horovod", lambda: pytest.fail("imports a framework for nothing"))
    assert cells.execute("1 + 1", "cell", {}, True)[1] == 2


def test_loading_it_again_changes_nothing(shell: Any) -> None:
    hc.load_ipython_extension(shell)
    assert cell(shell, "%%hvd -np 1\nrank") is None
    hc.unload_ipython_extension(shell)
    assert cell(shell, "%%hvd -np 1\nrank") is not None
