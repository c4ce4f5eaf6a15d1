"""`jupyter`: JupyterLab on this node, kept running, with a token that lies in one file and nowhere else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

from . import store
from .store import AgentError
from .submit import agent, detached

_LAB = Path("/opt/jupyter/bin/jupyter-lab")
_EXAMPLES = Path("/opt/hvdctl/notebooks")
_LOG_BYTES = 1 << 20
# A server that lived for this long has not failed at its start.
_GOOD_S = 30.0
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


def main(argv: list[str]) -> int:
    """`start` reads the facts of the cluster, for notebooks, as JSON on stdin."""
    match argv:
        case ["start"]:
            store.answer(start(store.request()))
        case ["resume"]:
            store.answer({"changed": _token_file().exists() and _run()})
        case ["stop"]:
            store.answer({"changed": stop()})
        case ["status"]:
            store.answer(status())
        case ["token"]:
            store.answer({"token": _token(), "socket": str(_socket())})
        case ["rotate"]:
            _token()
            _write_token()
            store.answer({"token": _token(), "socket": str(_socket())})
        case ["keep", descriptor]:
            keep(int(descriptor))
        case _:
            raise AgentError("usage: jupyter start | status | token | rotate | stop")
    return 0


def start(facts: dict[str, Any]) -> dict[str, Any]:
    """Make JupyterLab run here, and keep it running; says whether something was done for it."""
    if not lab().exists():
        return {"changed": False, "installed": False}
    _home().mkdir(mode=0o700, exist_ok=True)
    file = _home() / "cluster.json"
    before = store.read(file) if file.exists() else None
    if before != facts:
        store.write(file, facts, 0o600)
    # The number of the last run grows by itself: that alone is no change of the cluster.
    changed = before is None or before | {"after": 0} != facts | {"after": 0}
    if not _token_file().exists():
        _write_token()
        changed = True
    changed = _bring_examples() or changed
    return {"changed": _run() or changed, "installed": True}


def stop() -> bool:
    """End it for good, and forget its token."""
    was = _token_file().exists()
    _token_file().unlink(missing_ok=True)
    pid = _keeper()
    if pid is None:
        return was
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while _keeper() is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return True


def status() -> dict[str, Any]:
    """What runs, whether it answers, and its last words where it does not."""
    pid = _keeper()
    answers = _answers()
    told: dict[str, Any] = {
        "installed": lab().exists(),
        "wanted": _token_file().exists(),
        "running": pid is not None,
        "answers": answers,
        "socket": str(_socket()),
    }
    if not answers:
        with contextlib.suppress(OSError):
            lines = (_home() / "jupyter.log").read_text(errors="replace").strip().splitlines()
            told["log"] = lines[-3:]
    return told


def keep(lock: int) -> NoReturn:
    """The server's parent: starts it again whenever it ends, until a SIGTERM comes. Holds the lock while it lives."""
    os.set_inheritable(lock, False)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    child: subprocess.Popen[bytes] | None = None

    def leave(*_: object) -> NoReturn:
        if child is not None and child.poll() is None:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    failures = 0
    while True:
        _shorten(_home() / "jupyter.log")
        _socket().unlink(missing_ok=True)  # of one that was killed
        with contextlib.suppress(OSError):
            (_share() / "notebooks").mkdir(exist_ok=True)  # where JupyterLab opens
        began = time.monotonic()
        child = subprocess.Popen([str(lab())], env=_environment(), cwd=_share(), start_new_session=True)
        code = child.wait()
        print(f"hvd-agent: JupyterLab ended with {code}, it is started again", flush=True)  # noqa: T201 - the log
        failures = 0 if time.monotonic() - began > _GOOD_S else failures + 1
        time.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])


def lab() -> Path:
    return Path(os.environ.get("HVD_LAB") or _LAB)


def _run() -> bool:
    """Start the keeper where there is none."""
    descriptor = os.open(_lock_file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    detached([*agent(), "jupyter", "keep", str(descriptor)], _home() / "jupyter.log", descriptor, mode=0o600)
    return True


def _keeper() -> int | None:
    """The process that holds the lock."""
    try:
        descriptor = os.open(_lock_file(), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None


def _answers() -> bool:
    """Whether the server says what it is; that takes no token."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(5)
        try:
            link.connect(str(_socket()))
            link.sendall(b"GET /api HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return link.recv(16).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


def _bring_examples() -> bool:
    """The notebooks, once: what its user makes of them, or removes, stays so."""
    target = _share() / "notebooks"
    source = Path(os.environ.get("HVD_EXAMPLES") or _EXAMPLES)
    if target.exists() or not source.is_dir():
        return False
    # Whole or not at all, also where the share is full.
    part = target.with_name(f".notebooks.{os.getpid()}")
    try:
        shutil.copytree(source, part, copy_function=shutil.copyfile)
        part.rename(target)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise AgentError(f"can't copy the example notebooks to {target}: {error}") from None
    return True


def _environment() -> dict[str, str]:
    """The server's, and so the kernels' and terminals': ours without the traces of the login that started us."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SSH_", "XDG_", "HVD_"))}
    # The framework's Python comes first for people, and JupyterLab's programs are found by name too.
    kept["PATH"] = f"/opt/venv/bin:{lab().parent}:/usr/local/bin:/usr/bin:/bin"
    kept["SHELL"] = "/bin/bash"
    return kept


def _shorten(log: Path) -> None:
    """Keep the end of a log that has grown long; it is open, so it is written anew in place."""
    with contextlib.suppress(OSError), log.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size > _LOG_BYTES:
            file.seek(size - _LOG_BYTES // 2)
            end = file.read()
            file.seek(0)
            file.write(end)
            file.truncate()


def _token() -> str:
    try:
        return _token_file().read_text().strip()
    except FileNotFoundError:
        raise AgentError("there is no JupyterLab on this node") from None


def _write_token() -> None:
    store.write_bytes(_token_file(), f"{secrets.token_hex(24)}\n".encode(), 0o600)


def _home() -> Path:
    return Path.home() / ".hvdctl"


def _token_file() -> Path:
    return _home() / "jupyter.token"


def _lock_file() -> Path:
    return _home() / "jupyter.lock"


def _socket() -> Path:
    return _home() / "jupyter.sock"


def _share() -> Path:
    return Path(os.environ.get("HVD_SHARED") or "/shared")
