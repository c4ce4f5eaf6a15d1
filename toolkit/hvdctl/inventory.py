"""From nodes to what Ansible, SSH and the launchers read. All pure."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdctl.cluster import Node

HOME = "/home/hvd"
NODE_KEY = "/etc/hvdctl/ssh/id_ed25519"
_STRICT = (
    "IdentitiesOnly yes",
    "StrictHostKeyChecking yes",
    "GlobalKnownHostsFile /dev/null",
    "UpdateHostKeys no",
    "PasswordAuthentication no",
    "KbdInteractiveAuthentication no",
    "ServerAliveInterval 15",
    "ConnectTimeout 10",
    "LogLevel ERROR",
)


def inventory(cluster: str, nodes: Sequence[Node], ssh_config: Path) -> dict[str, Any]:
    """The Ansible inventory; inventory/README.md describes it."""
    hosts = {
        node.name: {
            "ansible_host": node.name,
            "hvd_role": node.role,
            "hvd_kind": node.kind,
            "hvd_private_address": node.private_address,
            "hvd_slots": node.slots,
            "hvd_gpus": node.gpus,
        }
        for node in nodes
    }
    groups: dict[str, list[str]] = {"head": [], "workers": [], "containers": [], "machines": []}
    for node in nodes:
        groups["head" if node.role == "head" else "workers"].append(node.name)
        groups[f"{node.kind}s"].append(node.name)
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


def ssh_config(cluster: str, nodes: Sequence[Node], key: Path, known_hosts: Path) -> str:
    """How this machine reaches the nodes, by name."""
    blocks = [
        _host(
            cluster,
            node,
            node.address,
            (f"IdentityFile {_quoted(key)}", f"UserKnownHostsFile {_quoted(known_hosts)}"),
            proxy=node.ssh_proxy,
        )
        for node in nodes
    ]
    return "\n".join(blocks)


def node_ssh_config(cluster: str, nodes: Sequence[Node]) -> str:
    """How the nodes reach each other, by name; what all have in common stands once, as there may be hundreds."""
    hosts = [
        f"Host {node.name}\n  HostName {node.private_address}\n  Port {node.ssh_port}\n  User {node.ssh_user}\n"
        f"  HostKeyAlias {alias(cluster, node.name)}\n"
        for node in nodes
    ]
    own = (f"IdentityFile {NODE_KEY}", "UserKnownHostsFile ~/.ssh/known_hosts", *_STRICT)
    return "".join(hosts) + "\n  ".join(["Host *", *own]) + "\n"


def known_hosts(cluster: str, host_keys: Mapping[str, str]) -> str:
    """A line for each node; the alias stands for the node whatever its address is."""
    return "".join(f"{alias(cluster, name)} {key}\n" for name, key in host_keys.items())


def hostfile(nodes: Sequence[Node]) -> str:
    """As mpirun and horovodrun read it."""
    return "".join(f"{node.name} slots={node.slots}\n" for node in nodes)


def bundle(cluster: str, nodes: Sequence[Node], host_keys: Mapping[str, str]) -> dict[str, Any]:
    """Every file that a node still needs, as one document: one task for each node in place of many. No secrets."""
    files = [
        (f"{HOME}/.ssh/known_hosts", known_hosts(cluster, host_keys), "0600"),
        (f"{HOME}/.ssh/config", node_ssh_config(cluster, nodes), "0600"),
        (f"{HOME}/hostfile", hostfile(nodes), "0644"),
    ]
    return {"files": [{"path": path, "content": content, "mode": mode} for path, content, mode in files]}


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


def _host(cluster: str, node: Node, address: str, identity: Sequence[str], proxy: str | None = None) -> str:
    lines = [
        f"Host {node.name}",
        f"HostName {address}",
        f"Port {node.ssh_port}",
        f"User {node.ssh_user}",
        f"HostKeyAlias {alias(cluster, node.name)}",
        *identity,
        *_STRICT,
        *([f"ProxyJump {proxy}"] if proxy else []),
    ]
    return "\n  ".join(lines) + "\n"


def _quoted(path: Path) -> str:
    return f'"{path}"'
