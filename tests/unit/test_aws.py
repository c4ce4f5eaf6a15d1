"""The site `aws`: what it refuses, finds by tag and removes, on a cloud that moto plays within the test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.stub import Stubber
from hvdctl import guards, owner
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError, ToolMissing, UsageError
from hvdctl.progress import Silent
from hvdctl.sites import aws, awserrors, ec2
from hvdctl.spec import Spec, parse
from moto import mock_aws
from moto.ec2.models import amis

REGION = "eu-west-1"
ADMIT = {"admit": "203.0.113.7"}
THEIRS = {"hvdctl.owner": "0123456789abcdef", "hvdctl.owner-name": "ada@lab:/clusters"}
OURS: dict[str, str] = {}
UNMARKED = dict.fromkeys(THEIRS, "")
# An image that moto has.
IMAGE = {"image_owner": "099720109477", "image_name": "ubuntu/images/hvm-ssd/ubuntu-trusty-14.04-amd64*"}


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has nothing to do with AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no-such-file"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An AWS account with nothing in it, and EC2 in it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    # moto creates each of its 1300 images again in every test; the variable stops it from adding even more.
    monkeypatch.setenv("MOTO_AMIS_PATH", "none")
    monkeypatch.setattr(amis, "AMIS", [one for one in amis.AMIS if "ubuntu-trusty-14.04" in one["name"]])
    # boto3 parses the description of EC2 again for every session.
    monkeypatch.setattr(botocore.session, "create_loader", loader)
    with mock_aws():
        yield boto3.client("ec2", region_name=REGION)


loader = cache(botocore.session.create_loader)


def spec(**given: Any) -> Spec:
    own = {
        key: given.pop(key) for key in list(given) if key in aws.Options.model_fields or key not in Spec.model_fields
    }
    return parse({"name": "demo", "provider": "aws", **given, "options": own}, source="the test")


def tags(cluster: str, **more: str) -> list[dict[str, str]]:
    """Those of a cluster of this home, unless `more` says otherwise; an empty value leaves a tag out."""
    found = {"hvdctl.cluster": cluster, **owner.this().labels, **more}
    return [{"Key": key, "Value": value} for key, value in found.items() if value]


def make(client: Any, cluster: str, nodes: int = 1, more: Mapping[str, str] = OURS) -> list[str]:
    """What `up` makes of a cluster, but for its rules; gives the instances."""
    vpc = client.create_vpc(CidrBlock="10.80.0.0/20")["Vpc"]["VpcId"]
    gateway = client.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    client.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    subnet = client.create_subnet(VpcId=vpc, CidrBlock="10.80.0.0/20")["Subnet"]["SubnetId"]
    table = client.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    client.associate_route_table(RouteTableId=table, SubnetId=subnet)
    group = client.create_security_group(GroupName=cluster, Description="nodes", VpcId=vpc)["GroupId"]
    client.create_tags(Resources=[vpc, gateway, subnet, table, group], Tags=tags(cluster, **more))
    filters = [{"Name": "name", "Values": [IMAGE["image_name"]]}]
    image = client.describe_images(Filters=filters)["Images"][0]["ImageId"]
    made = []
    for index in range(nodes):
        (instance,) = client.run_instances(
            ImageId=image,
            InstanceType="m6i.large",
            MinCount=1,
            MaxCount=1,
            SubnetId=subnet,
            SecurityGroupIds=[group],
        )["Instances"]
        made.append(instance["InstanceId"])
        client.create_tags(Resources=made[-1:], Tags=tags(cluster, **{"hvdctl.name": f"node{index}"}, **more))
    return made


def kinds(cluster: str) -> list[str]:
    return [thing.split()[0] for thing in aws.leftovers(cluster)]


def stands(cluster: str, file: str = "terraform.tfstate", **origin: str) -> None:
    """A cluster of ours, as `up` leaves it."""
    Cluster(cluster).store_spec(spec(name=cluster, **ADMIT))
    data = {"type": "terraform_data", "name": "origin", "instances": [{"attributes": {"output": {"value": origin}}}]}
    write(Cluster(cluster).terraform / file, json.dumps({"resources": [data]}))


# Options.


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("203.0.113.7", ["203.0.113.7/32"]),
        ("203.0.113.7/24, 198.51.100.1", ["203.0.113.0/24", "198.51.100.1/32"]),
        (["203.0.113.0/24"], ["203.0.113.0/24"]),
        ([], []),
    ],
)
def test_admitted_addresses_have_one_form(given: object, taken: list[str]) -> None:
    assert aws.settings(spec(admit=given))["admit"] == taken


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"admit": "here"}, "options.admit: 'here' is not an IPv4 address or range; write 203.0.113.7"),
        ({"admit": "2001:db8::1"}, "options.admit: '2001:db8::1' is not an IPv4 address or range"),
        ({"admit": "0.0.0.0/0"}, "options.admit: 0.0.0.0/0 would let the whole internet try to log in"),
        ({"admit": ["128.0.0.0/1"]}, "or set admit_anyone as well"),
        ({"admit": 7}, "options.admit: 7 is not valid"),
        ({"ttl": "8 hours"}, "options.ttl: '8 hours' is not a time to live; write 30m, 8h, 2d or none"),
        ({"ttl": "0h"}, "options.ttl: '0h' is not a time to live"),
        ({"disk": "4g"}, "options.disk: '4g' is not a disk size; write 8g or more, such as 40g"),
        ({"regoin": "x"}, "unknown key 'options.regoin'; did you mean 'region'?"),
        ({"spot": "yes"}, "options.spot: 'yes' is not valid"),
    ],
)
def test_bad_options_are_told_by_name(options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        spec(**options)
    assert told in refused.value.message


def test_everyone_is_admitted_where_that_is_said_twice() -> None:
    assert aws.settings(spec(admit_anyone=True, admit="0.0.0.0/0"))["admit"] == ["0.0.0.0/0"]


@pytest.mark.parametrize(("given", "taken"), [("30m", "30m"), ("8h", "480m"), ("2d", "2880m"), ("none", None)])
def test_times_to_live_are_minutes_for_terraform(given: str, taken: str | None) -> None:
    assert aws.settings(spec(ttl=given))["ttl"] == taken


def test_an_account_number_may_come_as_a_number() -> None:
    assert aws.settings(spec(image_owner=136693071363))["image_owner"] == "136693071363"


# Errors.


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("api error InvalidClientTokenId: The security token included in the request is invalid.", "AWS_ACCESS_KEY_ID"),
        ("api error ExpiredToken: The security token included in the request is expired", "aws sso login"),
        ("Error: No valid credential sources found", "there are no credentials"),
        ("failed to get shared config profile, lab", "list-profiles"),
        ("AWS account ID not allowed: 111111111111", "another AWS account"),
        (
            "api error UnauthorizedOperation: You are not authorized to perform this operation.",
            "ask for the rights",
        ),
        (
            "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 400, "
            "RequestID: 1, api error VcpuLimitExceeded: You have requested more vCPU capacity than your limit",
            "use fewer --nodes or a smaller --option instance_type",
        ),
        ("api error MaxSpotInstanceCountExceeded: Max spot instance count exceeded", "limit for such instances"),
        ("api error VpcLimitExceeded: The maximum number of VPCs has been reached.", "as many networks"),
        (
            "api error InsufficientInstanceCapacity: We currently do not have sufficient p4d.24xlarge capacity in the "
            "Availability Zone you requested (eu-west-1a).",
            "choose another --option zone or instance_type",
        ),
        ("api error InvalidParameterValue: Invalid value 'm6i.lagre' for InstanceType.", "no such instance type"),
        ("api error InvalidAMIID.NotFound: The image id '[ami-1]' does not exist", "image_name"),
        ("api error OptInRequired: In order to use this AWS Marketplace product you need to accept", "not open"),
        ("dial tcp: lookup ec2.eu-nowhere-1.amazonaws.com: no such host", "can't be reached"),
        ("terraform init failed: dial tcp: lookup registry.example on 192.0.2.1:53: no such host", "HVDCTL_TF_MIRROR"),
        ("Error: Invalid index", ""),
    ],
)
def test_errors_are_explained(message: str, hint: str) -> None:
    told = awserrors.explain(message)
    assert hint in told if hint else told == ""


def test_without_boto3_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awserrors, "installed", lambda: False)
    with pytest.raises(ToolMissing, match="boto3") as refused:
        aws.preflight(spec(**ADMIT))
    assert refused.value.hint == "`pip install boto3` in the environment of hvdctl"


def test_no_credentials_and_no_profile_are_told() -> None:
    with pytest.raises(UsageError, match="Unable to locate credentials") as refused:
        aws.preflight(spec(**ADMIT))
    assert "aws configure" in refused.value.hint
    with pytest.raises(UsageError, match="lab") as refused:
        aws.preflight(spec(**ADMIT, profile="lab"))
    assert "--option profile=NAME" in refused.value.hint


def test_who_has_no_aws_is_not_bothered_with_it() -> None:
    assert aws.clusters() == []
    assert aws.observe("demo") == {}
    assert aws.about("demo") == ""
    assert aws.leftovers("demo") == []
    aws.sweep("demo", keep_data=False, step=Silent())


def test_nothing_is_said_of_a_cluster_on_aws_that_aws_was_not_asked_of() -> None:
    stands("demo", account="123456789012", region=REGION)
    for ask in (aws.observe, aws.leftovers, aws.about):
        with pytest.raises(UsageError, match="Unable to locate credentials"):
            ask("demo")


def test_an_aws_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(HvdctlError, match="Could not connect to the endpoint") as refused:
        aws.preflight(spec(**ADMIT))
    assert "AWS_ENDPOINT_URL" in refused.value.hint


# Before anything is made.


def test_preflight_takes_what_aws_has(account: Any) -> None:
    aws.preflight(spec(**ADMIT, **IMAGE))
    aws.preflight(spec(**ADMIT, **IMAGE, gpus=8, instance_type="p4d.24xlarge"))
    aws.preflight(spec(**ADMIT, **IMAGE, instance_type="t3.micro", placement_group=False, zone="eu-west-1b"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "options.admit: no address is admitted"),
        ({**ADMIT, "instance_type": "m6i.lagre"}, "options.instance_type: eu-west-1 has no 'm6i.lagre'"),
        ({**ADMIT, "zone": "eu-west-9z"}, "'eu-west-9z' has no m6i.large; choose one of: eu-west-1a, eu-west-1b"),
        ({**ADMIT, "instance_type": "m7g.large"}, "options.instance_type: m7g.large is not x86_64"),
        ({**ADMIT, "instance_type": "t3.micro"}, "options.placement_group: t3.micro can't be in one"),
        ({**ADMIT, "gpus": 1}, "gpus: 1 asked, but m6i.large has 0"),
        ({**ADMIT, "gpus": 2, "instance_type": "g5.xlarge"}, "gpus: 2 asked, but g5.xlarge has 1"),
        ({**ADMIT, "cpus": 4.0}, "cpus: 4 asked, but m6i.large has 2"),
        ({**ADMIT, "memory": "16g"}, "memory: 16g asked, but m6i.large has 8g"),
        ({**ADMIT, "image_name": "debian-99-*"}, "eu-west-1 has no x86_64 image 'debian-99-*' of the account 1366930"),
    ],
)
def test_preflight_refuses_what_it_has_not(account: Any, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        aws.preflight(spec(**asked))
    assert told in refused.value.message


def test_preflight_refuses_to_make_all_a_second_time(account: Any) -> None:
    """Terraform's state is written some time after things were made, so an empty one says nothing."""
    make(account, "demo")
    told = r"cluster 'demo': eu-west-1 has 6 things of it, and Terraform's state knows of none"
    with pytest.raises(UsageError, match=told) as refused:
        aws.preflight(spec(**ADMIT, **IMAGE))
    assert "hvdctl down --name demo --force" in refused.value.hint
    Cluster("demo").store_spec(spec(**ADMIT))
    write(Cluster("demo").terraform / "terraform.tfstate", "")
    with pytest.raises(UsageError, match=told):
        aws.preflight(spec(**ADMIT, **IMAGE))
    stands("demo", account="123456789012", region=REGION)
    aws.preflight(spec(**ADMIT, **IMAGE))


