"""`jupyter`: JupyterLab on this node, kept running, with a token that lies in one file and nowhere else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from . import procs, store
from .environment import of_login
from .store import AgentError
from .submit import agent, detached

_LAB = Path("/opt/jupyter/bin/jupyter-lab")
_EXAMPLES = Path("/opt/hvdctl/notebooks")
_LOG_BYTES = 1 << 20
_OURS = "hvd-agent: "
_SETTLE_S = 60.0
_SHORTEN_S = 60.0
_STOP_S = 20.0
_TOKEN_BYTES = 24
# A server that lived for this long has not failed at its start.
_GOOD_S = 30.0
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


def main(argv: list[str]) -> int:
    """`start` reads the facts of the cluster, for notebooks, as JSON on stdin."""
    try:
        return _called(argv)
    except OSError as error:
        at = f": {error.filename}" if error.filename else ""  # a write has none
        raise AgentError(f"JupyterLab: {error.strerror}{at}") from None


def _called(argv: list[str]) -> int:
    match argv:
        case ["start"]:
            store.answer(start(store.request()))
        case ["resume"]:
            store.answer({"changed": _token_file().exists() and _run(settle=0)})
        case ["stop"]:
            store.answer({"changed": stop()})
        case ["status"]:
            store.answer(status())
        case ["token"]:
            _wake()
            store.answer({"token": _token(), "socket": str(_socket())})
        case ["rotate"]:
            _token()
            _write_token()
            _wake()
            store.answer({"token": _token(), "socket": str(_socket())})
        case ["keep", descriptor, settle]:
            keep(int(descriptor), float(settle))
        case _:
            raise AgentError("usage: jupyter start | status | token | rotate | stop")
    return 0


def start(facts: dict[str, Any]) -> dict[str, Any]:
    """Make JupyterLab run here, and keep it running; says whether something was done for it."""
    if not lab().exists():
        return {"changed": False, "installed": False}
    _home().mkdir(mode=0o700, exist_ok=True)
    file = _home() / "cluster.json"
    try:
        before = store.read(file)
    except (OSError, ValueError):
        before = None  # not there, or not whole
    if before != facts:
        store.write(file, facts, 0o600, durable=True)
    # These change by themselves: they alone are no change of the cluster.
    passing = {"after": 0, "about": ""}
    changed = before is None or before | passing != facts | passing
    brought = _bring_examples()
    # `up` goes on with verifying the nodes and measuring their link, and a start takes a core for seconds, on an
    # emulated machine for a minute.
    return {"changed": _run(settle=_settle()) or changed or brought, "installed": True}


def stop() -> bool:
    """End it for good, and forget its token and what notebooks were told."""
    was = _token_file().exists()
    _token_file().unlink(missing_ok=True)
    (_home() / "cluster.json").unlink(missing_ok=True)
    told = None
    deadline = time.monotonic() + _STOP_S
    while (pid := _keeper()) is not None:
        was = True
        if pid and pid != told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            told = pid
        if time.monotonic() > deadline:
            raise AgentError(f"JupyterLab did not end within {_STOP_S:.0f} s")
        time.sleep(0.05)
    return was


def status() -> dict[str, Any]:
    """What runs, whether it answers, and its last words where it does not."""
    answers = _answers()
    told: dict[str, Any] = {
        "installed": lab().exists(),
        "wanted": _token_file().exists(),
        "running": _keeper() is not None,
        "answers": answers,
        "socket": str(_socket()),
        "log": [],
    }
    if not answers:
        with contextlib.suppress(OSError), _log().open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = log.read().decode(errors="replace").strip().splitlines()[-3:]
            # Of one that is starting, what the one before it said is no news.
            told["log"] = lines if lines and (lines[-1].startswith(_OURS) or not told["running"]) else []
    return told


def keep(lock: int, settle: float) -> NoReturn:
    """The server's parent: starts it again whenever it ends, until a SIGTERM comes. Holds the lock while it lives."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    os.set_inheritable(lock, False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, lambda *_: None)  # ignoring it outright would be inherited by terminals
    signal.signal(signal.SIGALRM, lambda *_: _shorten(_log()))
    signal.setitimer(signal.ITIMER_REAL, _SHORTEN_S, _SHORTEN_S)
    # Woken by the first who asks for the token.
    signal.sigtimedwait({signal.SIGUSR1}, settle)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # what is started inherits it
    failures = 0
    while True:
        began = time.monotonic()
        try:
            said = f"JupyterLab ended with {_serve()}"
        except OSError as error:  # such as a share that is not there
            said = f"JupyterLab can't be started: {error}"
        with contextlib.suppress(OSError):  # such as a disk that is full
            print(f"{_OURS}{said}, it is started again", flush=True)  # noqa: T201 - the log
        failures = 0 if time.monotonic() - began > _GOOD_S else failures + 1
        time.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])


