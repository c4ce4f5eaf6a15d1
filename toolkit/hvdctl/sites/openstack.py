"""The site `openstack`: what of a cluster stands in an OpenStack project, asked by tag, metadata or name.

Credentials are those that OpenStack's own tools would take: clouds.yaml, by the name of a cloud, or OS_* variables.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, ValidationError

from hvdctl import owner
from hvdctl.errors import HvdctlError, ToolMissing, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.sites import cloud, only, plainly, stack
from hvdctl.sites.cloud import CloudOptions, Disk, Text
from hvdctl.spec import Spec

_SWEEPS = 5
_PAUSE = 3.0
_VARIABLES = ("OS_CLOUD", "OS_AUTH_URL")
_FILES = ("clouds.yaml", "~/.config/openstack/clouds.yaml", "/etc/openstack/clouds.yaml")
_NO_CREDENTIALS = "there are no OpenStack credentials: --option cloud=NAME of a clouds.yaml, or the OS_* variables"
_HINTS = (
    cloud.NO_PROVIDER,
    (
        r"\b401\b|[Aa]uthentication failed|requires authentication",
        "OpenStack does not take these credentials: check clouds.yaml and --option cloud=NAME, or the OS_* variables",
    ),
    (
        r"Cloud .* was not found|clouds?\.yaml",
        "clouds.yaml has no such cloud: check --option cloud=NAME",
    ),
    (
        r"Quota exceeded|Quota\w*Exceeded|OverQuota|exceed.* quota",
        "the project's limit is reached: use fewer --nodes or a smaller --option flavor, or ask for a higher quota "
        "(`openstack quota show`)",
    ),
    (
        "No valid host was found",
        "no host has room for such an instance, or for so many apart or together: choose another --option flavor, "
        "--option server_group=none, or try later",
    ),
    (
        "No more IP addresses|IpAddressGenerationFailure|ExternalGatewayForFloatingIPNotFound",
        "the external network has no address left to give: choose another --option external_network, or ask for one",
    ),
    (r"\b403\b|[Ff]orbidden", "these credentials may not do that: ask for the role `member` in the project"),
    (
        "query returned no results",
        "an image, a flavor or the external network is not there: see `openstack image list`, `openstack flavor list` "
        "and `openstack network list --external`",
    ),
    (
        "query returned more than one",
        "more than one matches: name the external network with --option external_network=NAME",
    ),
    (
        "no such host|connection refused|Unable to establish connection|Failed to (?:discover|contact)",
        "OpenStack can't be reached: check the network and the address in clouds.yaml or OS_AUTH_URL",
    ),
)


class Options(CloudOptions):
    """Which cloud, and what kind of instance."""

    cloud: str | None = Field(None, description="Cloud of clouds.yaml; null: as the OS_* variables say.")
    region: str | None = Field(None, description="Region of the cloud; null: its own default.")
    zone: str | None = Field(None, description="Availability zone; null: the cloud chooses.")
    image: Text | None = Field(None, description="Name of the machine image, a Debian 12 with cloud-init.")
    flavor: Text | None = Field(None, description="Flavor of every node, as the cloud names it.")
    disk: Disk = Field(None, description="Disk of a node as a volume, such as 100g; none: the flavor's own disk.")
    external_network: str | None = Field(None, description="Network with floating addresses; null: the only one.")
    dns: list[str] = Field(default_factory=list, description="Name servers of the nodes; empty: the cloud's own.")
    server_group: Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity", "none"] = Field(
        "soft-anti-affinity", description="Whether nodes are kept on hosts of their own or on one host."
    )


def explain(message: str) -> str:
    """What to do about an error of OpenStack's, or of Terraform on OpenStack; empty where nothing is known."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, message)), "")


def _told(error: Exception) -> HvdctlError | None:
    # The SDK's errors and those of the two libraries under it; a defect of ours is none of them.
    if type(error).__module__.split(".")[0] not in {"openstack", "keystoneauth1", "os_service_types"}:
        return None
    if "not given: auth_url" in str(error):
        return UsageError(_NO_CREDENTIALS, hint="infra/openstack/README.md says more")
    return HvdctlError(f"OpenStack: {error}", hint=explain(str(error)))


