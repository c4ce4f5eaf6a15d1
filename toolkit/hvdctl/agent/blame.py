"""Which of several failed ranks was the cause. Pure.

When one rank fails, its peers lose their connection to it and fail too, often before the first has quite ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_LOST_PEER = re.compile(
    r"HorovodInternalError|Horovod has been shut down|Connection (?:closed|reset) by peer|"
    r"remote process exited|One of the processes.*has (?:failed|crashed)"
)
_ENDED_BY_SIGNAL = (129, 130, 137, 143)


def lost_a_peer(lines: Iterable[str]) -> bool:
    """Whether a rank's last lines say that it failed because another was gone."""
    return any(_LOST_PEER.search(line) for line in lines)


def first_failure(records: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The record of the rank that failed by itself and first."""
    failed = [record for record in records if record["exit_code"]]
    return min(failed, key=lambda record: (_rung(record), record["ended"]), default=None)


def _rung(record: dict[str, Any]) -> int:
    """0: failed by itself, 1: lost a peer, 2: was told to end, and did."""
    if record.get("told_to_end") and record["exit_code"] in _ENDED_BY_SIGNAL:
        return 2
    return 1 if record.get("lost_a_peer") else 0
