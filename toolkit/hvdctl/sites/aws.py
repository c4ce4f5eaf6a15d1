"""The site `aws`: what of a cluster stands in EC2, asked by tag.

Credentials are those that AWS's own tools would take: the environment, or a profile. AWS_ENDPOINT_URL is honoured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from pydantic import Field, ValidationError

from hvdctl import owner
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.sites import cloud, ec2, only, plainly
from hvdctl.sites.awserrors import explain, installed, told
from hvdctl.sites.cloud import CloudOptions, Disk, Text
from hvdctl.spec import Spec

_SWEEPS = 5
_PAUSE = 3.0
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}


_plainly = plainly(told)


class Options(CloudOptions):
    """Where in AWS, and what kind of instance."""

    region: str = Field("eu-west-1", description="Region of AWS.")
    zone: str | None = Field(None, description="Availability zone; null: the first that has the instance type.")
    profile: str | None = Field(None, description="Profile of the AWS configuration; null: as the environment says.")
    instance_type: str = Field("m6i.large", description="Instance type of every node, such as g5.xlarge.")
    spot: bool = Field(False, description="Spot instances: cheaper, and AWS may take them back.")
    placement_group: bool = Field(True, description="Nodes close together, for the fastest links.")
    image_owner: Text = Field("136693071363", description="Account that the machine image (AMI) is of; Debian's.")
    image_name: str = Field("debian-12-amd64-*", description="Name of the machine image; the newest match is taken.")
    disk: Disk = Field(50 * 2**30, description="Disk of a node, such as 100g; none: as the machine image has it.")


@_plainly
def preflight(spec: Spec) -> None:
    """Raise where AWS does not know the caller, has not what is asked, or has what Terraform does not know of."""
    options = _options(spec)
    cloud.check_admitted(options.admit)
    session = ec2.session(options.profile, options.region)
    origin = cloud.origin(spec.name)
    _check_account(session, spec.name, origin)
    if origin and origin["region"] != options.region:
        raise UsageError(
            f"options.region: cluster {spec.name!r} stands in {origin['region']} and can't move to {options.region}",
            hint=f"`hvdctl down --name {spec.name}` first, or choose another --name",
        )
    client = ec2.client(session)
    cloud.check_state(spec.name, _ours(client, spec.name), options.region)
    _check_type(client, spec, options)
    _check_image(client, options)


def settings(spec: Spec) -> dict[str, Any]:
    return dict(_options(spec))  # sizes in bytes, where a dump has them as a person writes them


def access(spec: Spec) -> None:
    return None


def prepare(spec: Spec, progress: Progress) -> None:
    pass  # the machine image is AWS's


def watch(spec: Spec, step: Step) -> nullcontext[None]:
    return nullcontext()


@_plainly
def observe(cluster: str, nodes: Sequence[str] | None = None) -> dict[str, str]:
    """AWS's word on the instance of each node; one that has just been started counts as running."""
    seen: dict[str, str] = {}
    for client in _where(cluster):
        for instance in _instances(client, cluster):
            name = ec2.tag(instance, cloud.NAME_TAG)
            state = instance["State"]["Name"].replace("pending", "running")
            # One that was lost may be told of for an hour after another has taken its place.
            if name and seen.get(name) != "running":
                seen[name] = state
    return only(seen, nodes)


@_plainly
def about(cluster: str) -> str:
    """Such as "m6i.large in eu-west-1a, spot, until 2030-01-01T08:00:00Z"."""
    lines: dict[str, None] = {}
    for client in _where(cluster):
        for instance in _instances(client, cluster):
            if instance["State"]["Name"] == "terminated":
                continue
            spot = ", spot" if instance.get("InstanceLifecycle") == "spot" else ""
            until = ec2.tag(instance, cloud.UNTIL_TAG)
            ends = f", until {until}" if until else ""
            lines[f"{instance['InstanceType']} in {instance['Placement']['AvailabilityZone']}{spot}{ends}"] = None
    return "; ".join(lines)


def hint(message: str) -> str:
    return explain(message)


@_plainly
def claims(cluster: str, spec: Spec | None = None) -> list[owner.Claim]:
    return [
        owner.claim(f"{kind.name} {name}", tags)
        for client in _where(cluster, spec)
        for kind, name, tags in ec2.things(client, cluster)
    ]


@_plainly
def leftovers(cluster: str) -> list[str]:
    return [f"{kind.name} {name}" for client in _where(cluster) for kind, name in _ours(client, cluster)]


@_plainly
def sweep(cluster: str, *, keep_data: bool, step: Step) -> None:
    """Remove all by tag. No data can be kept: the share is on the head's own disk."""
    for client in _where(cluster):
        # More than once: AWS lets go of addresses and groups a while after the instances that had them.
        for attempt in range(_SWEEPS):
            found = _ours(client, cluster)
            if not found:
                break
            if attempt:
                time.sleep(_PAUSE)
            last = attempt == _SWEEPS - 1
            ec2.remove(client, found, step.update, step.note if last else lambda _: None)


