"""A supervised SSH tunnel from a port of this machine's loopback to a socket on the head.

`open_` starts a process that outlives hvdctl: it holds the ssh, and makes it again whenever it ends, as long as the
cluster is there. Its lock tells whether it lives, its state file how it stands.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdctl import paths, process, ssh
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError

PORT = 8888
_NEAR = 100
_OPEN_S = 30.0
_CLOSE_S = 10.0
_PAUSES = (0.2, 1.0, 2.0, 5.0, 10.0)
_TAKEN = "another program has taken its port"


def open_(cluster: Cluster, head: str, target: str, port: int | None) -> tuple[int, int | None]:
    """The port of a tunnel that stands, and the one that was wanted where another program has that.

    A tunnel that is there is kept, unless another port is asked for.
    """
    with _turn(cluster):
        now = state(cluster)
        if now["running"] and now.get("target") == target and port in (None, now["port"]):
            return _opened(cluster, int(now["port"])), None
        _end(cluster)
        wanted = port or int(now.get("port") or PORT)
        chosen = free(wanted)
        _start(cluster, head, target, chosen)
        return _opened(cluster, chosen), wanted if chosen != wanted else None


def close(cluster: Cluster) -> bool:
    """End the tunnel; says whether there was one."""
    if not cluster.folder.is_dir():
        return False
    with _turn(cluster):
        return _end(cluster)


def state(cluster: Cluster) -> dict[str, Any]:
    """How the tunnel stands; the port of the last one is kept, so that a browser's tab finds it again."""
    pid = _keeper(cluster)
    try:
        told: dict[str, Any] = json.loads(_file(cluster, "json").read_text())
    except (OSError, ValueError):
        told = {}
    if pid is None:
        return {"running": False, "open": False, "port": told.get("port")}
    return {**told, "running": True, "open": bool(told.get("open")), "pid": pid}


def free(wanted: int) -> int:
    """The wanted port, or the next one that nobody listens on."""
    for port in (*range(wanted, min(wanted + _NEAR, 65536)), 0):
        with socket.socket() as probe:
            # As ssh does it: a port that was just given up is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise HvdctlError("no port is free on 127.0.0.1")


def _start(cluster: Cluster, head: str, target: str, port: int) -> None:
    lock = os.open(_file(cluster, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _tell(cluster, port, target, problem="")
        words = [sys.executable, "-m", "hvdctl.tunnel", cluster.name, head, target, str(port), str(lock)]
        with cluster.log("tunnel").open("a") as log:
            keeper = process.start(
                words,
                outlive=True,
                pass_fds=(lock,),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HVDCTL_HOME": str(paths.home())},
            )
        os.pwrite(lock, f"{keeper.pid}\n".encode(), 0)
    finally:
        os.close(lock)


def _opened(cluster: Cluster, port: int) -> int:
    """Wait until the tunnel stands."""
    deadline = time.monotonic() + _OPEN_S
    while True:
        now = state(cluster)
        if now["open"]:
            return port
        if not now["running"] or time.monotonic() > deadline:
            problem = now.get("problem") or "it gave no reason"
            _end(cluster)
            raise HvdctlError(
                f"the tunnel to {cluster.name!r} was not opened: {problem}",
                hint=f"`hvdctl status --name {cluster.name}` shows whether the head is there",
                log=cluster.log("tunnel"),
            )
        time.sleep(0.05)


def _end(cluster: Cluster) -> bool:
    pid = _keeper(cluster)
    if pid is None:
        return False
    deadline = time.monotonic() + _CLOSE_S
    number = signal.SIGTERM
    while _keeper(cluster) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(0.05)
    return True


def _keeper(cluster: Cluster) -> int | None:
    """The process that holds the lock; a number alone may be another process's by now."""
    try:
        lock = os.open(_file(cluster, "lock"), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(lock, 32, 0).split()
        return int(text[0]) if text and text[0].isdigit() else None
    finally:
        os.close(lock)
    return None


@contextlib.contextmanager
def _turn(cluster: Cluster) -> Iterator[None]:
    """One at a time opens or closes it."""
    file = paths.private(cluster.folder / "jupyter") / "turn.lock"
    with file.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _file(cluster: Cluster, kind: str) -> Path:
    return cluster.folder / "jupyter" / f"tunnel.{kind}"


def _tell(cluster: Cluster, port: int, target: str, *, problem: str, opened: bool = False, times: int = 0) -> None:
    told = {"open": opened, "port": port, "target": target, "problem": problem, "since": time.time(), "rebuilt": times}
    write(_file(cluster, "json"), json.dumps(told, indent=1) + "\n")


# The process that holds the tunnel.


def keep(cluster: Cluster, head: str, target: str, port: int) -> None:
    """Hold the tunnel until a signal comes or the cluster is gone."""
    failures = times = 0
    words = ssh.argv(cluster, head)
    words[-1:-1] = ["-N", "-T", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:{target}"]
    while cluster.exists:
        said = _TAKEN
        # Asked before: whoever has the port would be taken for our ssh.
        if not _listens(port):
            link = process.start(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                if _stands(link, port):
                    _tell(cluster, port, target, problem="", opened=True, times=times)
                    failures = 0
                    _watch(link, cluster)
                    times += 1
            finally:
                link.terminate()
                said = _last_words(link)
        if not cluster.exists:
            return
        _tell(cluster, port, target, problem=said, times=times)
        sys.stderr.write(f"{time.strftime('%F %T')} {said}\n")
        time.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        failures += 1


def _stands(link: subprocess.Popen[Any], port: int) -> bool:
    """Wait until ssh listens; False where it ended before."""
    while link.poll() is None:
        if _listens(port):
            return link.poll() is None
        time.sleep(0.05)
    return False


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _watch(link: subprocess.Popen[Any], cluster: Cluster) -> None:
    """Until ssh ends; where the cluster is gone, it is ended."""
    while cluster.exists:
        with contextlib.suppress(subprocess.TimeoutExpired):
            link.wait(2)
            return


def _last_words(link: subprocess.Popen[Any]) -> str:
    said = link.communicate()[1].decode(errors="replace").strip().splitlines()
    if any("Address already in use" in line for line in said):
        return _TAKEN
    return said[-1] if said else "the connection ended"


def main(words: list[str]) -> None:
    name, head, target, port, lock = words
    os.set_inheritable(int(lock), False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keep(Cluster(name), head, target, int(port))


if __name__ == "__main__":
    main(sys.argv[1:])
