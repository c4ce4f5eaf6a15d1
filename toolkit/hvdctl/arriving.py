"""What has arrived from nodes, in an empty folder of its own, and how it gets from there to its place."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import FrameType

from hvdctl.errors import HvdctlError

CONFLICT = "it is a folder here, and a file on the share"
# How often the folder where files arrive is measured, and how much longer than measuring it the pause lasts.
_EVERY_S = 0.2
_PAUSE = 4


@dataclass(frozen=True)
class Thing:
    """A file or folder on the head, by its path below the folder that was asked."""

    name: bytes
    size: int
    folder: bool = False
    new: bool = True
    """Whether the copy here differs, or is not there."""


@dataclass(frozen=True)
class Left:
    """What did not come, and why."""

    name: str
    why: str
    size: int = 0
    data: bool = True
    """Whether it holds anything that is lost with the share: links and devices don't."""
    hint: str = ""
    """What makes it come, if anything does."""


@dataclass
class Arrived:
    """What a copy brought."""

    files: int = 0
    size: int = 0
    left: list[Left] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.files} new files, {amount(self.size)}" if self.files != 1 else f"1 new file, {amount(self.size)}"

    def notes(self) -> list[str]:
        """What did not come, a line for each reason."""
        told = []
        for why in dict.fromkeys(one.why for one in self.left):
            names = [f"{one.name}{f' ({amount(one.size)})' if one.size else ''}" for one in self.left if one.why == why]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            told.append(f"left out ({why}): {', '.join(names[:3])}{more}")
        return told


def measure(stage: Path, size: int, names: int) -> float:
    """Raise if more has arrived than may; the seconds until it is to be measured again."""
    began = time.monotonic()
    found, count, folders = 0, 0, [os.fspath(stage)]
    while folders:
        # A file or folder may go while it is looked at.
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found += entry.stat(follow_symlinks=False).st_size
        if found > size or count > names:
            raise HvdctlError(
                f"copying failed: the head sends more than it has listed, over {amount(size)} or {names} names",
                hint="try again when no job writes there; or rsync on the head is not the real one",
            )
    return max(_EVERY_S, _PAUSE * (time.monotonic() - began))


@contextmanager
def orderly() -> Iterator[Callable[[], None]]:
    """Let SIGTERM and SIGHUP unwind the block, as Ctrl-C does, so that it leaves no folder behind.

    After the first one, and after a call of what it yields, all three wait for the end of the block. Signals that are
    handled or ignored already stay so.
    """
    waiting = False
    came: list[int] = []

    def wait() -> None:
        nonlocal waiting
        waiting = True

    def act(number: int, _: FrameType | None) -> None:
        nonlocal waiting
        came.append(number)
        if not waiting:
            waiting = True
            _end(number)

    defaults: dict[int, Callable[[int, FrameType | None], object] | signal.Handlers] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number, default in defaults.items() if main and signal.getsignal(number) == default]
    try:
        for number in ours:
            signal.signal(number, act)
        yield wait
    finally:
        for number in ours:
            signal.signal(number, defaults[number])
        if came:
            _end(came[0])


def _end(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def settled(
    stage: Path, target: Path, things: Sequence[Thing], keeps: Callable[[str, Path], str], *, part: bool = False
) -> Arrived:
    """Move what has arrived to its place. rsync names a file only when it is whole.

    Of a copy that was cut short (`part`), only files that are no larger than listed: all of them are within the limit.
    One that can't be moved does not keep the others away: the first such error is raised at the end.
    """
    names = [thing.name for thing in things]
    refuse_links(target, names)
    refuse_links(stage, names, "rsync on the head is not the real one")
    arrived = Arrived()
    failed: list[tuple[Path, OSError]] = []
    for thing in things:
        name = os.fsdecode(thing.name)
        staged, place = stage / name, target / name
        try:
            kind, size = staged.lstat().st_mode, staged.lstat().st_size
        except OSError:
            continue  # it has gone meanwhile, or rsync stopped before
        if part and (not stat.S_ISREG(kind) or size > thing.size):
            continue
        try:
            if stat.S_ISDIR(kind):
                _folders(stage, target, name)
            elif stat.S_ISREG(kind):
                if why := keeps(name, staged):
                    arrived.left.append(Left(shown(thing.name), why, size))
                    continue
                _folders(stage, target, os.path.dirname(name))  # noqa: PTH120 - a name on the share
                if place.is_dir():
                    raise IsADirectoryError(errno.EISDIR, CONFLICT, str(place))
                _moved(staged, place)
                arrived.files += 1
                arrived.size += size
        except OSError as error:
            failed.append((place, error))
    for place, first in failed[:1]:
        raise HvdctlError(f"copying failed: {first.filename or place}: {first.strerror}") from first
    return arrived


def _folders(stage: Path, target: Path, name: str) -> None:
    """Make the folder of this name and those above it, with the modes that they arrived with."""
    for way in [*reversed(PurePosixPath(name).parents), PurePosixPath(name)]:
        place = target / way
        if place != target and not place.is_dir():
            place.mkdir()
            place.chmod(stat.S_IMODE((stage / way).lstat().st_mode))


def _moved(staged: Path, place: Path) -> None:
    try:
        staged.replace(place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = place.with_name(f".{secrets.token_hex(8)}")  # a folder of the target is another file system
        try:
            shutil.copy2(staged, beside)
            beside.replace(place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def refuse_links(
    target: Path, names: Sequence[bytes], hint: str = "remove it, or name the folder that it points to"
) -> None:
    """Raise if the target, or anything below it on the way to these names, is a link."""
    for way in sorted({b"", *ways(names)}):
        path = target / os.fsdecode(way)
        try:
            linked = stat.S_ISLNK(path.lstat().st_mode)
        except OSError:
            continue
        if linked:
            raise HvdctlError(
                f"{path} is a link, and what comes from nodes is not written through links",
                hint=hint,
            )


def ways(names: Sequence[bytes]) -> set[bytes]:
    """The names, and the folders that lead to them."""
    parted = [name.split(b"/") for name in names]
    return {b"/".join(parts[:count]) for parts in parted for count in range(len(parts) + 1)}


def shown(name: bytes | str) -> str:
    """A name for a message: on one line, without what a terminal would obey."""
    text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else name
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if len(text) <= 100 else f"{text[:60]}...{text[-30:]}"


def amount(size: float) -> str:
    """12 bytes, 3.4 MiB, 1.2 GiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"