@_plainly
def clusters() -> list[str]:
    """Those of the regions that clusters of this home are in, and of the default region."""
    return sorted({name for client in _everywhere() for name in ec2.clusters(client)})


def _ours(client: Any, cluster: str) -> list[tuple[ec2.Kind, str]]:
    """What of a cluster this home may remove."""
    found = ec2.things(client, cluster)
    return [(kind, name) for kind, name, tags in found if owner.mine("aws", cluster, tags.get(owner.MARK, ""))]


def _instances(client: Any, cluster: str) -> list[dict[str, Any]]:
    """The instances that count as part of a cluster of this home."""
    found = ec2.instances(client, cluster)
    return [instance for instance in found if owner.seen("aws", cluster, ec2.tag(instance, owner.MARK))]


def _options(spec: Spec) -> Options:
    return cast(Options, spec.own())


def _where(cluster: str, spec: Spec | None = None) -> Iterator[Any]:
    """EC2 of the cluster's region; of a cluster that this home does not know, of every region that `clusters` asks."""
    options = _options(spec) if spec else _stored(cluster)
    origin = cloud.origin(cluster)
    if options is None and not origin:
        yield from _everywhere()
        return
    options = options or _default()
    session = ec2.session(options.profile, origin.get("region", options.region))
    _check_account(session, cluster, origin)
    yield ec2.client(session)


def _everywhere() -> Iterator[Any]:
    """EC2 of all regions that this home has to do with; none where its user has nothing to do with AWS."""
    from hvdctl.cluster import known

    if not _in_use():
        return
    stored = [options for cluster in known() if (options := _stored(cluster.name))]
    for place in dict.fromkeys((options.profile, options.region) for options in [*stored, _default()]):
        yield ec2.client(ec2.session(*place))


def _check_account(session: Any, cluster: str, origin: dict[str, str]) -> None:
    """Raise where AWS does not take the credentials, or they are of an account that sees nothing of the cluster."""
    account = ec2.client(session, "sts").get_caller_identity()["Account"]
    if origin and account != origin["account"]:
        raise UsageError(
            f"cluster {cluster!r} stands in the AWS account {origin['account']}; the credentials are of {account}",
            hint="use those of the cluster's account: --option profile=NAME, AWS_PROFILE, or AWS_ACCESS_KEY_ID",
        )


def _check_type(client: Any, spec: Spec, options: Options) -> None:
    kind = options.instance_type
    zones = ec2.zones(client, kind, options.region)
    if not zones:
        raise UsageError(
            f"options.instance_type: {options.region} has no {kind!r}",
            hint="AWS lists them: aws ec2 describe-instance-type-offerings --region " + options.region,
        )
    if options.zone and options.zone not in zones:
        raise UsageError(f"options.zone: {options.zone!r} has no {kind}; choose one of: {', '.join(zones)}")
    told = client.describe_instance_types(InstanceTypes=[kind])["InstanceTypes"][0]
    if "x86_64" not in told["ProcessorInfo"]["SupportedArchitectures"]:
        raise UsageError(f"options.instance_type: {kind} is not x86_64, as the images are; choose another type")
    if options.placement_group and "cluster" not in told["PlacementGroupInfo"]["SupportedStrategies"]:
        raise UsageError(
            f"options.placement_group: {kind} can't be in one", hint="--option placement_group=false, or another type"
        )
    gpus = sum(gpu["Count"] for gpu in told.get("GpuInfo", {}).get("Gpus", []))
    cpus, memory = told["VCpuInfo"]["DefaultVCpus"], told["MemoryInfo"]["SizeInMiB"] * 2**20
    cloud.check_size(spec, kind, "instance_type", cpus=cpus, memory=memory, gpus=gpus)


def _check_image(client: Any, options: Options) -> None:
    filters = [
        {"Name": "name", "Values": [options.image_name]},
        {"Name": "architecture", "Values": ["x86_64"]},
    ]
    if not client.describe_images(Owners=[options.image_owner], Filters=filters)["Images"]:
        raise UsageError(
            f"options.image_name: {options.region} has no x86_64 image {options.image_name!r} "
            f"of the account {options.image_owner}",
            hint="see `aws ec2 describe-images`; set --option image_name and --option image_owner",
        )


def _stored(cluster: str) -> Options | None:
    """The options of a cluster of ours on AWS, as it was last asked for."""
    from hvdctl.cluster import Cluster

    try:
        spec = Cluster(cluster).stored_spec() or {}
        return Options.model_validate(spec.get("options", {})) if spec.get("provider") == "aws" else None
    except (HvdctlError, ValidationError):  # `down --force` works without
        return None


def _default() -> Options:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return Options(region=region) if region else Options()


def _in_use() -> bool:
    """Whether this user has to do with AWS at all: who has not is not told of missing packages or credentials."""
    files = [Path(os.environ.get(name) or usual).expanduser() for name, usual in _FILES.items()]
    return installed() and (any(os.environ.get(name) for name in _CREDENTIALS) or any(f.exists() for f in files))
