"""Files from the nodes to this machine. What runs on nodes is not trusted here.

The head lists what it has; what may come is decided here, name by name; rsync then gets these names and no others.
Only files and folders come home: no links, devices or set-id bits, and nothing is written through a link on this side.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from hvdctl import process, scratch, ssh
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError

LIMIT = 10 * 2**30
"""Bytes that come at once unless the user allows more."""
MOST_FILES = 1_000_000
_LONGEST_PATH = 1024
_LONGEST_NAME = 255
_STAGE = ".hvdctl-arriving-"
# A file may grow after it was listed, and a file that is under way has two names.
_MORE_BYTES = 2**30
_MORE_NAMES = 100
# How often the folder where files arrive is measured, and how much longer than measuring it the pause lasts.
_EVERY_S = 0.2
_PAUSE = 4

# For what hvdctl keeps, and for what the user asked for.
PRIVATE = "D700,F600"
ASKED_FOR = "ug-s,o-t,go-w,u+rw,Du+x"

_SAFE = ("--no-links", "--no-devices", "--no-specials", "--no-owner", "--no-group")
_ITEM = re.compile(r"([<>ch.*])([fdLDS])[^|]{9}\|(\d+)\|(.*)")
_SKIPPED = re.compile(r'skipping non-regular file "(.*)"')
_REMARK = re.compile(r"created directory |rsync error: |$")
# They reverse what is shown after them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


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


def listed(cluster: Cluster, base: str, names: Sequence[str], target: str | Path) -> tuple[list[Thing], list[Left]]:
    """What the head has below these names, folders first, compared with the target; and what is no file or folder.

    A name that is not there is no error: nothing is told of it.
    """
    words = ["--recursive", "--dry-run", "-ii", "--out-format=%i|%l|%n", "--times"]
    argv = _argv(cluster, words, base, target)
    things: list[Thing] = []
    skipped: list[Left] = []
    said: list[str] = []
    child = process.start(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment()
    )
    try:
        # One that has ended already says why on its output.
        with contextlib.suppress(BrokenPipeError), cast(IO[bytes], child.stdin) as asked:
            asked.write(b"".join(os.fsencode(name) + b"\0" for name in names))
        for line in cast(IO[bytes], child.stdout):
            text = line.decode(errors="replace").rstrip("\n")
            if item := _ITEM.fullmatch(text):
                name = _raw(item[4]).rstrip(b"/")
                things.append(Thing(name, int(item[3]), folder=item[2] == "d", new=item[1] != "."))
            elif item := _SKIPPED.fullmatch(text):
                skipped.append(Left(shown(_raw(item[1])), "not a file or folder", data=False))
            elif not _REMARK.match(text):
                said = [*said[-20:], text]
            if len(things) + len(skipped) > MOST_FILES:
                raise HvdctlError(
                    f"{shown('/'.join([base, names[0]]))} holds more than {MOST_FILES} files",
                    hint="pack them on the nodes, or copy a part of them",
                )
        code = child.wait()
    finally:
        child.terminate()
        child.wait()
        cast(IO[bytes], child.stdout).close()
    if code not in (0, 24):  # 24: a file went while it was looked at
        raise HvdctlError(f"copying failed: {reason(said)}")
    return things, skipped


def chosen(
    things: Sequence[Thing], limit: int, wanted: Callable[[str], str] = lambda name: ""
) -> tuple[list[Thing], list[Left]]:
    """Those that may come, and what is left out: `wanted` says why a name is not, in words. Pure.

    What is new counts against the limit, small files first, so that one large file does not keep the others away.
    """
    taken: list[Thing] = []
    left: list[Left] = []
    size = 0
    for thing in sorted(things, key=lambda one: (not one.folder, one.size)):
        why = unfit(thing.name) or wanted(os.fsdecode(thing.name))
        if not why and not thing.folder and thing.new:
            size += thing.size
            why = f"over the limit of {amount(limit)}" if size > limit else ""
        if why:
            left.append(Left(shown(thing.name), why, thing.size if not thing.folder else 0, data=not thing.folder))
        else:
            taken.append(thing)
    return taken, left


def copy(
    cluster: Cluster,
    base: str,
    things: Sequence[Thing],
    target: Path,
    *,
    modes: str,
    limit: int,
    keeps: Callable[[str, Path], str] = lambda name, staged: "",
) -> Arrived:
    """Bring these and nothing else below the target.

    They arrive in an empty folder first: whatever an old rsync lets the other side send, only what was asked for gets
    further. `keeps` says why what is here already must not be replaced by a file that has arrived.
    """
    new = [thing for thing in things if thing.new]
    files = [thing for thing in new if not thing.folder]
    size = sum(thing.size for thing in files)
    if not new:
        return Arrived()
    refuse_links(target, [thing.name for thing in new])
    free = shutil.disk_usage(_there(target)).free
    if size > free:
        raise HvdctlError(
            f"{amount(size)} are to come, and the disk of {target} has {amount(free)} free",
            hint="free some space there, or choose another folder",
        )
    # The sizes are those that the head told, and rsync there may be a job's own.
    bound = shutil.which("prlimit")
    largest = min(limit, max([thing.size for thing in files], default=0) + _MORE_BYTES)
    bounded = [bound, f"--fsize={largest}", "--"] if bound else []
    words = ["--times", "--perms", f"--chmod={modes}", "--compress", "--ignore-missing-args"]
    names = b"".join(thing.name + b"\0" for thing in new).decode()
    target.mkdir(parents=True, exist_ok=True)
    with scratch.folder(target, _STAGE) as stage:
        most = min(limit, size + _MORE_BYTES)
        watch = partial(_measure, stage, most, len(_ways([thing.name for thing in new])) + _MORE_NAMES)
        argv = [*bounded, *_argv(cluster, words, base, stage)]
        done = process.capture(argv, stdin=names, env=_environment(), watch=watch)
        watch()
        refuse_links(target, [thing.name for thing in new])
        arrived = _settled(stage, target, new, keeps)
    if done.returncode not in (0, 24):
        if "No space left" in done.stderr or "Disk quota exceeded" in done.stderr:
            raise HvdctlError(f"no space is left on this machine's disk, in {target}", hint="free some space there")
        raise HvdctlError(f"copying failed: {reason(done.stderr.splitlines())}")
    return arrived


def _measure(stage: Path, size: int, names: int) -> float:
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


def _settled(stage: Path, target: Path, things: Sequence[Thing], keeps: Callable[[str, Path], str]) -> Arrived:
    """Move what has arrived to its place. rsync names a file only when it is whole."""
    arrived = Arrived()
    for thing in things:
        name = os.fsdecode(thing.name)
        staged, place = stage / name, target / name
        try:
            kind, size = staged.lstat().st_mode, staged.lstat().st_size
        except OSError:
            continue  # it has gone meanwhile, or rsync stopped before
        try:
            if stat.S_ISDIR(kind):
                _folders(stage, target, name)
            elif stat.S_ISREG(kind):
                _folders(stage, target, os.path.dirname(name))  # noqa: PTH120 - a name on the share
                if why := keeps(name, staged):
                    arrived.left.append(Left(shown(thing.name), why, size))
                    continue
                if place.is_dir():
                    raise IsADirectoryError(errno.EISDIR, "it is a folder here, and a file on the share", str(place))
                _moved(staged, place)
                arrived.files += 1
                arrived.size += size
        except OSError as error:
            raise HvdctlError(f"copying failed: {error.filename or place}: {error.strerror}") from error
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
        shutil.copy2(staged, beside)
        beside.replace(place)


def refuse_links(target: Path, names: Sequence[bytes]) -> None:
    """Raise if the target, or anything below it on the way to these names, is a link."""
    for way in sorted({b"", *_ways(names)}):
        path = target / os.fsdecode(way)
        try:
            linked = stat.S_ISLNK(path.lstat().st_mode)
        except OSError:
            continue
        if linked:
            raise HvdctlError(
                f"{path} is a link, and what comes from nodes is not written through links",
                hint="remove it, or name the folder that it points to",
            )


def _ways(names: Sequence[bytes]) -> set[bytes]:
    """The names, and the folders that lead to them."""
    parted = [name.split(b"/") for name in names]
    return {b"/".join(parts[:count]) for parts in parted for count in range(len(parts) + 1)}


def unfit(name: bytes) -> str:
    """Why a name must not come home; nothing for most."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return "its name is not UTF-8"
    if any(unicodedata.category(letter) in {"Cc", "Zl", "Zp"} or letter in _TURNING for letter in text):
        return "its name has control characters"
    parts = text.split("/")
    if len(name) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return f"its path is longer than {_LONGEST_PATH} bytes"
    return "its name is no path" if {"", ".", ".."} & set(parts) else ""


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


def shell(cluster: Cluster) -> str:
    """How rsync logs in to a node."""
    return shlex.join(ssh.words(cluster.ssh_config))


def reason(said: Sequence[str]) -> str:
    """The line of rsync's that tells most."""
    lines = [line for line in said if line.strip()]
    told = next((line for line in lines if "rsync error" not in line), lines[-1] if lines else "no reason given")
    return shown(told)


def _argv(cluster: Cluster, words: Sequence[str], base: str, target: str | Path) -> list[str]:
    names = ["--files-from=-", "--from0", "--ignore-missing-args"]
    source = f"{ssh.pick(cluster).name}:{base.rstrip('/')}/"
    return [process.tool("rsync"), *_SAFE, *words, *names, "--mkpath", "-e", shell(cluster), source, f"{target}/"]


def _environment() -> dict[str, str]:
    """rsync then writes every byte of a name that is not plain ASCII as a number."""
    return {**os.environ, "LC_ALL": "C"}


def _raw(escaped: str) -> bytes:
    return re.sub(rb"\\#([0-7]{3})", lambda found: bytes([int(found[1], 8) & 255]), escaped.encode())


def _there(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return folder if folder.exists() or folder == folder.parent else _there(folder.parent)
