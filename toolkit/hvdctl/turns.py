"""One process at a time, by a lock on a file that names its holder. It ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdctl.errors import LockedError

_LOOK_S = 0.2


@contextmanager
def alone(file: Path, what: str, waiting: Callable[[str], None] | None = None, *, limit: float) -> Iterator[None]:
    """Hold the file. While another process does, `waiting` is told who; after `limit` seconds that is an error."""
    with file.open("a+") as lock:
        deadline = time.monotonic() + limit
        while not _taken(lock.fileno()):
            holder = _holder(file)
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"{holder} has been busy with {what} for more than {limit:.0f} s",
                    hint="wait for it, or end it, and repeat the command",
                )
            if waiting:
                waiting(holder)
            time.sleep(_LOOK_S)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: Path) -> str:
    pid = file.read_text().strip()
    return f"process {pid}" if pid else "another process"