_plainly = plainly(_told)


@_plainly
def preflight(spec: Spec) -> None:
    """Raise where OpenStack does not know the caller, has not what is asked, or has what Terraform does not know of."""
    options = _options(spec)
    cloud.check_admitted(options.admit)
    if not (options.cloud or _in_use()):
        _check_chosen(options)  # else the cloud is asked for what it has
    connection = _connect(options)
    _check_project(connection, spec.name)
    cloud.check_state(spec.name, _ours(connection, spec.name), "the project")
    flavors = {flavor.name: flavor for flavor in connection.compute.flavors()}
    flavor = flavors[_chosen("flavor", options.flavor, list(flavors))]
    _chosen("image", options.image, [image.name for image in connection.image.images(status="active")])
    _chosen_network(
        options.external_network, [network.name for network in connection.network.networks(is_router_external=True)]
    )
    cloud.check_size(spec, flavor.name, "flavor", cpus=flavor.vcpus, memory=flavor.ram * 2**20)


def settings(spec: Spec) -> dict[str, Any]:
    return dict(_options(spec))  # sizes in bytes, where a dump has them as a person writes them


def access(spec: Spec) -> None:
    return None


def prepare(spec: Spec, progress: Progress) -> None:
    pass  # the machine image is the cloud's


def watch(spec: Spec, step: Step) -> nullcontext[None]:
    return nullcontext()


@_plainly
def observe(cluster: str, nodes: Sequence[str] | None = None) -> dict[str, str]:
    """Nova's word on the server of each node; one that is being built counts as running."""
    states = {"active": "running", "build": "running"}
    seen = {
        server.metadata[cloud.NAME_TAG]: states.get(server.status.lower(), server.status.lower())
        for connection in _where(cluster)
        for server in _servers(connection, cluster)
        if cloud.NAME_TAG in server.metadata
    }
    return only(seen, nodes)


@_plainly
def about(cluster: str) -> str:
    """Such as "m1.large in nova, until 2030-01-01T08:00:00Z"."""
    lines: dict[str, None] = {}
    for connection in _where(cluster):
        for server in _servers(connection, cluster):
            until = server.metadata.get(cloud.UNTIL_TAG)
            place = f" in {server.availability_zone}" if server.availability_zone else ""
            lines[
                f"{server.flavor['original_name'] or server.flavor['id']}{place}{f', until {until}' if until else ''}"
            ] = None
    return "; ".join(lines)


def hint(message: str) -> str:
    return explain(message)


@_plainly
def claims(cluster: str, spec: Spec | None = None) -> list[owner.Claim]:
    found = [thing for connection in _where(cluster, spec) for thing in stack.things(connection, cluster)]
    # Tags are too short for the owner in words: servers and disks have it.
    names = {thing.labels.get(owner.MARK): {owner.NAME: thing.labels[owner.NAME]} for thing in found if _named(thing)}
    return [owner.claim(thing.shown, names.get(thing.labels.get(owner.MARK), {}) | thing.labels) for thing in found]


@_plainly
def leftovers(cluster: str) -> list[str]:
    return [thing.shown for connection in _where(cluster) for thing in _ours(connection, cluster)]


@_plainly
def sweep(cluster: str, *, keep_data: bool, step: Step) -> None:
    """Remove all of the cluster's. No data can be kept: the share is on the head's own disk."""
    for connection in _where(cluster):
        # More than once: Neutron lets go of ports a while after the servers that had them.
        for attempt in range(_SWEEPS):
            found = _ours(connection, cluster)
            if not found:
                break
            if attempt:
                time.sleep(_PAUSE)
            last = attempt == _SWEEPS - 1
            stack.remove(connection, found, step.update, step.note if last else lambda _: None)


@_plainly
def clusters() -> list[str]:
    """Those of the projects that clusters of this home are in, and of the default one."""
    return sorted({name for connection in _everywhere() for name in stack.clusters(connection)})