def test_what_somebody_else_or_an_older_version_made_is_named_and_left_alone(account: Any) -> None:
    make(account, "demo", more=THEIRS)
    make(account, "demo", more=UNMARKED)
    before = len(aws.claims("demo"))
    ours = len(make(account, "demo")) + 5
    found = aws.claims("demo", spec(**ADMIT))
    assert len(found) == before + ours
    assert {claim.owner.split(" (")[0] for claim in found} == {"ada@lab:/clusters", owner.this().name, ""}
    assert len(aws.leftovers("demo")) == ours
    aws.sweep("demo", keep_data=False, step=Silent())
    assert aws.leftovers("demo") == []
    assert len(aws.claims("demo")) == before
    assert aws.observe("demo") == {"node0": "terminated"}
    with pytest.raises(UsageError, match=r"cluster 'demo' is somebody else's: .* belongs to ada@lab:/clusters"):
        guards.name(Cluster("demo"), spec(**ADMIT))


def test_the_account_and_region_of_the_spec_are_asked_for_a_new_name(account: Any) -> None:
    make(boto3.client("ec2", region_name="us-east-1"), "demo", more=THEIRS)
    assert aws.claims("demo") == [], "the default region"
    with pytest.raises(UsageError, match="belongs to ada@lab"):
        guards.name(Cluster("demo"), spec(**ADMIT, region="us-east-1"))


