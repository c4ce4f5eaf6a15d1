"""Machines that were there before hvdctl and stay after it: which are taken, and how they are given back."""

from __future__ import annotations

from collections.abc import Sequence

from hvdctl import configure, machines, providers
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, PhaseError, UsageError
from hvdctl.progress import Step
from hvdctl.sites import static
from hvdctl.spec import Spec


def changes(cluster: Cluster, spec: Spec) -> dict[str, list[str]]:
    """What `up` would do to machines, by action, for a plan."""
    wanted = static.planned(spec)
    there = cluster.nodes() if cluster.inventory.exists() else []
    found = {"configure": _apart(wanted, there), "undo": _apart(there, wanted)}
    return {action: [_place(node) for node in nodes] for action, nodes in found.items() if nodes}


def check_head(cluster: Cluster, spec: Spec) -> None:
    """Raise where another machine would become the head: what is on the share lies on the one that is."""
    nodes, wanted = cluster.nodes(), static.planned(spec)
    head = nodes[0]
    if cluster.record("share") and _partners(nodes, wanted).get(head.name) != wanted[0]:
        raise UsageError(
            f"options.hosts: the share of {cluster.name!r} is on {head.place}, and {wanted[0].place} would be the head",
            hint=f"put {head.address} first again; or `hvdctl pull` what you need, `hvdctl down`, then `hvdctl up`",
        )


def release(cluster: Cluster, nodes: Sequence[Node], step: Step) -> list[str]:
    """Undo what was configured on machines that are no part of the cluster any more; what can't be undone, in words.

    One that is dead must not keep the others from going on. No data is removed.
    """
    gone = _apart(cluster.nodes(), nodes)
    if not gone or not cluster.inventory.exists():
        return []
    gone = _ours(cluster, gone, step)
    if not gone:
        return []
    try:
        configure.play(cluster, "teardown.yml", {"nfs_keep_data": True}, step.update, limit=machines.names(gone))
    except PhaseError as error:
        failed = [node for node in gone if not error.hosts or error.hosts & {*machines.names([node])}]
        return [f"{', '.join(node.place for node in failed)}: {error.message}"]
    return []


def undo(cluster: Cluster, keep_data: bool, step: Step) -> HvdctlError | None:
    """Take back all that was configured on machines that stay; the error where that failed."""
    try:
        if not (cluster.exists and cluster.inventory.exists() and cluster.nodes()):
            return None
        if not providers.REGISTRY[cluster.spec().provider].keeps_machines:
            return None
        nodes = cluster.nodes()
        ours = _ours(cluster, nodes, step)
        limit = machines.names(ours) if len(ours) < len(nodes) else []
        if ours:
            configure.play(cluster, "teardown.yml", {"nfs_keep_data": keep_data}, step.update, limit=limit)
    except HvdctlError as error:
        return error
    return None


def _ours(cluster: Cluster, nodes: Sequence[Node], step: Step) -> list[Node]:
    """Those whose machine no other owner's cluster of this name has taken since."""
    ceded = static.ceded(cluster.name)
    if taken := [node.place for node in nodes if node.name in ceded]:
        step.note(f"left alone, as another owner's cluster has them: {', '.join(taken)}")
    return [node for node in nodes if node.name not in ceded]


def _apart(nodes: Sequence[Node], others: Sequence[Node]) -> list[Node]:
    """Those whose machine is none of the others'."""
    partners = _partners(nodes, others)
    return [node for node in nodes if node.name not in partners]


def _partners(nodes: Sequence[Node], others: Sequence[Node]) -> dict[str, Node]:
    """By the name of a node, the one of the others that is the same machine.

    First by its address; what is left by its host key, as a machine may be written in another way. Each is one node's
    only: machines that were cloned have one host key.
    """
    found: dict[str, Node] = {}
    free = list(others)
    for mark in (_way, static.host_key_mark):
        for node in (node for node in nodes if node.name not in found):
            if other := next((other for other in free if mark(other) == mark(node)), None):
                found[node.name] = other
                free.remove(other)
    return found


def _way(node: Node) -> tuple[object, ...]:
    """How it is reached; behind another jump host the same address is another machine."""
    return node.address, node.ssh_port, node.ssh_proxy


def _place(node: Node) -> str:
    return f"{node.address}:{node.ssh_port}"
