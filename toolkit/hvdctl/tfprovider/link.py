"""The link rate of a node, set from a short helper container so that the node itself needs no capability."""

from __future__ import annotations

import contextlib
from typing import cast

from docker import DockerClient
from docker.errors import ContainerError, NotFound
from docker.models.containers import Container
from tf.iface import State

from hvdctl import owner
from hvdctl.errors import HvdctlError
from hvdctl.sites import local
from hvdctl.tfprovider.resource import full_name, own

DEVICE = "eth0"


def shape(client: DockerClient, node: Container, planned: State) -> None:
    """Limit what the node sends and what it receives to the planned rate, in bits per second; None lifts the limit."""
    asked = "none" if planned["rate"] is None else str(int(planned["rate"]))
    clear(client, planned)
    try:
        client.containers.run(
            planned["image"],
            [DEVICE, asked],
            name=_helper(planned),
            entrypoint="/usr/local/bin/hvd-link",
            network_mode=f"container:{node.id}",
            user="0:0",
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN"],
            security_opt=["no-new-privileges"],
            labels={name: node.labels[name] for name in (local.LABEL, *owner.LABELS) if name in node.labels},
            remove=True,
            stderr=True,
        )
    except ContainerError as error:
        said = (error.stderr or b"").decode(errors="replace").strip() if isinstance(error.stderr, bytes) else ""
        raise HvdctlError(f"the link can't be set to {asked} bit/s: {said or error}") from None


def clear(client: DockerClient, planned: State) -> None:
    """Remove the helper of a node that a killed hvdctl left, if it is this cluster's."""
    with contextlib.suppress(NotFound):
        found = client.containers.get(_helper(planned))
        own(planned, found.labels, f"container {found.name}")
        found.remove(force=True)


def _helper(planned: State) -> str:
    return f"{full_name(planned)}-link"


def rate_of(node: Container) -> float | None:
    """What the node's link is limited to."""
    said = cast(bytes, node.exec_run(["hvd-link", DEVICE, "show"]).output).decode(errors="replace").strip()
    return float(said) if said.isdigit() else None
