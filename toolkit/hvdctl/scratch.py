"""Temporary folders that outlive nobody: those of a killed hvdctl are removed by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdctl import paths

_PREFIX = "scratch-"


@contextmanager
def folder() -> Iterator[Path]:
    """Yield an empty folder on a path short enough for sockets, and remove it at the end."""
    sweep()
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=paths.runtime()))
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
        shutil.rmtree(made, ignore_errors=True)
        os.close(held)


def sweep() -> None:
    """Remove the folders that no running hvdctl holds."""
    for left in paths.runtime().glob(f"{_PREFIX}*"):
        try:
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # removed since, or not a folder
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            pass  # its hvdctl is running
        finally:
            os.close(held)
