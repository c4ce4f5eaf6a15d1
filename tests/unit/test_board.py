"""The progress display in a terminal of some lines, read back by the marks that it writes."""

from __future__ import annotations

import re
import sys
import threading

import pytest
from hvdctl.board import Board, fitted, seconds
from hvdctl.progress import Stopped


def screen(written: str) -> list[str]:
    """The lines that a terminal shows after this was written: erasing goes up and clears."""
    lines = [""]
    for part in re.split(r"(\x1b\[\d+A\r\x1b\[J|\n)", written):
        if part == "\n":
            lines.append("")
        elif part.startswith("\x1b") and part.endswith("J"):
            up = int(re.findall(r"\d+", part)[0])
            del lines[len(lines) - 1 - up :]
            lines.append("")
        else:
            lines[-1] += re.sub(r"\x1b\[[0-9;]*m", "", part)
    return [line.rstrip() for line in lines if line.strip()]


def test_phases_of_several_threads_are_shown_together(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(live=True)
    board.outlook(lambda: "1 of 3 done")
    with board.phase("Debian") as debian, board.phase("Packages") as packages:
        debian.update("unpacking")
        packages.update("torch")
        board.write("a remark")
        shown = screen(capsys.readouterr().err)
    assert shown[0] == "a remark"
    assert re.fullmatch(r"\S Debian  0\.\d s  unpacking", shown[1])
    assert re.fullmatch(r"\S Packages  0\.\d s  torch", shown[2])
    assert shown[3] == "1 of 3 done"


def test_what_ended_stays_in_order_and_nothing_live_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(live=True)
    with board.phase("first"):
        pass
    with pytest.raises(ValueError, match="x"), board.phase("second") as step:
        step.update("half")
        raise ValueError("x")
    with pytest.raises(Stopped), board.phase("third"):
        raise Stopped
    shown = screen(capsys.readouterr().err)
    assert [re.sub(r"\d\.\d", "#", line) for line in shown] == ["✓ first  # s", "✗ second  # s  half", "- third  # s"]


def test_a_thread_that_was_given_up_writes_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(live=True)
    with board.phase("work") as step:
        pass
    capsys.readouterr()

    def report() -> None:
        step.update("late")
        step.note("late")

    late = threading.Thread(target=report)
    late.start()
    late.join()
    assert capsys.readouterr().err == ""


def test_without_a_terminal_there_are_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(live=False)
    with board.phase("Debian") as step:
        step.update("unpacking")
        step.note("from a mirror")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Debian ...", "Debian: from a mirror"]
    assert re.fullmatch(r"Debian: done in 0\.\d s", lines[2])


def test_results_go_above_what_is_live(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(live=True)
    with board.phase("work"):
        board.write("a result", sys.stdout)
        told = capsys.readouterr()
        assert told.out == "a result\n"
        assert screen(told.err)[-1].endswith("s")


def test_no_line_is_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("LINES", "4")
    board = Board(live=True)
    board.outlook(lambda: "x" * 100)
    with board.phase("one") as one, board.phase("two"), board.phase("three"):
        one.update("\x1b[31mred\x1b[0m and\ttabs\r" + "y" * 100)
        board.write("-")
        shown = screen(capsys.readouterr().err)
    assert all(len(line) < 30 for line in shown)
    assert len(shown) <= 4, "it fits on the screen"


@pytest.mark.parametrize(("value", "text"), [(3.24, "3.2 s"), (60, "1 min 0 s"), (250.9, "4 min 10 s")])
def test_durations(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("columns", "text"), [(10, "abcdef"), (5, "abc…"), (1, ""), (0, "")])
def test_text_is_cut_to_the_room(columns: int, text: str) -> None:
    assert fitted("abcdef", columns) == text
