"""How the nodes of a cluster, and the machines under them, are reached: its known_hosts and its one ssh config."""

from __future__ import annotations

from collections.abc import Sequence

from hvdctl import inventory, machines, providers
from hvdctl.cluster import Cluster, Node, write
from hvdctl.spec import Spec


def written(cluster: Cluster, spec: Spec, nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """Write both; gives the host keys of the nodes alone."""
    ways = providers.REGISTRY[spec.provider].site.access(spec)
    host_keys: dict[str, tuple[str, ...]] = {
        node.name: (node.host_key or cluster.host_key(node.name).public,) for node in nodes
    }
    theirs = {
        name: ways.host_keys[node.name] if ways else (cluster.host_key(name).public,)
        for node in nodes
        for name in machines.names([node])
    }
    write(cluster.known_hosts, inventory.known_hosts(cluster.name, host_keys | theirs))
    config = inventory.ssh_config(cluster.name, nodes, cluster.key().private, cluster.known_hosts, ways)
    write(cluster.ssh_config, config)
    return host_keys
