"""EC2 by tag, on boto3: what is there, and how it is removed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hvdctl.errors import ToolMissing
from hvdctl.sites import awserrors
from hvdctl.sites.cloud import TAG


@dataclass(frozen=True)
class Kind:
    """One kind of thing that carries the tag: EC2's names for it are all made from one."""

    tagged: str
    """Its name where EC2 lists tags, such as route-table."""
    own_id: str = ""

    @property
    def name(self) -> str:
        # `volume` is what holds a user's data elsewhere.
        return "disk" if self.tagged == "volume" else self.tagged

    @property
    def camel(self) -> str:
        return self.tagged.title().replace("-", "")

    @property
    def snake(self) -> str:
        return self.tagged.replace("-", "_")

    @property
    def id(self) -> str:
        return self.own_id or f"{self.camel}Id"


# In the order in which they can be removed.
_KINDS = (
    Kind("instance"),
    Kind("volume"),
    Kind("placement-group", "GroupId"),
    Kind("security-group", "GroupId"),
    Kind("subnet"),
    Kind("route-table"),
    Kind("internet-gateway"),
    Kind("vpc"),
)
_WITHIN = {"security-group-rule"}
"""Goes with another thing that has the tag."""
_GONE = ({"Code": 48, "Name": "terminated"}, "deleting", "deleted")


def session(profile: str | None, region: str) -> Any:
    if not awserrors.installed():
        raise ToolMissing(
            "boto3, with which AWS is asked, is not installed", hint="`pip install boto3` in the environment of hvdctl"
        )
    import boto3
    import botocore.session

    core = botocore.session.Session(profile=profile)
    core.register_component("data_loader", _loader())
    return boto3.Session(botocore_session=core, region_name=region)


def client(session: Any, service: str = "ec2") -> Any:
    from botocore.config import Config

    config = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 4})
    return session.client(service, config=config)


def tag(thing: dict[str, Any], name: str) -> str:
    return tags(thing).get(name, "")


def tags(thing: dict[str, Any]) -> dict[str, str]:
    return {str(tag["Key"]): str(tag["Value"]) for tag in thing.get("Tags", [])}


def instances(client: Any, cluster: str) -> list[dict[str, Any]]:
    return _all(client, _KINDS[0], cluster)


def zones(client: Any, instance_type: str, region: str) -> list[str]:
    """The zones of the region that have an instance type."""
    answer = client.describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [instance_type]}]
    )
    found = [str(offer["Location"]) for offer in answer["InstanceTypeOfferings"]]
    return sorted(zone for zone in found if re.fullmatch(rf"{re.escape(region)}[a-z]", zone))


def clusters(client: Any) -> list[str]:
    """The names of all clusters that something is left of."""
    pages = client.get_paginator("describe_tags").paginate(Filters=[{"Name": "key", "Values": [TAG]}])
    names = {str(tag["Value"]) for page in pages for tag in page["Tags"]}
    return sorted(name for name in names if things(client, name))


def things(client: Any, cluster: str) -> list[tuple[Kind, str, dict[str, str]]]:
    """All that carries the cluster's tag, whoever made it, with its tags, in the order in which it can be removed.

    The list of tags tells which kinds there may be; each is then asked for, as tags outlive what they are on.
    """
    filters = [{"Name": "key", "Values": [TAG]}, {"Name": "value", "Values": [cluster]}]
    pages = client.get_paginator("describe_tags").paginate(Filters=filters)
    tagged = [(str(tag["ResourceType"]), str(tag["ResourceId"])) for page in pages for tag in page["Tags"]]
    known = {kind.tagged for kind in _KINDS}
    found = [
        (kind, str(thing[kind.id]), tags(thing))
        for kind in _KINDS
        if kind.tagged in {name for name, _ in tagged}
        for thing in _all(client, kind, cluster)
        if thing.get("State") not in _GONE
    ]
    # What hvdctl never makes: told of, and not touched.
    strange = {thing: Kind(name) for name, thing in tagged if name not in known | _WITHIN}
    return found + [(kind, thing, _tags_of(client, thing)) for thing, kind in strange.items()]


def remove(
    client: Any, found: Sequence[tuple[Kind, str]], say: Callable[[str], None], complain: Callable[[str], None]
) -> None:
    """Remove things in their order; one that can't be is complained of, and the others still go."""
    from botocore.exceptions import ClientError, WaiterError

    machines = [name for kind, name in found if kind.tagged == "instance"]
    if machines:
        say(f"{len(machines)} instances")
        try:
            client.terminate_instances(InstanceIds=machines)
            waiter = client.get_waiter("instance_terminated")
            waiter.wait(InstanceIds=machines, WaiterConfig={"Delay": 5, "MaxAttempts": 120})
        except (ClientError, WaiterError) as error:
            complain(f"instances {', '.join(machines)}: {error}")
    for kind, name in found:
        if kind.tagged == "instance" or kind not in _KINDS:
            continue
        say(f"{kind.name} {name}")
        try:
            _remove(client, kind, name)
        except ClientError as error:
            if not re.search(r"NotFound|\.Unknown", error.response["Error"]["Code"]):
                complain(f"{kind.name} {name}: {error.response['Error']['Message']}")


@functools.cache
def _loader() -> Any:
    """Shared by all sessions: reading what boto3 knows of EC2 takes longer than asking EC2."""
    from botocore.loaders import create_loader

    return create_loader()


def _tags_of(client: Any, name: str) -> dict[str, str]:
    pages = client.get_paginator("describe_tags").paginate(Filters=[{"Name": "resource-id", "Values": [name]}])
    return {str(tag["Key"]): str(tag["Value"]) for page in pages for tag in page["Tags"]}


def _remove(client: Any, kind: Kind, name: str) -> None:
    handle = {kind.id: name}
    if kind.tagged == "internet-gateway":
        for attached in _one(client, kind, name)["Attachments"]:
            client.detach_internet_gateway(InternetGatewayId=name, VpcId=attached["VpcId"])
    if kind.tagged == "route-table":
        for bound in _one(client, kind, name)["Associations"]:
            client.disassociate_route_table(AssociationId=bound["RouteTableAssociationId"])
    if kind.tagged == "placement-group":
        handle = {"GroupName": _one(client, kind, name)["GroupName"]}
    getattr(client, f"delete_{kind.snake}")(**handle)


def _one(client: Any, kind: Kind, name: str) -> dict[str, Any]:
    answer = getattr(client, f"describe_{kind.snake}s")(**{f"{kind.id}s": [name]})
    found: list[dict[str, Any]] = answer[f"{kind.camel}s"]
    return found[0]


def _all(client: Any, kind: Kind, cluster: str) -> list[dict[str, Any]]:
    ask, key = f"describe_{kind.snake}s", f"{kind.camel}s"
    filters = [{"Name": f"tag:{TAG}", "Values": [cluster]}]
    if not client.can_paginate(ask):
        answer: list[dict[str, Any]] = getattr(client, ask)(Filters=filters)[key]
        return answer
    pages = list(client.get_paginator(ask).paginate(Filters=filters))
    if kind.tagged == "instance":
        pages = [reservation for page in pages for reservation in page["Reservations"]]
    return [thing for page in pages for thing in page[key]]
