"""Commands on the nodes, over SSH with the cluster's own keys and known hosts."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdctl import inventory, process
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, UsageError

LOST = 255


def argv(cluster: Cluster, node: str, command: Sequence[str] = (), *, tty: bool = False) -> list[str]:
    """The ssh call; without a command, a login shell."""
    words = [process.tool("ssh"), "-F", str(cluster.ssh_config)]
    words += ["-t"] if tty else ["-o", "BatchMode=yes"]
    return [*words, node, *(["--", shlex.join(command)] if command else [])]


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
        done = process.capture(argv(cluster, node, command), stdin=stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise HvdctlError(f"{node} gave no answer within {timeout:.0f} s", hint=_look(cluster)) from None
    if done.returncode == LOST:
        said = done.stderr.strip().splitlines()
        raise HvdctlError(f"{node} can't be reached: {said[-1] if said else 'no answer'}", hint=_look(cluster))
    return done


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


def wait(nodes: Sequence[Node], seconds: float = 60) -> None:
    """Return when sshd greets on every node that can be reached directly."""
    deadline = time.monotonic() + seconds
    direct = [node for node in nodes if node.ssh_proxy is None]
    with ThreadPoolExecutor(max(1, min(len(direct), 64))) as pool:
        silent = [name for name in pool.map(lambda node: _greeted(node, deadline), direct) if name]
    if silent:
        raise HvdctlError(f"no SSH server answers on {', '.join(silent)} after {seconds:.0f} s")


def _greeted(node: Node, deadline: float) -> str | None:
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


def _look(cluster: Cluster) -> str:
    return f"`hvdctl status --name {cluster.name}` shows which nodes are lost; `hvdctl up` makes those anew"
