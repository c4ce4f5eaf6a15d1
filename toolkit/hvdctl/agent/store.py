"""The runs' folders on the share: one per run, named by its id.

run.json      state, request, layout, times; replaced as a whole
env.json      the job's own environment, 0600
lock          held by the supervisor for as long as it lives, on whatever node that is
cancel        empty until someone wants the run to end
output.log    what all ranks said, tagged
rank-N.log    what rank N said, raw
rank-N.json   where rank N ran and how it ended
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FINAL = ("succeeded", "failed", "cancelled")
CANCELLED = 130  # the exit code of a run that was cancelled, as after Ctrl-C


class AgentError(Exception):
    """What was asked can't be done; nothing was changed."""


def runs() -> Path:
    """The folder of all runs."""
    return Path(os.environ.get("HVD_RUNS") or "/shared/runs")


def find(run_id: str | int) -> Path:
    """The folder of one run."""
    folder = runs() / str(run_id)
    if not str(run_id).isdecimal() or not (folder / "run.json").is_file():
        raise AgentError(f"no run {run_id}; there are: {_spans(ids()) or 'none'}")
    return folder


def ids() -> list[int]:
    """Every run's id, in order."""
    return sorted(int(path.name) for path in _numbered() if (path / "run.json").is_file())


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
    record = read(folder / "run.json")
    if record["state"] not in FINAL and not supervised(folder):
        # It may have written its last word between our two looks.
        record = read(folder / "run.json")
        if record["state"] not in FINAL:
            record["state"] = "lost"
    return record


def update(folder: Path, **fields: Any) -> dict[str, Any]:
    record = read(folder / "run.json") | fields
    write(folder / "run.json", record)
    return record


def lock(folder: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the run's lock while a process has it open; None when another holds it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def supervised(folder: Path) -> bool:
    """Whether a supervisor lives, on whatever node: a lock, unlike a process id, is seen from all of them."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def write(path: Path, content: Any, mode: int = 0o644, *, durable: bool = False) -> None:
    """Replace the file as a whole: a reader sees the old content or the new, never a part."""
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode(), mode, durable=durable)


def write_bytes(path: Path, content: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
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


def _numbered() -> list[Path]:
    folder = runs()
    return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []
