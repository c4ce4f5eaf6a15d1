"""From nodes to what Ansible, SSH and the launchers read. All pure."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdctl.cluster import Node
from hvdctl.errors import UsageError
from hvdctl.providers import Access

HOME = "/home/hvd"
NODE_KEY = "/etc/hvdctl/ssh/id_ed25519"
NODE_AUTHORIZED = "/etc/hvdctl/ssh/authorized_keys"
NODE_PORT = 2222
NODE_USER = "hvd"
STRICT = (
    "StrictHostKeyChecking yes",
    "GlobalKnownHostsFile /dev/null",
    "UpdateHostKeys no",
    "PasswordAuthentication no",
    "KbdInteractiveAuthentication no",
    "ServerAliveInterval 15",
    "ConnectTimeout 10",
    "LogLevel ERROR",
)
# Ends a quoted word of an ssh config, or is replaced in it.
_NO_WORD = re.compile(r"[\"\\\x00-\x1f\x7f]|\$\{")


def inventory(cluster: str, nodes: Sequence[Node], ssh_config: Path) -> dict[str, Any]:
    """The Ansible inventory; inventory/README.md describes it."""
    hosts: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[str]] = {"head": [], "workers": [], "containers": [], "machines": []}
    for node in nodes:
        hosts[node.name] = _facts(node, node.name)
        groups["head" if node.role == "head" else "workers"].append(node.name)
        groups["containers"].append(node.name)
    for node in (node for node in nodes if node.kind == "machine"):
        name = ssh_host(node.name, node.kind)
        hosts[name] = _facts(node, name)
        groups["machines"].append(name)
    return {
        "all": {
            "hosts": hosts,
            "children": {group: {"hosts": {name: {} for name in names}} for group, names in groups.items()},
            "vars": {
                "hvd_cluster": cluster,
                "ansible_ssh_common_args": f'-F "{ssh_config}"',
                "ansible_python_interpreter": "/usr/bin/python3",
            },
        }
    }


def ssh_host(node: str, kind: str) -> str:
    """The name in SSH of what Terraform made: the node itself, or the machine that the node is a container on."""
    return f"{node}.machine" if kind == "machine" else node


def ssh_config(cluster: str, nodes: Sequence[Node], key: Path, known_hosts: Path, access: Access | None = None) -> str:
    """How this machine reaches the nodes, and the machines under them, by name."""
    known = f"UserKnownHostsFile {quoted(known_hosts)}"
    ours: tuple[str, ...] = ("IdentitiesOnly yes", f"IdentityFile {quoted(key)}", known, *STRICT)
    if access is None:
        theirs = ours
    elif access.key is None:
        theirs = (known, *STRICT)
    else:
        theirs = ("IdentitiesOnly yes", f"IdentityFile {quoted(access.key)}", known, *STRICT)
    blocks = []
    for node in nodes:
        made = ssh_host(node.name, node.kind)
        jump = [f"ProxyJump {node.ssh_proxy}"] if node.ssh_proxy else []
        at = [f"HostName {node.address}", f"Port {node.ssh_port}", f"User {node.ssh_user}"]
        blocks.append(
            _block(made, *at, f"HostKeyAlias {alias(cluster, made)}", *(theirs if made != node.name else ours), *jump)
        )
        if made != node.name:
            at = ["HostName 127.0.0.1", f"Port {NODE_PORT}", f"User {NODE_USER}"]
            blocks.append(
                _block(node.name, *at, f"HostKeyAlias {alias(cluster, node.name)}", *ours, f"ProxyJump {made}")
            )
    if any(node.ssh_proxy for node in nodes):
        files = " ".join(quoted(file) for file in (known_hosts, *(access.known_hosts if access else ())))
        blocks.append(_block("*", *(line for line in theirs if line != known), f"UserKnownHostsFile {files}"))
    return "\n".join(blocks)


def node_ssh_config(cluster: str, nodes: Sequence[Node]) -> str:
    """How the nodes reach each other, by name; what all have in common stands once, as there may be hundreds."""
    hosts = []
    for node in nodes:
        port, user = (NODE_PORT, NODE_USER) if node.kind == "machine" else (node.ssh_port, node.ssh_user)
        # The port of a job is one of its worker host's.
        at = node.address if node.host_key else node.private_address
        hosts.append(
            f"Host {node.name}\n  HostName {at}\n  Port {port}\n  User {user}\n"
            f"  HostKeyAlias {alias(cluster, node.name)}\n"
        )
    own = ("IdentitiesOnly yes", f"IdentityFile {NODE_KEY}", "UserKnownHostsFile ~/.ssh/known_hosts", *STRICT)
    return "".join(hosts) + "\n  ".join(["Host *", *own]) + "\n"


def known_hosts(cluster: str, host_keys: Mapping[str, Sequence[str]]) -> str:
    """A line for each key of a node or machine; the alias stands for it whatever its address is."""
    return "".join(f"{alias(cluster, name)} {key}\n" for name, keys in host_keys.items() for key in keys)


def hostfile(nodes: Sequence[Node]) -> str:
    """As mpirun and horovodrun read it."""
    return "".join(f"{node.name} slots={node.slots}\n" for node in nodes)


def bundle(
    cluster: str,
    nodes: Sequence[Node],
    host_keys: Mapping[str, Sequence[str]],
    key: str,
    *,
    packages: str = "/shared/python",
) -> dict[str, Any]:
    """Every file that a node still needs, as one document: one task for each node in place of many. No secrets.

    `packages` is the folder on the share that ~/python leads to.

    Nodes that made their own keys learn those of the others, beside the cluster's public `key`, and their names too.
    """
    files = [
        (f"{HOME}/.ssh/known_hosts", known_hosts(cluster, host_keys), "0600"),
        (f"{HOME}/.ssh/config", node_ssh_config(cluster, nodes), "0600"),
        (f"{HOME}/hostfile", hostfile(nodes), "0644"),
    ]
    own = [node.user_key for node in nodes if node.user_key]
    if own:
        files.append((NODE_AUTHORIZED, "".join(f"{line}\n" for line in (key, *own)), "0600"))
    document: dict[str, Any] = {
        "files": [{"path": path, "content": content, "mode": mode} for path, content, mode in files],
        "links": [{"path": f"{HOME}/python", "folder": packages}],
    }
    return document | {"hosts": [[node.private_address, node.name] for node in nodes]} if own else document


def packed(document: dict[str, Any]) -> str:
    """A document as one word, short enough for a command line even with hundreds of nodes."""
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


def layout(nodes: Sequence[Node], np: int) -> list[tuple[str, int]]:
    """The slots that `np` ranks take on each node, nodes filled in order."""
    placed = []
    for node in nodes:
        taken = min(np, node.slots)
        if taken:
            placed.append((node.name, taken))
        np -= taken
    return placed


def alias(cluster: str, node: str) -> str:
    return f"{node}.{cluster}.hvdctl"


def _facts(node: Node, host: str) -> dict[str, Any]:
    return {
        "ansible_host": host,
        "hvd_node": node.name,
        "hvd_role": node.role,
        "hvd_kind": node.kind,
        "hvd_private_address": node.private_address,
        "hvd_slots": node.slots,
        "hvd_gpus": node.gpus,
    }


def _block(host: str, *lines: str) -> str:
    return "\n  ".join([f"Host {host}", *lines]) + "\n"


def quoted(path: Path) -> str:
    """The path as a word of an ssh config; raise if it would be more than that there."""
    text = str(path)
    if _NO_WORD.search(text):
        raise UsageError(
            f"{text!r} can't be written into a configuration of ssh",
            hint="use a path without quotation marks, backslashes, line breaks and ${",
        )
    return '"{}"'.format(text.replace("%", "%%"))
