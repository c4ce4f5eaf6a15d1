"""`submit`: a request becomes a run with a supervisor of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

from . import store
from .launchers import CHOICES
from .store import AgentError

COMMAND = "HVDCTL_COMMAND"
"""The key in env.json of a command that the record shows in part only."""


def main(argv: list[str]) -> int:
    """Reads the request on stdin, prints {"id": N} as soon as the supervisor is on its way."""
    if argv:
        raise AgentError("usage: submit < request.json")
    store.answer({"id": submit(store.request())})
    return 0


def submit(request: dict[str, Any]) -> int:
    """Start the run and return its id; a share that can't take it is left as it was."""
    _check(request)
    folder = None
    try:
        run_id, folder = store.allocate(request.get("id"), request.get("after") or 0)
        # The supervisor inherits the lock, so at no moment does the run look lost.
        lock = store.lock(folder, wait=True)
        _write(request, run_id, folder)
    except (OSError, AgentError) as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, AgentError):
            raise
        raise AgentError(f"the share takes no other run: {error.strerror} ({store.runs()})") from None
    words = [*agent(), "supervise", str(run_id), *(["--lock", str(lock)] if lock is not None else [])]
    detached(words, folder / "supervisor.log", lock)
    return run_id


def _write(request: dict[str, Any], run_id: int, folder: Path) -> None:
    environment = request.get("env") or {}
    # The record is for everybody to see; what it hides of the command is kept with the variables.
    shown = request.get("shown") or request["command"]
    hidden = {COMMAND: json.dumps(request["command"])} if shown != request["command"] else {}
    store.write(folder / "env.json", environment | hidden, 0o600)
    for name in ("cancel", "output.log"):
        (folder / name).touch()
    record = {
        "id": run_id,
        "state": "starting",
        "command": shown,
        "user_command": request.get("user_command") or " ".join(shown),
        "np": request["np"],
        "launcher": request["launcher"],
        "hosts": request["hosts"],
        "env": sorted(environment),
        "workdir": request.get("workdir"),
        "interface": request.get("interface"),
        "threads": request.get("threads"),
        "submitted": store.now(),
        "started": None,
        "ended": None,
        "duration_s": None,
        "exit_code": None,
        "reason": None,
        "failed_rank": None,
        "supervisor": {"node": store.here(), "pid": None},
    }
    if len(json.dumps(record, indent=1)) > store.MOST_AT_FIRST:
        most = store.MOST_AT_FIRST // 1024
        raise AgentError(f"the command is too long: the record of a run takes {most} KiB; put the words into a file")
    store.keep(folder, record)


def agent() -> tuple[str, ...]:
    """How the agent is called: the same on every node."""
    isolated = ["-I"] if sys.flags.isolated else []
    return sys.executable, *isolated, str(Path(__file__).resolve().parent)


def _check(request: dict[str, Any]) -> None:
    command, hosts = request.get("command"), request.get("hosts")
    environment = request.get("env") or {}
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise AgentError(f"command is a list of words, not {command!r}")
    if request.get("launcher") not in CHOICES:
        raise AgentError(f"launcher is one of {', '.join(CHOICES)}, not {request.get('launcher')!r}")
    try:
        total = sum(slots for host, slots in hosts or [] if isinstance(host, str) and slots > 0)
    except (TypeError, ValueError):
        raise AgentError(f"hosts is a list of [name, slots], not {hosts!r}") from None
    if not total or total != request.get("np"):
        raise AgentError(f"np is {request.get('np')!r}, but the hosts have {total} slots")
    if not all(isinstance(value, str) for value in environment.values()):
        raise AgentError("env maps names to text")
    for name, least in (("id", 1), ("after", 0)):
        given = request.get(name)
        if given is not None and not (type(given) is int and given >= least):
            raise AgentError(f"{name} is a whole number from {least}, not {given!r}")


def detached(words: list[str], log: Path, lock: int | None, mode: int = 0o644) -> None:
    """Start a child of process 1, in a session of its own, with our lock and nothing else; its output goes to a log."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        if lock is not None:
            os.close(lock)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _become(words, log, lock, mode)
    finally:
        os._exit(1)


def _become(words: list[str], log: Path, lock: int | None, mode: int) -> NoReturn:
    os.chdir("/")
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if lock is not None:
        os.set_inheritable(lock, True)
    os.execv(words[0], words)  # noqa: S606 - no shell is wanted
