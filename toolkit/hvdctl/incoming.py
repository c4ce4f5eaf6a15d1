"""Files from the nodes to this machine. What runs on nodes is not trusted here.

The head lists what it has; what may come is decided here, name by name; rsync then gets these names and no others.
Only files and folders come home: no links, devices or set-id bits, and nothing is written through a link on this side.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, cast

from hvdctl import arriving, process, scratch, ssh
from hvdctl.arriving import CONFLICT as CONFLICT
from hvdctl.arriving import Arrived as Arrived
from hvdctl.arriving import Left as Left
from hvdctl.arriving import Thing as Thing
from hvdctl.arriving import amount as amount
from hvdctl.arriving import refuse_links as refuse_links
from hvdctl.arriving import shown as shown
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, UsageError

LIMIT = 10 * 2**30
"""Bytes that come at once unless the user allows more."""
MOST_FILES = 1_000_000
_LONGEST_PATH = 1024
_LONGEST_NAME = 255
_STAGE = ".hvdctl-arriving-"
# A file may grow after it was listed, and a file that is under way has two names.
_MORE_BYTES = 2**30
_MORE_NAMES = 100

# For what hvdctl keeps, and for what the user asked for.
PRIVATE = "D700,F600"
ASKED_FOR = "ug-s,o-t,go-w,u+rw,Du+x"

_SAFE = ("--no-links", "--no-devices", "--no-specials", "--no-owner", "--no-group")
_ITEM = re.compile(r"([<>ch.*])([fdLDS])[^|]{9}\|(\d+)\|(.*)")
_SKIPPED = re.compile(r'skipping non-regular file "(.*)"')
# What rsync says of a folder here, with something in it, that has the name of a file there.
_CONFLICT = re.compile(r"(cannot delete non-empty directory|could not make way for new [a-z ]+): (.*)")
_REMARK = re.compile(r"created directory |rsync error: |$")
# They reverse what is shown after them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def listed(cluster: Cluster, base: str, names: Sequence[str], target: str | Path) -> tuple[list[Thing], list[Left]]:
    """What the head has below these names, folders first, compared with the target; and what is no file or folder.

    A name that is not there is no error: nothing is told of it.
    """
    words = ["--recursive", "--dry-run", "-ii", "--out-format=%i|%l|%n", "--times"]
    argv = _argv(cluster, words, base, target)
    things: list[Thing] = []
    skipped: list[Left] = []
    conflicts: dict[bytes, None] = {}
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
            elif item := _CONFLICT.fullmatch(text):
                conflicts[_raw(item[2]).rstrip(b"/")] = None
            elif not _REMARK.match(text):
                said = [*said[-20:], text]
            if len(things) + len(skipped) + len(conflicts) > MOST_FILES:
                raise HvdctlError(
                    f"{shown('/'.join([base, names[0]]))} holds more than {MOST_FILES} files",
                    hint="pack them on the nodes, or copy a part of them",
                )
        code = child.wait()
    finally:
        child.terminate()
        child.wait()
        cast(IO[bytes], child.stdout).close()
    # 24: a file went while it was looked at; 23: not all can be copied
    if code not in (0, 24) and not (code == 23 and conflicts and not said):
        raise HvdctlError(f"copying failed: {reason(said)}")
    return things, skipped + [
        Left(shown(name), CONFLICT, hint=f"move {shown(f'{target}/{os.fsdecode(name)}')} to another folder")
        for name in conflicts
    ]


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
            if size > limit:
                larger = "`--max-size` allows more"
                left.append(Left(shown(thing.name), f"over the limit of {amount(limit)}", thing.size, hint=larger))
                continue
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
    further. Files that are whole when the copy is interrupted stay. `keeps` says why what is here already must not be
    replaced by a file that has arrived.
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
    made(target)
    with arriving.orderly() as wait, scratch.folder(target, _STAGE) as stage:
        most = min(limit, size + _MORE_BYTES)
        watch = partial(arriving.measure, stage, most, len(arriving.ways([thing.name for thing in new])) + _MORE_NAMES)
        argv = [*bounded, *_argv(cluster, words, base, stage)]
        try:
            done = process.capture(argv, stdin=names, env=_environment(), watch=watch)
            watch()
        except BaseException:
            wait()
            # What is whole stays, so that the next call goes on from there.
            with contextlib.suppress(HvdctlError):
                arriving.settled(stage, target, new, keeps, part=True)
            raise
        wait()
        arrived = arriving.settled(stage, target, new, keeps)
    if done.returncode not in (0, 24):
        if "No space left" in done.stderr or "Disk quota exceeded" in done.stderr:
            raise HvdctlError(f"no space is left on this machine's disk, in {target}", hint="free some space there")
        raise HvdctlError(f"copying failed: {reason(done.stderr.splitlines())}")
    return arrived


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


def made(folder: Path) -> None:
    """Make a folder and those above it, as far as they are not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{_there(folder)} is not a folder", hint="name another folder") from error


def _there(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return folder if folder.exists() or folder == folder.parent else _there(folder.parent)