def _serve() -> int:
    """The server, to its end or to ours."""
    _socket().unlink(missing_ok=True)  # of one that was killed
    child = subprocess.Popen(
        [str(lab())],
        env=_environment(),
        cwd=_share(),
        start_new_session=True,
        # A second server beside one whose keeper was killed would take the socket from it.
        preexec_fn=procs.dying_with_parent(signal.SIGTERM),
    )
    try:
        return child.wait()
    except SystemExit:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child.terminate()
        try:
            child.wait(_STOP_S / 2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def lab() -> Path:
    return Path(os.environ.get("HVD_LAB") or _LAB)


def _run(*, settle: float) -> bool:
    """Start the keeper where there is none, with a token that is whole; it starts the server after `settle` seconds."""
    if not _whole(_token_file()):
        _write_token()
    descriptor = os.open(_lock_file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + 1
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Who only looks whether it is held may hold it for a moment.
            if _keeper() or time.monotonic() > deadline:
                os.close(descriptor)
                return False
        time.sleep(0.02)
    os.ftruncate(descriptor, 0)
    detached([*agent(), "jupyter", "keep", str(descriptor), str(settle)], _log(), descriptor, mode=0o600)
    return True


def _keeper() -> int | None:
    """The process that holds the lock; 0 where it has not said yet which it is."""
    try:
        descriptor = os.open(_lock_file(), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(descriptor, 32, 0).strip() or 0)
    finally:
        os.close(descriptor)
    return None


def _wake() -> None:
    """Have a keeper that still waits start the server now."""
    if pid := _keeper():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)


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
    """Each notebook once: what its user makes of it, or removes, stays so; another framework's come beside them."""
    target = _share() / "notebooks"
    source = Path(os.environ.get("HVD_EXAMPLES") or _EXAMPLES)
    if not _share().is_dir() or not source.is_dir():
        return False
    record = target / ".brought"
    try:
        target.mkdir(exist_ok=True)
        before = record.read_text(encoding="utf-8").split() if record.exists() else []
        new = [file for file in sorted(source.iterdir()) if file.name not in before]
        for file in new:
            if not (target / file.name).exists():
                store.write_bytes(target / file.name, file.read_bytes())
        if new:
            store.write_bytes(record, "\n".join([*before, *(file.name for file in new), ""]).encode())
    except OSError:
        return False  # a share that is full, or is not ours: JupyterLab starts without them
    return bool(new)


def _environment() -> dict[str, str]:
    """The server's, and so the kernels' and terminals'."""
    kept = of_login(os.environ, "HVD_")
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
    if not _token_file().exists():
        raise AgentError("there is no JupyterLab on this node")
    if not _whole(_token_file()):
        _write_token()
    return _token_file().read_text().strip()


def _whole(file: Path) -> bool:
    """Whether it holds a token: one that a crash left empty would keep everybody out."""
    try:
        return len(file.read_text().strip()) == 2 * _TOKEN_BYTES
    except OSError:
        return False


def _write_token() -> None:
    store.write_bytes(_token_file(), f"{secrets.token_hex(_TOKEN_BYTES)}\n".encode(), 0o600, durable=True)


def _home() -> Path:
    return Path.home() / ".hvdctl"


def _token_file() -> Path:
    return _home() / "jupyter.token"


def _log() -> Path:
    return _home() / "jupyter.log"


def _lock_file() -> Path:
    return _home() / "jupyter.lock"


def _socket() -> Path:
    return _home() / "jupyter.sock"


def _settle() -> float:
    return float(os.environ.get("HVD_SETTLE") or _SETTLE_S)


def _share() -> Path:
    return Path(os.environ.get("HVD_SHARED") or "/shared")