def _named(thing: stack.Thing) -> bool:
    return owner.NAME in thing.labels


def _ours(connection: Any, cluster: str) -> list[stack.Thing]:
    """What of a cluster this home may remove."""
    found = stack.things(connection, cluster)
    return [thing for thing in found if owner.mine("openstack", cluster, thing.labels.get(owner.MARK, ""))]


def _servers(connection: Any, cluster: str) -> list[Any]:
    """The servers that count as part of a cluster of this home."""
    found = stack.servers(connection, cluster)
    return [server for server in found if owner.seen("openstack", cluster, server.metadata.get(owner.MARK, ""))]


def _options(spec: Spec) -> Options:
    return cast(Options, spec.own())


def _connect(options: Options) -> Any:
    if not _installed():
        raise ToolMissing(
            "openstacksdk, with which OpenStack is asked, is not installed",
            hint="`pip install openstacksdk` in the environment of hvdctl",
        )
    import openstack

    return openstack.connect(cloud=options.cloud, region_name=options.region)


def _check_chosen(options: Options) -> None:
    if missing := [key for key in ("flavor", "image") if getattr(options, key) is None]:
        raise UsageError(
            f"{' and '.join(f'options.{key}' for key in missing)} must be chosen",
            hint=" ".join(f"--option {key}=NAME" for key in missing) + ", as the cloud names them",
        )


def _where(cluster: str, spec: Spec | None = None) -> Iterator[Any]:
    """The cluster's project; of a cluster that this home does not know, every project that `clusters` asks."""
    options = _options(spec) if spec else _stored(cluster)
    if options is None:
        yield from _everywhere()
        return
    connection = _connect(options)
    _check_project(connection, cluster)
    yield connection


def _everywhere() -> Iterator[Any]:
    """All projects that this home has to do with; none where its user has nothing to do with OpenStack."""
    from hvdctl.cluster import known

    if not _in_use():
        return
    stored = [options for cluster in known() if (options := _stored(cluster.name))]
    places = {(options.cloud, options.region): options for options in [*stored, Options()]}
    yield from map(_connect, places.values())


def _check_project(connection: Any, cluster: str) -> None:
    """Raise where the credentials are of a project that shows nothing of the cluster."""
    origin = cloud.origin(cluster)
    if origin and connection.current_project_id != origin["project"]:
        raise UsageError(
            f"cluster {cluster!r} stands in the OpenStack project {origin['project']}; "
            f"the credentials are of {connection.current_project_id}",
            hint="use those of the cluster's project: --option cloud=NAME, OS_CLOUD, or OS_PROJECT_ID",
        )


def _chosen(key: str, value: str | None, known: list[str]) -> str:
    """A name that the cloud knows, or an error that lists those that it knows."""
    if value in known:
        return value
    shown = ", ".join(sorted(set(known))[:20]) or "nothing"
    wrong = f"{value!r} is not there" if value else "it must be chosen"
    raise UsageError(f"options.{key}: {wrong}; the cloud has: {shown}", hint=f"--option {key}=NAME")


def _chosen_network(value: str | None, known: list[str]) -> None:
    if value is not None or len(known) != 1:
        _chosen("external_network", value, known)


def _stored(cluster: str) -> Options | None:
    """The options of a cluster of ours on OpenStack, as it was last asked for."""
    from hvdctl.cluster import Cluster

    try:
        spec = Cluster(cluster).stored_spec() or {}
        return Options.model_validate(spec.get("options", {})) if spec.get("provider") == "openstack" else None
    except (HvdctlError, ValidationError):  # `down --force` works without
        return None


def _installed() -> bool:
    return importlib.util.find_spec("openstack") is not None


def _in_use() -> bool:
    """Whether this user has to do with OpenStack at all: who has not is not told of packages or credentials."""
    named = any(os.environ.get(name) for name in _VARIABLES)
    return _installed() and (named or any(Path(file).expanduser().exists() for file in _FILES))
