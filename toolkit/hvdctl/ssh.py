"""Commands on the nodes, over SSH with the cluster's own keys and known hosts."""

from __future__ import annotations

import json
import random
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hvdctl import inventory, process
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, UsageError

LOST = 255
_ATTEMPT = 15.0

# Seconds, half of it to all of it, before a login that was cut is tried again: sshd lets few be at their start at once.
PAUSES = (0.5, 1.0, 2.0, 4.0, 6.0)
_CUT = re.compile(r"exchange_identification: |connect to host .*: Connection reset by peer")
# A jump host that did not let us through takes the connection through it along, and says why before that.
_REFUSED = re.compile(
    r"forwarding failed|Permission denied|Host key verification failed|Could not resolve|"
    r"connect to host .*: (?!Connection reset by peer)"
)


def words(config: Path) -> list[str]:
    """How every ssh call begins that asks nobody: all else, host keys too, is in the config."""
    return [process.tool("ssh"), "-F", str(config), "-o", "BatchMode=yes"]


def argv(cluster: Cluster, node: str, command: Sequence[str] = (), *, tty: bool = False) -> list[str]:
    """The ssh call; without a command, a login shell."""
    start = [process.tool("ssh"), "-F", str(cluster.ssh_config), "-t"] if tty else words(cluster.ssh_config)
    return [*start, node, *(["--", shlex.join(command)] if command else [])]


def pick(cluster: Cluster, name: str | None = None) -> Node:
    """A node by name, the head by default."""
    nodes = cluster.nodes()
    if not nodes:
        cluster.spec()  # says that there is no such cluster
        raise HvdctlError(
            f"cluster {cluster.name!r} has no nodes", hint=f"`hvdctl up --name {cluster.name}` makes them"
        )
    if name is None or name == "head":
        return nodes[0]
    for node in nodes:
        if node.name == name:
            return node
    raise UsageError(f"there is no node {name!r}; choose one of: {', '.join(node.name for node in nodes)}")


def host(cluster: Cluster, name: str | None = None) -> str:
    """The name in SSH of a node, or of the machine under it, such as node1.machine."""
    node, dot, part = (name or "head").partition(".")
    found = pick(cluster, node)
    if not dot:
        return found.name
    if found.kind != "machine" or part != "machine":
        raise UsageError(f"there is no {name!r}; {found.name} is {_described(found)}")
    return inventory.ssh_host(found.name, found.kind)


def _described(node: Node) -> str:
    return f"a container on {node.name}.machine" if node.kind == "machine" else "a container with no machine of its own"


def run(
    cluster: Cluster, node: str, command: Sequence[str], *, stdin: str | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run on a node to the end; raise where the node can't be reached."""
    try:
        done = capture(argv(cluster, node, command), stdin=stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise HvdctlError(f"{node} gave no answer within {timeout:.0f} s", hint=_look(cluster)) from None
    if done.returncode == LOST:
        raise HvdctlError(f"{node} can't be reached: {_reason(done.stderr)}", hint=_look(cluster))
    return done


def gather(commands: Iterable[Sequence[str | Path]], *, timeout: float) -> list[subprocess.CompletedProcess[str]]:
    """Many logins side by side, in their order; see `capture` and `process.gather`."""
    return process.gather(commands, timeout=timeout, run=capture)


def capture(
    argv: Sequence[str | Path], *, stdin: str | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """One login to its end, tried again within the timeout where it was cut before the greeting."""
    deadline = time.monotonic() + timeout
    for pause in PAUSES:
        done = process.capture(argv, stdin=stdin, timeout=max(0.0, deadline - time.monotonic()))
        wait = random.uniform(pause / 2, pause)  # noqa: S311 - only to come apart
        if not cut(done.returncode, done.stderr) or time.monotonic() + wait > deadline:
            return done
        time.sleep(wait)
    return process.capture(argv, stdin=stdin, timeout=max(0.0, deadline - time.monotonic()))


def cut(code: int, said: str) -> bool:
    """Whether the server, or a jump host, closed the connection before its greeting: nothing has run there."""
    return code == LOST and bool(_CUT.search(said)) and not _REFUSED.search(said)


def agent(
    cluster: Cluster, node: str, *words: str, request: object = None, timeout: float = 60
) -> dict[str, Any] | list[Any]:
    """The answer of the node's agent, as data."""
    stdin = None if request is None else json.dumps(request)
    done = run(cluster, node, ["hvd-agent", *words], stdin=stdin, timeout=timeout)
    try:
        answer: dict[str, Any] | list[Any] = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise HvdctlError(f"{node}: hvd-agent {words[0]} failed: {said[-1] if said else done.returncode}") from None
    if done.returncode and isinstance(answer, dict) and "error" in answer:
        raise UsageError(str(answer["error"]))
    return answer


def wait(cluster: Cluster, nodes: Sequence[Node], seconds: float = 60) -> None:
    """Return when sshd greets on every node, or lets us in where a jump host is on the way."""
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(max(1, min(len(nodes), 64))) as pool:
        silent = [name for name in pool.map(lambda node: _greeted(cluster, node, deadline), nodes) if name]
    if silent:
        jumps = any(node.ssh_proxy for node in nodes)
        raise HvdctlError(
            f"no SSH server answers on {', '.join(silent)} after {seconds:.0f} s",
            hint="can you log in to the jump host with ssh, and is its host key known?" if jumps else "",
        )


def _greeted(cluster: Cluster, node: Node, deadline: float) -> str | None:
    if node.ssh_proxy is not None:
        return _admitted(cluster, node, deadline)
    while True:
        try:
            with socket.create_connection((node.address, node.ssh_port), timeout=2) as link:
                link.settimeout(2)
                if link.recv(4) == b"SSH-":
                    return None
        except OSError:
            pass
        if time.monotonic() > deadline:
            return node.name
        time.sleep(0.05)


def _admitted(cluster: Cluster, node: Node, deadline: float) -> str | None:
    while True:
        # Not all of it for one attempt: a login may be stuck on its way.
        left = max(1.0, min(_ATTEMPT, deadline - time.monotonic()))
        try:
            done = capture(argv(cluster, node.name, ["true"]), timeout=left)
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess([], LOST, "", "no answer")
        if done.returncode == 0:
            return None
        said = _reason(done.stderr)
        if time.monotonic() > deadline or re.search(r"Permission denied|Host key verification failed", said):
            return f"{node.name} through {node.ssh_proxy} ({said})"
        time.sleep(0.5)


def _reason(said: str) -> str:
    """The line of ssh's that tells most: a jump host that refuses takes the connection through it along."""
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return next((line for line in lines if _REFUSED.search(line)), lines[-1] if lines else "no answer")


def _look(cluster: Cluster) -> str:
    return f"`hvdctl status --name {cluster.name}` shows which nodes are lost; `hvdctl up` makes those anew"
