"""Tasks that wait for each other by events: what runs at once, what waits, what a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hvdctl.graph import Outlook, Task, run
from hvdctl.progress import Silent, Step, Stopped


class Log(Silent):
    """Writes down how phases begin and end, and what is said of the whole."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.looks: list[Callable[[], str] | None] = []

    @contextmanager
    def phase(self, title: str) -> Iterator[Step]:
        self.lines.append(f"{title} begins")
        try:
            yield self
        except BaseException as error:
            self.lines.append(f"{title} {type(error).__name__}")
            raise
        self.lines.append(f"{title} ends")

    def outlook(self, look: Callable[[], str] | None) -> None:
        self.looks.append(look)


def nothing(step: Step) -> None:
    pass


def test_a_task_waits_for_those_before_it_and_for_no_other() -> None:
    met = threading.Barrier(2, timeout=10)
    log = Log()

    def meet(step: Step) -> None:
        met.wait()

    run(
        [
            Task("a", meet),
            Task("b", meet),
            Task("c", nothing, after=("a", "b")),
        ],
        log,
    )
    assert log.lines[:2] == ["a begins", "b begins"], "they meet, so they run at once"
    assert log.lines[-2:] == ["c begins", "c ends"]


def test_a_task_that_has_nothing_to_do_is_not_waited_for() -> None:
    log = Log()
    run([Task("b", nothing, after=("a",))], log)
    assert log.lines == ["b begins", "b ends"]


def test_the_first_failure_is_raised_at_once_and_the_rest_given_up() -> None:
    never = threading.Event()
    log = Log()

    def fail(step: Step) -> None:
        raise ValueError("no network")

    def wait(step: Step) -> None:
        never.wait()

    tasks = [
        Task("slow", wait),
        Task("bad", fail),
        Task("next", nothing, after=("slow",)),
    ]
    try:
        with pytest.raises(ValueError, match="no network"):
            run(tasks, log)
    finally:
        never.set()
    assert log.lines == ["slow begins", "bad begins", "bad ValueError", f"slow {Stopped.__name__}"]
    assert log.looks[-1] is None, "the outlook is taken away"


def test_a_circle_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="cycle"):
        run([Task("a", nothing, after=("b",)), Task("b", nothing, after=("a",))], Silent())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_outlook_follows_the_longest_chain_at_the_pace_of_the_machine() -> None:
    clock = Clock()
    look = Outlook(
        [
            Task("a", nothing, expected=100),
            Task("b", nothing, after=("a",), expected=50),
            Task("c", nothing, expected=120),
        ],
        clock,
    )
    assert look.left() == 150
    look.begin("a")
    look.begin("c")
    clock.now = 40
    assert look.left() == 110
    assert look.text() == "0 of 3 done, about 1 min 50 s left of 2 min 30 s; then b"
    clock.now = 220
    look.end("a")
    # Twice as slow as expected, and c is late as well.
    assert 1.8 < look.pace < 2.1
    look.begin("b")
    assert 90 < look.left() < 105
    look.end("c")
    clock.now = 300
    look.end("b")
    assert look.left() == 0
    assert look.text().startswith("3 of 3 done")
