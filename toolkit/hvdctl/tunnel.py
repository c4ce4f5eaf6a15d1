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

from hvdctl import paths, process, ssh, turns
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError

PORT = 8888
_NEAR = 100
_OPEN_S = 30.0
_CLOSE_S = 10.0
# Whoever has the turn ends one tunnel and opens another.
_TURN_S = 60.0
_PAUSES = (0.2, 1.0, 2.0, 5.0, 10.0)
_TAKEN = "another program has taken its port"
_LISTENING = "0A"


def open_(cluster: Cluster, head: str, target: str, port: int | None) -> tuple[int, int | None]:
    """The port of a tunnel that stands, and the one that was wanted where another program has that.

    A tunnel that is there is kept, unless another port is asked for and free.
    """
    with _turn(cluster):
        now = state(cluster)
        wanted = chosen = port or int(now.get("port") or PORT)
        if now["running"] and now.get("target") == target and (wanted == now["port"] or free(wanted) != wanted):
            chosen = int(now["port"])
        else:
            _end(cluster)
            chosen = free(wanted)
            _start(cluster, head, target, chosen)
        while not _opened(cluster):
            # Taken between our look and ssh's, or while it was away.
            _end(cluster)
            chosen = free(chosen + 1)
            _start(cluster, head, target, chosen)
        return chosen, wanted if chosen != wanted else None


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
        # It is our turn and there is no keeper: none can hold it for longer than a look takes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.ftruncate(lock, 0)
        _tell(cluster, port, target, problem="")
        words = [sys.executable, "-m", "hvdctl.tunnel", cluster.name, head, target, str(port), str(lock)]
        with cluster.log("tunnel").open("a") as log:
            process.start(
                words,
                outlive=True,
                pass_fds=(lock,),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HVDCTL_HOME": str(paths.home())},
            )
    finally:
        os.close(lock)


def _opened(cluster: Cluster) -> bool:
    """Wait until the tunnel stands; False where another program has its port."""
    deadline = time.monotonic() + _OPEN_S
    while True:
        now = state(cluster)
        if now["open"]:
            return True
        if now.get("problem") == _TAKEN:
            return False
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
    """End the keeper, and its ssh with it; says whether there was one."""
    told: list[tuple[int, int]] = []
    was = False
    began = time.monotonic()
    while (pid := _keeper(cluster)) is not None:
        was = True
        waited = time.monotonic() - began
        if waited > 2 * _CLOSE_S:
            raise HvdctlError(f"the tunnel to {cluster.name!r} does not end", log=cluster.log("tunnel"))
        word = pid, signal.SIGKILL if waited > _CLOSE_S else signal.SIGTERM
        # Once: a second word would keep it from waiting for its ssh, which listens until it has ended.
        if pid and word not in told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(*word)
            told.append(word)
        time.sleep(0.05)
    return was


def _keeper(cluster: Cluster) -> int | None:
    """The process that holds the lock, 0 where it has not said yet which it is; a number alone proves nothing."""
    try:
        lock = os.open(_file(cluster, "lock"), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(lock, 32, 0).strip() or 0)
    finally:
        os.close(lock)
    return None


@contextlib.contextmanager
def _turn(cluster: Cluster) -> Iterator[None]:
    """One at a time opens or closes it."""
    file = paths.private(cluster.folder / "jupyter") / "turn.lock"
    with turns.alone(file, f"the tunnel to {cluster.name!r}", limit=_TURN_S):
        yield


def _file(cluster: Cluster, kind: str) -> Path:
    return cluster.folder / "jupyter" / f"tunnel.{kind}"


def _tell(cluster: Cluster, port: int, target: str, *, problem: str, opened: bool = False, times: int = 0) -> None:
    told = {"open": opened, "port": port, "target": target, "problem": problem, "rebuilt": times}
    write(_file(cluster, "json"), json.dumps(told, indent=1) + "\n")


# The process that holds the tunnel.


def keep(cluster: Cluster, head: str, target: str, port: int) -> None:
    """Hold the tunnel until a signal comes or the cluster is gone."""
    failures = times = 0
    before = ""
    words = ssh.argv(cluster, head)
    words[-1:-1] = ["-N", "-T", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:{target}"]
    while cluster.exists:
        # It says little (LogLevel ERROR), so nobody need read its pipe before it ends.
        link = process.start(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            if _stands(link, port):
                with contextlib.suppress(OSError):  # a full disk is no reason to give up what stands
                    _tell(cluster, port, target, problem="", opened=True, times=times)
                failures, before = 0, ""
                _watch(link, cluster)
                times += 1
        finally:
            link.terminate()
            said = _last_words(link)
        if not cluster.exists:
            return
        with contextlib.suppress(OSError):
            _tell(cluster, port, target, problem=said, times=times)
            if said != before:
                sys.stderr.write(f"{time.strftime('%F %T')} {said}\n")
        before = said
        time.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        failures += 1


def _stands(link: subprocess.Popen[Any], port: int) -> bool:
    """Wait until ssh listens; False where it ended before."""
    while link.poll() is None:
        if _listens(link.pid, port):
            return True
        time.sleep(0.05)
    return False


def _listens(pid: int, port: int) -> bool:
    """Whether it is this process that listens: another one would be sent the token."""
    wanted = f"0100007F:{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1] == wanted and row[3] == _LISTENING}
    if not sockets:
        return False
    with contextlib.suppress(OSError):
        return any(str(entry.readlink()) in sockets for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _watch(link: subprocess.Popen[Any], cluster: Cluster) -> None:
    """Until ssh ends, or the cluster is gone."""
    while cluster.exists and link.poll() is None:
        # Noticed at once: another program could take the port, and be sent the token.
        with contextlib.suppress(subprocess.TimeoutExpired):
            link.wait(1)


def _last_words(link: subprocess.Popen[Any]) -> str:
    said = link.communicate()[1].decode(errors="replace").strip().splitlines()
    if any("Address already in use" in line for line in said):
        return _TAKEN
    return said[-1] if said else "the connection ended"


def main(words: list[str]) -> None:
    name, head, target, port, lock = words
    os.pwrite(int(lock), f"{os.getpid()}\n".encode(), 0)
    os.set_inheritable(int(lock), False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keep(Cluster(name), head, target, int(port))


if __name__ == "__main__":
    main(sys.argv[1:])