def test_a_standing_cluster_does_not_move(account: Any) -> None:
    stands("demo", account="123456789012", region=REGION)
    with pytest.raises(UsageError, match="stands in eu-west-1 and can't move to us-east-1"):
        aws.preflight(spec(**ADMIT, **IMAGE, region="us-east-1"))


# What stands.


def test_nodes_are_seen_by_tag(account: Any) -> None:
    head, worker = make(account, "demo", nodes=2)
    make(account, "other")
    assert aws.observe("demo") == {"node0": "running", "node1": "running"}
    account.stop_instances(InstanceIds=[worker])
    assert aws.observe("demo") == {"node0": "running", "node1": "stopped"}
    assert aws.observe("demo", ["node1"]) == {"node1": "stopped"}
    account.terminate_instances(InstanceIds=[head])
    assert aws.observe("demo")["node0"] == "terminated"
    assert aws.about("demo").startswith("m6i.large in eu-west-1")
    assert aws.clusters() == ["demo", "other"]


def test_a_node_made_anew_hides_the_one_that_was_lost(account: Any) -> None:
    (lost,) = make(account, "demo")
    account.terminate_instances(InstanceIds=[lost])
    make(account, "demo")
    assert aws.observe("demo") == {"node0": "running"}


def test_a_cluster_is_looked_for_where_it_was_made(account: Any) -> None:
    make(boto3.client("ec2", region_name="us-east-1"), "demo")
    assert aws.leftovers("demo") == [], "the default region has nothing"
    stands("demo", account="123456789012", region="us-east-1")
    assert len(aws.leftovers("demo")) > 5
    (Cluster("demo").terraform / "terraform.tfstate").unlink()
    stands("demo", "terraform.tfstate.backup", account="123456789012", region="us-east-1")
    assert len(aws.leftovers("demo")) > 5, "after a destroy the state is empty"


