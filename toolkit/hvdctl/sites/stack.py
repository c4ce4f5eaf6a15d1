"""An OpenStack project by tag, on openstacksdk: what is there of a cluster, and how it is removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hvdctl import owner
from hvdctl.sites.cloud import TAG

_DELETED_WITHIN = 300
_INTERFACES = {
    "network:router_interface",
    "network:router_interface_distributed",
    "network:ha_router_replicated_interface",
}


@dataclass(frozen=True)
class Thing:
    kind: str
    found: Any

    @property
    def labels(self) -> dict[str, str]:
        """Its tags, metadata, or what its name says, as labels."""
        if self.kind == "server-group":
            mark = self.found.name.partition(".")[2]
            return {owner.MARK: mark} if mark else {}
        if self.kind in {"server", "disk"}:
            return dict(self.found.metadata)
        return dict(tag.split("=", 1) for tag in self.found.tags if "=" in tag)

    @property
    def shown(self) -> str:
        return f"{self.kind} {self.found.name or self.found.id}"


def servers(connection: Any, cluster: str) -> list[Any]:
    return [server for server in connection.compute.servers() if server.metadata.get(TAG) == cluster]


def things(connection: Any, cluster: str) -> list[Thing]:
    """All that is a cluster's, whoever made it, in the order in which it can be removed."""
    network, tags = connection.network, f"{TAG}={cluster}"
    found = {
        "server": servers(connection, cluster),
        "floating-ip": network.ips(tags=tags),
        "port": network.ports(tags=tags),
        "router": network.routers(tags=tags),
        "subnet": network.subnets(tags=tags),
        "network": network.networks(tags=tags),
        "security-group": network.security_groups(tags=tags),
        # These have neither tags nor metadata. The owner's mark follows a dot, which no cluster's name has.
        "server-group": (
            group for group in connection.compute.server_groups() if group.name.split(".")[0] == f"hvdctl-{cluster}"
        ),
        "disk": (v for v in _volumes(connection) if v.metadata.get(TAG) == cluster),
    }
    return [Thing(kind, one) for kind, ones in found.items() for one in ones]


def clusters(connection: Any) -> list[str]:
    """The names of all clusters that something is left of."""
    network = connection.network
    lists = (network.ips, network.ports, network.routers, network.subnets, network.networks, network.security_groups)
    tags = [tag for ask in lists for thing in ask() for tag in thing.tags]
    names = {tag.removeprefix(f"{TAG}=") for tag in tags if tag.startswith(f"{TAG}=")}
    names |= {s.metadata[TAG] for s in [*connection.compute.servers(), *_volumes(connection)] if TAG in s.metadata}
    return sorted(names)


def remove(
    connection: Any, found: Sequence[Thing], say: Callable[[str], None], complain: Callable[[str], None]
) -> None:
    """Remove things in their order; one that can't be is complained of, and the others still go."""
    from openstack.exceptions import SDKException

    compute, network = connection.compute, connection.network
    removers = {
        "server": compute.delete_server,
        "floating-ip": network.delete_ip,
        "port": network.delete_port,
        "router": network.delete_router,
        "subnet": network.delete_subnet,
        "network": network.delete_network,
        "security-group": network.delete_security_group,
        "server-group": compute.delete_server_group,
        "disk": connection.block_storage.delete_volume,
    }

    def go(thing: Thing) -> None:
        say(thing.shown)
        try:
            if thing.kind == "router":
                _detach(network, thing.found)
            removers[thing.kind](thing.found, ignore_missing=True)
        except SDKException as error:
            complain(f"{thing.shown}: {error}")

    servers = [thing for thing in found if thing.kind == "server"]
    for thing in servers:
        go(thing)
    # They hold ports and disks until they are gone.
    for thing in servers:
        try:
            compute.wait_for_delete(thing.found, wait=_DELETED_WITHIN)
        except SDKException as error:
            complain(f"{thing.shown}: {error}")
    for thing in found:
        if thing.kind != "server":
            go(thing)


def _detach(network: Any, router: Any) -> None:
    """A router goes when no network hangs on it."""
    for port in network.ports(device_id=router.id):
        if port.device_owner in _INTERFACES:
            network.remove_interface_from_router(router, None, port.id)


def _volumes(connection: Any) -> list[Any]:
    """None where the cloud has no block storage."""
    return list(connection.block_storage.volumes()) if connection.has_service("block-storage") else []
