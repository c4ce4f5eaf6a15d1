"""Files that matter: replaced as a whole, and on the disk before anything goes on."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from hvdctl import paths


def write(file: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Write all or nothing; a power cut or a full disk leaves the old content or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=paths.private(file.parent), prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(data)
            temporary.flush()
            os.fsync(handle)
        Path(name).chmod(mode)
        Path(name).replace(file)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, name):
            error.filename = str(file)  # a full disk is told with the file that it has no room for
        raise
    sync(file.parent)


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # some file systems can't
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