# Removal.


def test_sweep_removes_this_cluster_and_nothing_else(account: Any) -> None:
    make(account, "demo", nodes=2)
    make(account, "other")
    spare = account.create_volume(AvailabilityZone="eu-west-1a", Size=8)["VolumeId"]
    account.create_tags(Resources=[spare], Tags=tags("demo"))
    before = kinds("other")
    assert sorted({*kinds("demo")}) == sorted({*before, "disk"})
    aws.sweep("demo", keep_data=False, step=Silent())
    assert aws.leftovers("demo") == []
    assert kinds("other") == before
    assert aws.clusters() == ["other"]


def test_what_hvdctl_never_makes_is_told_and_left_alone(account: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "_PAUSE", 0)
    address = account.allocate_address(Domain="vpc")["AllocationId"]
    account.create_tags(Resources=[address], Tags=tags("demo"))
    aws.sweep("demo", keep_data=False, step=Silent())
    assert aws.leftovers("demo") == [f"vpc-elastic-ip {address}"]


def test_what_aws_refuses_to_remove_is_told_once_and_the_rest_goes(
    account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "_PAUSE", 0)
    make(account, "demo")
    (group,) = [name.split()[1] for name in aws.leftovers("demo") if name.startswith("security-group")]
    (subnet,) = [name.split()[1] for name in aws.leftovers("demo") if name.startswith("subnet")]
    account.create_network_interface(SubnetId=subnet, Groups=[group])
    told: list[str] = []
    step = Silent()
    step.note = told.append  # type: ignore[method-assign, assignment]
    aws.sweep("demo", keep_data=False, step=step)
    assert "instance" not in kinds("demo")
    assert set(aws.leftovers("demo")) == {" ".join(line.split(":")[0].split()) for line in told}


def test_placement_groups_are_removed_by_their_name() -> None:
    client = boto3.client("ec2", region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    group = {"GroupName": "hvdctl-demo", "GroupId": "pg-1", "State": "available", "Strategy": "cluster"}
    with Stubber(client) as asked:
        tag = {"Key": "hvdctl.cluster", "Value": "demo", "ResourceId": "pg-1", "ResourceType": "placement-group"}
        asked.add_response("describe_tags", {"Tags": [tag]})
        filters = [{"Name": "tag:hvdctl.cluster", "Values": ["demo"]}]
        asked.add_response("describe_placement_groups", {"PlacementGroups": [group]}, {"Filters": filters})
        found = [(kind, name) for kind, name, _ in ec2.things(client, "demo")]
        asked.add_response("describe_placement_groups", {"PlacementGroups": [group]}, {"GroupIds": ["pg-1"]})
        asked.add_response("delete_placement_group", {}, {"GroupName": "hvdctl-demo"})
        ec2.remove(client, found, lambda _: None, pytest.fail)
        asked.assert_no_pending_responses()
