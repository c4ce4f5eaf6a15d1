"""Tasks that depend on each other: those that can run now run side by side, with an outlook on the rest."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from graphlib import TopologicalSorter

from hvdctl.board import seconds
from hvdctl.progress import Progress, Step, Stopped


@dataclass(frozen=True)
class Task:
    """Work with a title of its own, to be done after the tasks with the titles in `after`."""

    title: str
    work: Callable[[Step], None]
    after: tuple[str, ...] = ()
    # How long it takes on two cores beside other tasks; the outlook follows the pace of the machine.
    expected: float = 10.0


def run(tasks: Sequence[Task], progress: Progress, later: Sequence[Task] = ()) -> None:
    """Do all tasks, each as soon as those before it are done. The first failure is raised at once.

    `later` are tasks of a following run; the outlook counts them. What a failure or Ctrl-C gives up are daemon threads:
    they end with the process, and so do the processes that they started.
    """
    todo = {task.title: task for task in tasks}
    # A task may come after one that has nothing to do and is not in the list.
    sorter = TopologicalSorter({task.title: [title for title in task.after if title in todo] for task in tasks})
    sorter.prepare()
    ended: queue.SimpleQueue[tuple[str, BaseException | None]] = queue.SimpleQueue()
    outlook = Outlook([*tasks, *later])
    open_phases: dict[str, ExitStack] = {}

    def work(task: Task, step: Step) -> None:
        try:
            task.work(step)
        except BaseException as error:  # told to the thread that waits
            ended.put((task.title, error))
        else:
            ended.put((task.title, None))

    if len(outlook.tasks) > 1:
        progress.outlook(outlook.text)
    try:
        while sorter.is_active():
            for title in sorter.get_ready():
                open_phases[title] = ExitStack()
                step = open_phases[title].enter_context(progress.phase(title))
                outlook.begin(title)
                threading.Thread(target=work, args=(todo[title], step), daemon=True).start()
            title, error = ended.get()
            outlook.end(title)
            _close(open_phases.pop(title), error)
            sorter.done(title)
    finally:
        for phase in open_phases.values():
            _close(phase, Stopped(), quiet=True)
        progress.outlook(None)


class Outlook:
    """How far the tasks are, and how long they will take."""

    def __init__(self, tasks: Sequence[Task], clock: Callable[[], float] = time.monotonic) -> None:
        self.tasks = {task.title: task for task in tasks}
        self._clock = clock
        self._began = clock()
        self._started: dict[str, float] = {}
        self._took: dict[str, float] = {}

    def begin(self, title: str) -> None:
        self._started[title] = self._clock()

    def end(self, title: str) -> None:
        self._took[title] = self._clock() - self._started[title]

    def text(self) -> str:
        waiting = [title for title in self.tasks if title not in self._started]
        left = self.left()
        total = self._clock() - self._began + left
        then = f"; then {', '.join(waiting)}" if waiting else ""
        return (
            f"{len(self._took)} of {len(self.tasks)} done, about {seconds(round(left))} left of "
            f"{seconds(round(total))}{then}"
        )

    def left(self) -> float:
        """The longest chain of what is not done, at the pace of what is."""
        chains: dict[str, float] = {}

        def chain(title: str) -> float:
            if title not in self.tasks:
                return 0.0
            if title not in chains:
                task = self.tasks[title]
                chains[title] = self._open(task) + max((chain(before) for before in task.after), default=0.0)
            return chains[title]

        return max((chain(title) for title in self.tasks), default=0.0)

    def _open(self, task: Task) -> float:
        if task.title in self._took:
            return 0.0
        expected = task.expected * self.pace
        if task.title in self._started:
            # One that takes longer than expected is always nearly done.
            return max(expected - (self._clock() - self._started[task.title]), 0.1 * expected)
        return expected

    @property
    def pace(self) -> float:
        """How long tasks take here, in terms of what was expected; short ones say little."""
        spent = dict(self._took)
        for title, began in self._started.items():
            # One that is late already says that the machine is slow.
            if (elapsed := self._clock() - began) > self.tasks[title].expected:
                spent.setdefault(title, elapsed)
        return (sum(spent.values()) + 20) / (sum(self.tasks[title].expected for title in spent) + 20)


def _close(phase: ExitStack, error: BaseException | None, *, quiet: bool = False) -> None:
    if error is None:
        phase.close()
        return
    try:
        phase.__exit__(type(error), error, error.__traceback__)
    except BaseException:
        if not quiet:
            raise
        return
    if not quiet:
        raise error
