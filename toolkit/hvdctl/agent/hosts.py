"""This node among the others: names, ports, interfaces, and verbs run on many nodes side by side."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import procs, store
from .launchers import ssh
from .submit import agent

HOSTFILE = "~/hostfile"


def is_here(host: str) -> bool:
    return host in (store.here(), "localhost")


def listed() -> list[str]:
    """The nodes of the cluster's hostfile, the head first."""
    rows = [line.split() for line in Path(HOSTFILE).expanduser().read_text(encoding="utf-8").splitlines()]
    return [words[0] for words in rows if words and not words[0].startswith("#")]


def reap(run_id: int, names: Sequence[str], grace: float = procs.GRACE) -> list[str]:
    """End every process of a run on all these nodes; returns the nodes where that could not be done."""
    from concurrent.futures import ThreadPoolExecutor

    def one(host: str) -> bool:
        if is_here(host):
            return not procs.reap(run_id, grace)[1]
        verb = ["env", *_settings(), *agent(), "reap", str(run_id), "--grace", f"{grace:g}"]
        try:
            done = subprocess.run(
                ssh(host, verb),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                timeout=grace + 20,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    unique = list(dict.fromkeys(names))
    with ThreadPoolExecutor(max(1, len(unique))) as pool:
        results = list(pool.map(one, unique))
    return [host for host, done in zip(unique, results, strict=True) if not done]


def free_port() -> int:
    """A TCP port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def interface_to(host: str) -> str | None:
    """The network interface by which this node reaches another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing, asks the routing table only
        except OSError:
            return None
        return _interface_with(probe.getsockname()[0])


def interface_of(name: str) -> str | None:
    """The network interface that has the address of this name."""
    try:
        return _interface_with(socket.gethostbyname(name))
    except OSError:
        return None


def _interface_with(address: str) -> str | None:
    import fcntl
    import struct

    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
            except OSError:
                continue
            if answer[20:24] == wanted:
                return name
    return None


def _settings() -> list[str]:
    chosen = os.environ.get("HVD_RUNS")
    return [f"HVD_RUNS={chosen}"] if chosen else []
