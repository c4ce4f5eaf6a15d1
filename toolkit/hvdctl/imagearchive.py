"""An image as the engine writes it, without the layers that the other side has."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from hvdctl import paths
from hvdctl.cluster import digest

if TYPE_CHECKING:
    from docker import DockerClient

_PIECE = 2**18
# Seconds that an archive is kept after its last use.
_KEPT = 86400


def light(client: DockerClient, image: str, identity: str, left_out: Sequence[str]) -> Iterable[bytes]:
    """The engine's archive of an image without some of its layers, in pieces.

    Where only the last layers are left, it is kept: the engine writes all of them before it can be told which.
    """
    if not left_out:
        return _archive(client.api.get_image(image), set(), None)
    kept = paths.private(paths.cache() / "push") / f"{digest(image, identity, *left_out)}.tar"
    try:
        source: IO[bytes] = kept.open("rb")
        os.utime(source.fileno())
    except FileNotFoundError:
        with _named(kept.parent):
            source = _written(kept, _archive(client.api.get_image(image), set(left_out), kept.parent))
    return _pieces(source)


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """A disk that is full does not say which one it is."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT} and error.filename is None:
            error.filename = str(folder)
        raise


def _written(kept: Path, pieces: Iterable[bytes]) -> IO[bytes]:
    """The new file, open: whatever another push removes, it can be read."""
    # What is young may be another push's, half written.
    for old in kept.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _KEPT:
                old.unlink()
    handle, name = tempfile.mkstemp(dir=kept.parent, suffix=".part")
    source = os.fdopen(handle, "w+b")
    try:
        source.writelines(pieces)
        Path(name).replace(kept)
    except BaseException:
        source.close()
        Path(name).unlink(missing_ok=True)
        raise
    source.seek(0)
    return source


def _pieces(source: IO[bytes]) -> Iterable[bytes]:
    with source:
        while piece := source.read(_PIECE):
            yield piece


def _archive(stream: Iterable[bytes], left_out: set[str], room: Path | None) -> Iterable[bytes]:
    """The archive without some of its layers, as it comes; a layer that may be one of them lies in `room` a while."""
    read, write = os.pipe()
    failed: list[BaseException] = []

    def strip() -> None:
        try:
            with (
                os.fdopen(write, "wb") as out,
                tarfile.open(fileobj=out, mode="w|") as lighter,
                tarfile.open(fileobj=cast(IO[bytes], _Stream(stream)), mode="r|") as source,
            ):
                _copy(source, lighter, left_out, room)
        except BaseException as error:  # told by the reader
            failed.append(error)

    worker = threading.Thread(target=strip, daemon=True)
    worker.start()
    with os.fdopen(read, "rb") as pieces:
        while piece := pieces.read(_PIECE):
            yield piece
    worker.join()
    if failed:
        raise failed[0]


def _copy(source: tarfile.TarFile, lighter: tarfile.TarFile, left_out: set[str], room: Path | None) -> None:
    """Entries of the archive but the layers to be left out.

    The manifest may be the archive's last entry, so a layer is recognised by the digest of its tar, which is its name
    in the image's configuration.
    """

    for entry in source:
        content = source.extractfile(entry) if entry.isfile() else None
        if content is None or not left_out or not _is_layer(entry.name):
            lighter.addfile(entry, content)
            continue
        with tempfile.TemporaryFile(dir=room) as kept:
            sum_ = hashlib.sha256()
            while piece := content.read(_PIECE):
                sum_.update(piece)
                kept.write(piece)
            if f"sha256:{sum_.hexdigest()}" in left_out:
                continue
            kept.seek(0)
            lighter.addfile(entry, kept)


def _is_layer(name: str) -> bool:
    return name.endswith("/layer.tar") or name.startswith("blobs/sha256/")


class _Stream:
    """Pieces as a file that can be read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
