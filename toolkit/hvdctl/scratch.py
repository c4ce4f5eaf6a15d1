"""Temporary folders that outlive nobody: those of a killed hvdctl are removed by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdctl import paths

PREFIX = "scratch-"


def remove(made: Path) -> None:
    """Remove a folder, as far as that is possible."""
    shutil.rmtree(made, ignore_errors=True)


@contextmanager
def folder(place: Path | None = None, prefix: str = PREFIX, remove: Callable[[Path], None] = remove) -> Iterator[Path]:
    """Yield an empty folder in the place, and remove it at the end.

    Without a place its path is short enough for sockets.
    """
    place = place or paths.runtime()
    sweep(place, prefix, remove)
    while True:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        # Another hvdctl may remove the folder before we hold it.
        try:
            held = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(held, fcntl.LOCK_EX)
        if made.exists():
            break
        os.close(held)
    try:
        yield made
    finally:
        remove(made)
        os.close(held)


def sweep(place: Path | None = None, prefix: str = PREFIX, remove: Callable[[Path], None] = remove) -> None:
    """Remove our folders that no running hvdctl holds."""
    for left in (place or paths.runtime()).glob(f"{prefix}*"):
        try:
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # removed since, not a folder, or somebody else's
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(held).st_uid == os.getuid():
                remove(left)
        except BlockingIOError:
            pass  # its hvdctl is running
        finally:
            os.close(held)
