"""Which part of a log answers a request: imec's client follows a log by asking again for what comes after an offset."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """The status to answer, the bytes from `start` up to but without `end`, and the Content-Range."""

    status: int
    start: int = 0
    end: int = 0
    content_range: str | None = None


def part(wanted: str | None, size: int) -> Part:
    """What to answer to this `Range` for a log of `size` bytes.

    imec's client takes the number after the dash as the start of its next request. So it must be the first byte that
    was not sent, one more than HTTP itself says: else each answer would begin with the last byte of the one before.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", (wanted or "").strip())
    if found is None or not (found[1] or found[2]):
        return Part(200, 0, size)
    if not found[1]:
        start, end = max(0, size - int(found[2])), size
    else:
        start, end = int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)
    if start >= end:
        return Part(204)
    return Part(206, start, end, f"bytes {start}-{end}/{size}")
