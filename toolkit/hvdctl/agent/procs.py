"""Processes as /proc shows them: who belongs to a run, who started whom, and how to end them all.

Every process of a rank's command carries HVDCTL_RUN=<id> and HVDCTL_RANK=<n> in its environment, the wrapper
around it HVDCTL_RUN alone, and what launches the ranks HVDCTL_LAUNCH=<id>.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .store import AgentError, answer

GRACE = float(os.environ.get("HVD_GRACE") or 5)

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """`reap ID [--grace SECONDS]`: prints {"ended": how many, "left": [process ids]}."""
    match argv:
        case [run_id] if run_id.isdecimal():
            grace = GRACE
        case [run_id, "--grace", seconds] if run_id.isdecimal():
            grace = float(seconds)
        case _:
            raise AgentError("usage: reap ID [--grace SECONDS]")
    ended, left = reap(int(run_id), grace)
    answer({"ended": ended, "left": left})
    return 1 if left else 0


def reap(run_id: int, grace: float = GRACE) -> tuple[int, list[int]]:
    """End every process of a run on this node: its ranks first, so that their last words get through."""
    ended, left = end(marks(f"HVDCTL_RUN={run_id}"), grace)
    launcher = marks(f"HVDCTL_LAUNCH={run_id}")
    # Without its ranks it ends by itself; mpirun crashes when it is told to end while it does so.
    _wait(launcher, 4.0)
    more, also_left = end(launcher, min(grace, 2.0))
    return ended + more, left + also_left


def marks(*words: str) -> list[str]:
    """The marks of a process; where the runs lie in another folder than usual, ids are unique within that."""
    chosen = os.environ.get("HVD_RUNS")
    return [*words, f"HVD_RUNS={chosen}"] if chosen else [*words]


def end(wanted: list[str], grace: float) -> tuple[int, list[int]]:
    """SIGTERM to all that carry the marks, SIGKILL to those still there after the grace period."""
    told: set[int] = set()
    deadline = time.monotonic() + grace
    while (alive := marked(wanted)) and time.monotonic() < deadline:
        _signal(alive - told, signal.SIGTERM)
        told |= alive
        time.sleep(0.02)
    deadline = time.monotonic() + 5.0
    while (alive := marked(wanted)) and time.monotonic() < deadline:
        told |= alive
        _signal(alive, signal.SIGKILL)
        time.sleep(0.02)
    return len(told - alive), sorted(alive)


def marked(wanted: list[str]) -> set[int]:
    """Processes that carry all the marks, and their descendants, which may have overwritten theirs."""
    words = [b"\0" + word.encode() + b"\0" for word in wanted]
    found, parents = set(), {}
    for pid in [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]:
        try:
            environ = b"\0" + (_PROC / str(pid) / "environ").read_bytes() + b"\0"
        except OSError:
            continue  # ended, or not ours
        parent = parent_of(pid)
        if parent is None:
            continue
        parents[pid] = parent
        if all(word in environ for word in words):
            found.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found - {os.getpid()}


def parent_of(pid: int) -> int | None:
    """The process that `pid` belongs to; None when it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[1])


def lineage() -> list[tuple[int, int]]:
    """(process, parent) from here up to the SSH session or to process 1: all who must live on."""
    links = []
    pid = os.getpid()
    while (parent := parent_of(pid)) and parent > 1:
        links.append((pid, parent))
        if _name(parent).startswith("sshd"):
            break
        pid = parent
    return links


def orphaned(links: Iterable[tuple[int, int]]) -> bool:
    """Whether one of the processes in between has gone."""
    return any(parent_of(pid) != parent for pid, parent in links)


def dying_with_parent(signum: int) -> Callable[[], None]:
    """For `preexec_fn`: the kernel signals the child when its parent ends, even by SIGKILL."""
    import ctypes

    libc = ctypes.CDLL(None)  # before the fork: in the child only little may be done
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace")
    except OSError:
        return ""


def _wait(wanted: list[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and marked(wanted):
        time.sleep(0.05)


def _signal(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue
