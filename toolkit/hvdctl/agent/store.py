"""The runs' folders on the share: one per run, named by its id.

run.json      state, request, layout, times; replaced as a whole, with room for its last word on a full share
env.json      the job's own environment, 0600
lock          held by the supervisor for as long as it lives, on whatever node that is
cancel        empty until someone wants the run to end
output.log    what all ranks said, tagged
rank-N.log    what rank N said, raw
rank-N.json   where rank N ran and how it ended
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
import time
from math import isfinite
from pathlib import Path
from typing import Any

FINAL = ("succeeded", "failed", "cancelled")
CANCELLED = 130  # the exit code of a run that was cancelled, as after Ctrl-C
UNREADABLE = "unreadable"  # what stands for the state of a run whose record is damaged
MOST = 2**20  # bytes of a record that is read
# A new run's record leaves room for how the run ended, with the last lines of the rank that failed.
MOST_AT_FIRST = MOST // 2
# Blanks after a run's record, so that a longer one can be written in its place on a full share.
_ROOM = 16384
_TORN_S = 0.05
_FULL = (errno.ENOSPC, errno.EDQUOT)
Shape = dict[str, type | tuple[type, ...]]
_SHAPE: Shape = {
    "id": int,
    "state": str,
    "np": int,
    "launcher": str,
    "command": list,
    "user_command": str,
    "hosts": list,
    "supervisor": dict,
    "started": (int, float, type(None)),
    "duration_s": (int, float, type(None)),
    "exit_code": (int, type(None)),
}


class AgentError(Exception):
    """What was asked can't be done; nothing was changed."""


def runs() -> Path:
    """The folder of all runs."""
    return Path(os.environ.get("HVD_RUNS") or "/shared/runs")


def find(run_id: str | int) -> Path:
    """The folder of one run."""
    folder = runs() / str(run_id)
    if not str(run_id).isdecimal() or not _recorded(folder):
        raise AgentError(f"no run {run_id}; there are: {_spans(ids()) or 'none'}")
    return folder


def ids() -> list[int]:
    """Every run's id, in order."""
    return sorted(int(path.name) for path in _numbered() if _recorded(path))


def allocate(wanted: int | None = None, after: int = 0) -> tuple[int, Path]:
    """A new run's id and folder: mkdir is atomic, so two callers never get the same one."""
    runs().mkdir(parents=True, exist_ok=True)
    run_id = wanted or max((int(path.name) for path in _numbered()), default=0) + 1
    run_id = wanted or max(run_id, after + 1)
    while True:
        try:
            (runs() / str(run_id)).mkdir()
        except FileExistsError:
            if wanted is not None:
                raise AgentError(f"run {wanted} exists") from None
            run_id += 1
        else:
            return run_id, runs() / str(run_id)


def load(folder: Path) -> dict[str, Any]:
    """run.json as it stands, with the state `lost` where the supervisor is gone and left no final state."""
    record = run(folder)
    if record["state"] not in FINAL and not supervised(folder):
        # It may have written its last word between our two looks.
        record = run(folder)
        if record["state"] not in FINAL:
            record["state"] = "lost"
    return record


def run(folder: Path) -> dict[str, Any]:
    """run.json as it was written; what is wrong with one that is damaged."""
    file = folder / "run.json"
    try:
        try:
            record = read(file)
        except ValueError:
            time.sleep(_TORN_S)  # on a full share it is written in place
            record = read(file)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "strerror", None) or ("it is not JSON" if _size(file) else "it is empty")
        raise AgentError(f"the record of run {folder.name} can't be read: {why}") from None
    if problem := damage(record, folder.name):
        raise AgentError(f"the record of run {folder.name} is damaged: {problem}")
    return record


def damage(record: Any, run_id: str, shape: Shape = _SHAPE) -> str | None:
    """What is wrong with the record of a run, such as `state is missing`; what may be None may be missing, too."""
    if not isinstance(record, dict):
        return f"it is a JSON {type(record).__name__}"
    for name, kind in shape.items():
        value = record.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, float) and not isfinite(value)):
            return f"{name} is missing" if value is None else f"{name} is {str(value)[:40]!r}"
    return None if str(record["id"]) == run_id else f"it is of run {record['id']}"


def keep(folder: Path, record: dict[str, Any]) -> None:
    """Write run.json; a full share takes it too once it is there."""
    write(folder / "run.json", record, durable=True, room=_ROOM)


def update(folder: Path, **fields: Any) -> dict[str, Any]:
    record = run(folder) | fields
    keep(folder, record)
    return record


def lock(folder: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the run's lock while a process has it open; None when another holds it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def supervised(folder: Path) -> bool:
    """Whether a supervisor lives, on whatever node: a lock, unlike a process id, is seen from all of them."""
    try:
        # A job may have put a link or a pipe there.
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise AgentError(f"the lock of run {folder.name} is not a file")
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise AgentError(f"the lock of run {folder.name} can't be read: {error.strerror}") from None
    return False


def read(path: Path, most: int | None = MOST) -> dict[str, Any]:
    """The JSON in a file; an error if it has more than `most` bytes."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        data = stream.read(-1 if most is None else most + 1)
    if most is not None and len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // 1024} KiB", str(path))
    content: dict[str, Any] = json.loads(data.decode())
    return content


def write(path: Path, content: Any, mode: int = 0o644, *, durable: bool = False, room: int = 0) -> None:
    """Replace the file as a whole: a reader sees the old content or the new, never a part.

    With `room`, so many blanks follow, and on a full disk a later content is written in its place.
    """
    data = (json.dumps(content, indent=1) + "\n").encode()
    try:
        write_bytes(path, data + b" " * room, mode, durable=durable)
    except OSError as error:
        if not room or error.errno not in _FULL or not len(data) <= _size(path):
            raise
        _overwrite(path, data.ljust(_size(path)))


def write_bytes(path: Path, content: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, mode)
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        _sync(path.parent)


def _overwrite(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # some file systems can't
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def request() -> dict[str, Any]:
    """The JSON object on stdin."""
    try:
        content = json.loads(sys.stdin.buffer.read())
    except ValueError as error:
        raise AgentError(f"stdin holds no JSON: {error}") from None
    if not isinstance(content, dict):
        raise AgentError(f"stdin holds a JSON {type(content).__name__}, not an object")
    return content


def answer(content: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def now() -> float:
    return round(time.time(), 3)


def here() -> str:
    """The name of this node: the container's host name, unless a service has chosen that."""
    try:
        return (config() / "name").read_text(encoding="utf-8").strip() or os.uname().nodename
    except OSError:
        return os.uname().nodename


def config() -> Path:
    """The folder of what the node was given."""
    return Path(os.environ.get("HVD_CONFIG") or "/etc/hvdctl")


def _spans(numbers: list[int]) -> str:
    """Such as `1 to 7, 9`, of numbers in order."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join(" to ".join(map(str, span)) for span in spans)


def _recorded(folder: Path) -> bool:
    """Whether this is the folder of a run. A job may have put a link there, or have taken rights away."""
    try:
        return not folder.is_symlink() and (folder / "run.json").is_file()
    except OSError:
        return True  # reading it says what is wrong


def _numbered() -> list[Path]:
    folder = runs()
    return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
