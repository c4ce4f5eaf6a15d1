"""Files that matter: replaced as a whole, and on the disk before anything goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
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


def rewrite(file: Path, content: str) -> None:
    """Write a file of the user's own all or nothing: through a link, with the mode and owner that it has."""
    target = Path(os.path.realpath(file))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    if not target.exists():
        os.umask(usual := os.umask(0))
        write(target, content, 0o666 & ~usual)
    elif (known := target.stat()) and stat.S_ISREG(known.st_mode) and os.access(target.parent, os.W_OK):
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        try:
            write(target, content, stat.S_IMODE(known.st_mode))
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EXDEV):  # a single file that is mounted can't be replaced
                raise
            target.write_text(content, encoding="utf-8")
            return
        with contextlib.suppress(OSError):  # root may
            os.chown(target, known.st_uid, known.st_gid)
    else:
        target.write_text(content, encoding="utf-8")  # such as /dev/stdout, or in a folder of somebody else


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # some file systems can't
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
