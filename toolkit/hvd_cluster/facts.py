"""What the head knows of its cluster: ~/.hvdctl/cluster.json, which `hvdctl up` writes, else ~/hostfile."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_cluster.errors import ClusterError

_WITHOUT = "remove it: ~/hostfile serves in its place, until `hvdctl up` or `scale` configures the nodes again"


@dataclass(frozen=True)
class Node:
    """A node of the cluster; `here` is the one that this is said on."""

    name: str
    role: str
    slots: int
    gpus: int = 0
    address: str = ""
    here: bool = False


class Nodes(list[Node]):
    """The nodes in the order of the ranks, shown as a table."""

    @property
    def slots(self) -> int:
        """How many ranks there is room for."""
        return sum(node.slots for node in self)

    def _rows(self) -> list[list[str]]:
        rows = [["node", "role", "slots", "GPUs", "address", ""]]
        for node in self:
            here = "this notebook" if node.here else ""
            rows.append([node.name, node.role, str(node.slots), str(node.gpus), node.address, here])
        return rows

    def __repr__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows())


@dataclass(frozen=True)
class Facts:
    """The cluster as `hvdctl up` described it."""

    nodes: Nodes
    cluster: str = ""
    provider: str = ""
    framework: str = ""
    net: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    cpus: float | None = None
    interface: str | None = None
    image: str = ""
    one_machine: bool = False
    about: str = ""
    hvdctl: str = ""
    owner: str = ""
    """Whose cluster it is: others may use the same share."""
    after: int = 0
    """The number of the last run of earlier clusters of this name: runs count on from it."""
    described: tuple[dict[str, Any], ...] = ()
    """The nodes as they stand in the file."""


def nodes() -> Nodes:
    """The nodes of this cluster.

    >>> hc.nodes()
    node   role    slots  GPUs  address
    node0  head    1      0     172.18.0.2  this notebook
    node1  worker  1      0     172.18.0.3
    >>> hc.nodes().slots
    2
    """
    return facts().nodes


def facts() -> Facts:
    """All that is known here, read anew: `hvdctl scale` may have changed it."""
    file = Path(os.environ.get("HVD_CLUSTER_FILE") or Path.home() / ".hvdctl" / "cluster.json")
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Facts(_from_hostfile())
    except (OSError, ValueError) as error:
        raise ClusterError(f"{file} can't be read: {error}; {_WITHOUT}") from None
    try:
        return _facts(stored)
    except (KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{file} is not what hvdctl writes: {error!r}; {_WITHOUT}") from None


def here() -> str:
    """The name of this node, as the agent knows it."""
    file = Path(os.environ.get("HVD_CONFIG") or "/etc/hvdctl") / "name"
    try:
        return file.read_text(encoding="utf-8").strip() or os.uname().nodename
    except OSError:
        return os.uname().nodename


def share() -> Path:
    """The folder that all nodes have in common."""
    return Path(os.environ.get("HVD_SHARED") or "/shared")


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other, the first row their names."""
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in rows)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """The same for a notebook."""
    head, *body = [[html.escape(cell) for cell in row] for row in rows]
    left = 'style="text-align: left"'
    told = "".join(f"<th {left}>{cell}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td {left}>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{told}</tr></thead><tbody>{lines}</tbody></table>"


def _facts(stored: dict[str, Any]) -> Facts:
    name = here()
    found = Nodes(
        Node(
            name=str(one["name"]),
            role=str(one.get("role") or ""),
            slots=int(one["slots"]),
            gpus=int(one.get("gpus") or 0),
            address=str(one.get("address") or ""),
            here=one["name"] == name,
        )
        for one in stored["nodes"]
    )
    if not found:
        raise KeyError("no node")
    return Facts(
        found,
        cluster=stored.get("cluster") or "",
        provider=stored.get("provider") or "",
        framework=stored.get("framework") or "",
        net=stored.get("net"),
        env=dict(stored.get("env") or {}),
        cpus=stored.get("cpus"),
        interface=stored.get("interface"),
        image=stored.get("image") or "",
        one_machine=bool(stored.get("one_machine")),
        about=stored.get("about") or "",
        hvdctl=stored.get("hvdctl") or "",
        owner=re.sub(r"\W", "", str(stored.get("owner") or "")),
        after=int(stored.get("after") or 0),
        described=tuple(stored["nodes"]),
    )


def _from_hostfile() -> Nodes:
    """`node0 slots=1` lines, the head first."""
    file = Path.home() / "hostfile"
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError:
        raise ClusterError(
            f"this is no node of a cluster: there is neither ~/.hvdctl/cluster.json nor {file}; "
            "open the notebook on a cluster's head, with `hvdctl jupyter`"
        ) from None
    name = here()
    found = Nodes()
    for words in lines:
        if not words or words[0].startswith("#"):
            continue
        slots = next((int(word[6:]) for word in words[1:] if word.startswith("slots=") and word[6:].isdecimal()), 1)
        found.append(Node(words[0], "worker" if found else "head", slots, here=words[0] == name))
    if not found:
        raise ClusterError(f"{file} names no node; `hvdctl scale` writes it anew")
    return found
