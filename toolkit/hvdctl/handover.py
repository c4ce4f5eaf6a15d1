"""Machines that were there before hvdctl and stay after it: which are taken, and how they are given back."""

from __future__ import annotations

from collections.abc import Sequence

from hvdctl import configure, machines, providers
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Step
from hvdctl.sites import static
from hvdctl.spec import Spec


def changes(cluster: Cluster, spec: Spec) -> dict[str, list[str]]:
    """What `up` would do to machines, by action, for a plan."""
    wanted = static.planned(spec)
    there = cluster.nodes() if cluster.record("configure") else []
    found = {"configure": _apart(wanted, there), "undo": _apart(there, wanted)}
    return {action: [f"{node.address}:{node.ssh_port}" for node in nodes] for action, nodes in found.items() if nodes}


def check_head(cluster: Cluster, spec: Spec) -> None:
    """Raise where another machine would become the head: what is on the share lies on the one that is."""
    head, wanted = cluster.nodes()[0], static.planned(spec)[0]
    if cluster.record("share") and not _same(head, wanted):
        raise UsageError(
            f"options.hosts: the share of {cluster.name!r} is on {head.place}, and {wanted.place} would be the head",
            hint=f"put {head.address} first again; or `hvdctl pull` what you need, `hvdctl down`, then `hvdctl up`",
        )


def release(cluster: Cluster, nodes: Sequence[Node], step: Step) -> list[str]:
    """Undo what was configured on machines that are no part of the cluster any more; what can't be undone, in words.

    One that is dead must not keep the others from going on. No data is removed.
    """
    gone = _apart(cluster.nodes(), nodes)
    if not gone or not cluster.inventory.exists():
        return []
    try:
        configure.play(cluster, "teardown.yml", {"nfs_keep_data": True}, step.update, limit=machines.names(gone))
    except HvdctlError as error:
        return [f"{', '.join(node.place for node in gone)}: {error.message}"]
    return []


def undo(cluster: Cluster, keep_data: bool, step: Step) -> HvdctlError | None:
    """Take back all that was configured on machines that stay; the error where that failed."""
    try:
        if not (cluster.exists and cluster.inventory.exists() and cluster.nodes()):
            return None
        if not providers.REGISTRY[cluster.spec().provider].keeps_machines:
            return None
        configure.play(cluster, "teardown.yml", {"nfs_keep_data": keep_data}, step.update)
    except HvdctlError as error:
        return error
    return None


def _apart(nodes: Sequence[Node], others: Sequence[Node]) -> list[Node]:
    """Those whose machine is none of the others'."""
    return [node for node in nodes if not any(_same(node, other) for other in others)]


def _same(one: Node, other: Node) -> bool:
    """Whether two nodes are one machine, which may be written in another way or have been installed anew."""
    return bool(_marks(one) & _marks(other))


def _marks(node: Node) -> set[str]:
    return {f"{node.address}:{node.ssh_port}", node.private_address, static.host_key_mark(node)}
