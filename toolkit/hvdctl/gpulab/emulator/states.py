"""The states of a job, and what a user may make of each."""

from __future__ import annotations

ONHOLD = "ONHOLD"
QUEUED = "QUEUED"
ASSIGNED = "ASSIGNED"
STARTING = "STARTING"
RUNNING = "RUNNING"
CANCELLING = "CANCELLING"
CANCELLED = "CANCELLED"
FINISHED = "FINISHED"
FAILED = "FAILED"
DELETED = "DELETED"
MUSTHALT = "MUSTHALT"
HALTING = "HALTING"
HALTED = "HALTED"

WAITING = frozenset({ONHOLD, QUEUED})
# What counts for the limits of a user and a project.
COUNTED = frozenset({ASSIGNED, STARTING, RUNNING, MUSTHALT, HALTING})
# What holds a place on a worker.
PLACED = COUNTED | {CANCELLING}
ENDED = frozenset({CANCELLED, FINISHED, FAILED, HALTED, DELETED})
ALL = WAITING | PLACED | ENDED
# The states that have a time of their own in a job's eventTimes.
TIMED = ALL - {ONHOLD, CANCELLING}

_FOLLOWS: dict[str, dict[str, str]] = {
    CANCELLED: {
        ONHOLD: CANCELLED,
        QUEUED: CANCELLED,
        CANCELLED: CANCELLED,
        **dict.fromkeys(PLACED, CANCELLING),
    },
    ONHOLD: {QUEUED: ONHOLD, ONHOLD: ONHOLD},
    QUEUED: {ONHOLD: QUEUED, QUEUED: QUEUED},
    MUSTHALT: {RUNNING: MUSTHALT, MUSTHALT: MUSTHALT, HALTING: HALTING},
}
_VERBS = {CANCELLED: "cancelled", ONHOLD: "put on hold", QUEUED: "released", MUSTHALT: "halted"}


class NotPossible(ValueError):
    """The state asked for can't follow; the text says why."""


def named(text: str) -> str:
    """The state that a text means: `Must Halt`, `"ON HOLD"` and `musthalt` are as good as the names."""
    return text.strip().strip('"').replace(" ", "").replace("_", "").upper()


def after(current: str, wanted: str) -> str:
    """The state that follows when a user asks for `wanted`; asking again for what is under way changes nothing."""
    if wanted not in _FOLLOWS:
        choices = ", ".join(sorted(_FOLLOWS))
        raise NotPossible(f"{wanted!r} is no state that can be asked for; choose one of: {choices}")
    if current not in _FOLLOWS[wanted]:
        possible = ", ".join(sorted(_FOLLOWS[wanted]))
        raise NotPossible(f"a job that is {current} can't be {_VERBS[wanted]}; it must be one of: {possible}")
    return _FOLLOWS[wanted][current]


def removable(current: str, *, finished: bool, force: bool) -> None:
    """Raise where a job in this state can't be removed by such a request."""
    if force or current in WAITING or current == DELETED or (current in ENDED and finished):
        return
    if current in ENDED:
        raise NotPossible(f"the job is {current}: removing a job that ended needs finished=true (rm --finished)")
    raise NotPossible(f"the job is {current}: cancel it before it is removed")
