"""`show`, `list` and `cancel`."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from . import store
from .store import AgentError

_CANCEL_S = 30.0
_ROW = ("id", "state", "np", "launcher", "started", "duration_s", "exit_code")


def main(verb: str, argv: list[str]) -> int:
    match verb, argv:
        case "list", []:
            store.answer([row(store.runs() / str(run_id)) for run_id in store.ids()])
            return 0
        case "show", [run_id]:
            store.answer(store.load(store.find(run_id)))
            return 0
        case "cancel", [run_id]:
            record = cancel(store.find(run_id))
            store.answer(record)
            return 0 if record["state"] in store.FINAL else 1
    raise AgentError(f"usage: {verb}{'' if verb == 'list' else ' ID'}")


def row(folder: Path) -> dict[str, Any]:
    """A run in short; one whose record is damaged says why, and hides no other."""
    try:
        record = store.load(folder)
    except (AgentError, OSError, MemoryError) as error:
        told = str(error) if isinstance(error, AgentError) else f"run {folder.name} can't be read: {_why(error)}"
        nothing = dict.fromkeys((*_ROW, "command"))
        return nothing | {"id": int(folder.name), "state": store.UNREADABLE, "reason": told}
    short = {name: record.get(name) for name in _ROW} | {"command": record["user_command"]}
    if record["state"] == "running" and record.get("started") is not None:
        short["duration_s"] = round(store.now() - record["started"], 3)
    return short


def _why(error: OSError | MemoryError) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def cancel(folder: Path) -> dict[str, Any]:
    """End the run on every node and return its record; a run that has ended stays as it is."""
    record = store.load(folder)
    if record["state"] in store.FINAL:
        return record
    with contextlib.suppress(OSError):  # a full share must not keep the word from the supervisor
        (folder / "cancel").write_text("cancel\n")
    deadline = time.monotonic() + _CANCEL_S
    told = False
    while record["state"] not in store.FINAL and time.monotonic() < deadline:
        if record["state"] == "lost":
            return _clear(folder)
        told = told or _tell(folder, record)
        time.sleep(0.05)
        record = store.load(folder)
    return record


def _tell(folder: Path, record: dict[str, Any]) -> bool:
    """Wake the supervisor where it runs on this node; elsewhere it finds the file by itself."""
    pid = record["supervisor"]["pid"]
    if pid is None or record["supervisor"]["node"] != store.here():
        return False
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        # The number may belong to another process by now.
        if b"supervise" in words and folder.name.encode() in words:
            os.kill(pid, signal.SIGTERM)
    except OSError:
        return False
    return True


def _clear(folder: Path) -> dict[str, Any]:
    """What the supervisor of a lost run can't do any more."""
    from . import hosts

    lock = store.lock(folder, wait=True)
    try:
        record = store.run(folder)
        if record["state"] in store.FINAL:
            return record
        missed = hosts.reap(record["id"], [host for host, _ in record["hosts"]])
        reason = "lost its supervisor, then cancelled"
        if missed:
            reason += f"; could not reach {', '.join(missed)}"
        return store.update(folder, state="cancelled", exit_code=store.CANCELLED, reason=reason, ended=store.now())
    finally:
        if lock is not None:
            os.close(lock)
