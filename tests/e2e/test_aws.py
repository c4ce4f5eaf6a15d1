"""The module `aws` applied and destroyed by a real Terraform, on a cloud that moto plays on loopback.

Its instances are no machines: what comes after the nodes is tested with `vm`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from hvdctl import owner, pipeline, plugin
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, PhaseError, UsageError
from hvdctl.progress import Silent
from hvdctl.sites import aws, awserrors
from hvdctl.spec import Spec, parse
from hvdctl.terraform import Outcome, Terraform

pytestmark = pytest.mark.aws

SERVER = Path(__file__).with_name("moto_in_turn.py")
REGION = "eu-west-1"
DEBIAN = "136693071363"
TAGS = {"hvdctl.cluster", "hvdctl.name", "hvdctl.until", "hvdctl.owner", "hvdctl.owner-name", "team"}
# moto has no placement groups.
OPTIONS = {"placement_group": False, "admit": "203.0.113.7", "ttl": "8h"}


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """No images are needed here."""


def image(ident: str, name: str, made: str, architecture: str = "x86_64") -> dict[str, Any]:
    own = {"ami_id": ident, "name": name, "creation_date": f"{made}T00:00:00.000Z", "architecture": architecture}
    fixed = {"state": "available", "public": True, "owner_id": DEBIAN, "image_location": name, "image_type": "machine"}
    root = {"root_device_type": "ebs", "root_device_name": "/dev/xvda", "description": name}
    return own | fixed | root | {"platform": None, "virtualization_type": "hvm", "hypervisor": "xen", "sriov": "simple"}


@contextlib.contextmanager
def moto(folder: Path, **env: str) -> Iterator[str]:
    """A cloud in a process of its own, and its address."""
    images = folder / "images.json"
    images.write_text(
        json.dumps(
            [
                image("ami-0000000000000001", "debian-12-amd64-20250101-1", "2025-01-01"),
                image("ami-0000000000000002", "debian-12-amd64-20250601-1", "2025-06-01"),
                image("ami-0000000000000003", "debian-12-amd64-20250901-1", "2025-09-01", "arm64"),
                image("ami-0000000000000004", "debian-13-amd64-20251001-1", "2025-10-01"),
            ]
        )
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (folder / "moto.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, str(SERVER), "-H", "127.0.0.1", "-p", str(port)],
            env={**os.environ, "MOTO_AMIS_PATH": str(images), **env},
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 60
        while not answers(url):
            assert server.poll() is None, (folder / "moto.log").read_text()
            assert time.monotonic() < deadline, "moto does not start"
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/moto-api/", timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty AWS account, to which the credentials in the environment belong."""
    folder = tmp_path_factory.mktemp("aws")
    with moto(folder) as url, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "TF_"))]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", url)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "none"))
        patch.setenv("HVDCTL_HOME", str(folder / "home"))
        yield url


def spec_of(name: str, nodes: int, **options: object) -> Spec:
    given = {"name": name, "provider": "aws", "nodes": nodes, "image": "x", "options": OPTIONS | options}
    return parse(given, source="the test")


@dataclass
class Machines:
    """A cluster as the pipeline makes it, up to its nodes."""

    name: str
    terraform: Terraform = field(init=False)

    def __post_init__(self) -> None:
        cluster = Cluster(self.name)
        cluster.folder.mkdir(parents=True, exist_ok=True)
        self.terraform = Terraform(cluster.terraform, "aws", cluster.log("terraform"))

    def variables(self, nodes: int, **options: object) -> dict[str, Any]:
        cluster, spec = Cluster(self.name), spec_of(self.name, nodes, **options)
        cluster.store_spec(spec)
        pairs = {name: cluster.host_key(name) for name in (f"node{index}" for index in range(nodes))}
        made = pipeline.variables(
            spec,
            image="x",
            key=(cluster.key().public, str(cluster.key().private)),
            host_keys={name: (pair.public, str(pair.private)) for name, pair in pairs.items()},
        )
        return made | {"labels": owner.this().labels | {"team": "blue"}}

    def apply(self, nodes: int, **options: object) -> list[Node]:
        outcome = self.terraform.apply(self.variables(nodes, **options), lambda _: None)
        made = [Node.read(node) for node in outcome.outputs["nodes"]]
        Cluster(self.name).complete("provision", 0)
        Cluster(self.name).store_nodes(made)
        return made

    def plan(self, nodes: int, **options: object) -> Outcome:
        return self.terraform.plan(self.variables(nodes, **options))


@dataclass
class Life:
    """What was seen of one cluster, from `plan` to `down`."""

    planned: Outcome
    first: list[Node]
    site: dict[str, Any]
    account: dict[str, list[dict[str, Any]]]
    given: list[dict[str, Any]]
    host_keys: list[str]
    files: dict[str, str]
    again: Outcome
    lost: dict[str, str]
    three: list[Node]
    tags_then: set[str | None]
    stranger: list[HvdctlError]
    typo: list[HvdctlError]
    denied: list[HvdctlError]
    one: list[Node]
    running_then: dict[str, str]
    removed: pipeline.Removed
    after: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def life(cloud: str, tmp_path_factory: pytest.TempPathFactory) -> Life:
    cluster = Machines("life")
    try:
        planned = cluster.plan(2, placement_group=True)
    except PhaseError as error:
        if "terraform init failed" in error.message and not in_a_mirror():
            pytest.skip(f"Terraform's AWS provider can't be had: {error.message}")
        raise
    wrong = {"instance_type": "m6i.lagre"}
    typo = refused_by(spec_of("life", 2, **wrong), lambda: cluster.plan(2, **wrong))
    assert aws.leftovers("life") == []
    first = cluster.apply(2)
    account, site = everything(), {"observe": aws.observe("life"), "about": aws.about("life")}
    site |= {"leftovers": aws.leftovers("life"), "clusters": aws.clusters()}
    given = [user_data(node.id) for node in first]
    host_keys = [Cluster("life").host_key(node.name).private.read_text() for node in first]
    keep_books(account)
    again = cluster.plan(2)
    files = {
        str(file.relative_to(Cluster("life").folder)): file.read_text()
        for folder in ("terraform", "logs")
        for file in sorted((Cluster("life").folder / folder).glob("*"))
        if file.is_file()
    }
    ec2().terminate_instances(InstanceIds=[first[1].id])
    lost = aws.observe("life")
    three = cluster.apply(3)
    tags_then = {tag(it, "hvdctl.until") for its in everything().values() for it in its if tag(it, "hvdctl.cluster")}
    with moto(tmp_path_factory.mktemp("strict"), INITIAL_NO_AUTH_ACTION_COUNT="0") as strict:
        asks = (lambda: aws.leftovers("life"), lambda: cluster.plan(3))
        denied = refused_by(spec_of("life", 3), *asks, AWS_ENDPOINT_URL=strict)
    role = "arn:aws:iam::111111111111:role/other"
    other = boto3.client("sts", region_name=REGION).assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    keys = {"AWS_ACCESS_KEY_ID": other["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": other["SecretAccessKey"]}
    keys["AWS_SESSION_TOKEN"] = other["SessionToken"]
    asks = (lambda: aws.leftovers("life"), lambda: cluster.terraform.destroy(lambda _: None))
    stranger = refused_by(spec_of("life", 3), *asks, **keys)
    one = cluster.apply(1)
    running_then = aws.observe("life")
    removed = pipeline.down("life", Silent())
    return Life(
        planned=planned,
        first=first,
        site=site,
        account=account,
        given=given,
        host_keys=host_keys,
        files=files,
        again=again,
        lost=lost,
        three=three,
        tags_then=tags_then,
        stranger=stranger,
        typo=typo,
        denied=denied,
        one=one,
        running_then=running_then,
        removed=removed,
        after=everything(),
    )


def in_a_mirror() -> bool:
    return any(source.endswith("/hashicorp/aws") for _, sources in plugin.found_mirrors() for source in sources)


def ec2() -> Any:
    return boto3.client("ec2", region_name=REGION)


def tag(thing: dict[str, Any], name: str) -> str | None:
    return next((tag["Value"] for tag in thing.get("Tags", []) if tag["Key"] == name), None)


def everything() -> dict[str, list[dict[str, Any]]]:
    """All that the account has, tagged or not, but for what every account has from the start."""
    client = ec2()
    own = [vpc["VpcId"] for vpc in client.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]
    groups = [g for g in client.describe_security_groups()["SecurityGroups"] if g["GroupName"] != "default"]
    tables = client.describe_route_tables()["RouteTables"]
    instances = [i for r in client.describe_instances()["Reservations"] for i in r["Instances"]]
    return {
        "vpcs": [vpc for vpc in client.describe_vpcs()["Vpcs"] if vpc["VpcId"] in own],
        "subnets": [subnet for subnet in client.describe_subnets()["Subnets"] if subnet["VpcId"] in own],
        "gateways": client.describe_internet_gateways()["InternetGateways"],
        "tables": [t for t in tables if t["VpcId"] in own and not any(a["Main"] for a in t["Associations"])],
        "groups": groups,
        "rules": [
            rule
            for rule in client.describe_security_group_rules()["SecurityGroupRules"]
            if rule["GroupId"] in {group["GroupId"] for group in groups}
        ],
        "instances": [instance for instance in instances if instance["State"]["Name"] != "terminated"],
        "disks": client.describe_volumes()["Volumes"],
    }


def user_data(instance: str) -> dict[str, Any]:
    told = ec2().describe_instance_attribute(InstanceId=instance, Attribute="userData")["UserData"]["Value"]
    text = base64.b64decode(told).decode()
    assert text.startswith("#cloud-config\n")
    return dict(yaml.safe_load(text))


def keep_books(account: dict[str, list[dict[str, Any]]]) -> None:
    """moto forgets the groups of an instance that has a public address, and Terraform would set them again."""
    groups = [group["GroupId"] for group in account["groups"]]
    for instance in account["instances"]:
        ec2().modify_instance_attribute(InstanceId=instance["InstanceId"], Groups=groups)


def refused_by(spec: Spec, *asks: Callable[[], object], **env: str) -> list[HvdctlError]:
    """What the site says before anything is made, and what is said by those who would not have asked it."""
    told: list[HvdctlError] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        for ask in (lambda: aws.preflight(spec), *asks):
            with pytest.raises(HvdctlError) as refused:
                ask()
            told.append(refused.value)
    return told


def test_a_plan_tells_what_would_be_made(life: Life) -> None:
    assert set(life.planned.changes) == {"create"}
    kinds = [address.split(".")[0] for address in life.planned.changes["create"]]
    assert kinds.count("aws_instance") == 2
    assert {"aws_vpc", "aws_subnet", "aws_security_group", "aws_internet_gateway", "aws_placement_group"} <= set(kinds)


def test_the_nodes_are_as_the_contract_says(life: Life) -> None:
    assert [(node.name, node.role, node.kind) for node in life.first] == [
        ("node0", "head", "machine"),
        ("node1", "worker", "machine"),
    ]
    by_id = {instance["InstanceId"]: instance for instance in life.account["instances"]}
    for node in life.first:
        assert (node.ssh_user, node.ssh_port, node.ssh_proxy) == ("hvdctl", 22, None)
        assert node.address == by_id[node.id]["PublicIpAddress"]
        assert node.private_address == by_id[node.id]["PrivateIpAddress"]


def test_the_instances_are_as_asked(life: Life) -> None:
    for instance in life.account["instances"]:
        assert instance["InstanceType"] == "m6i.large"
        assert instance["ImageId"] == "ami-0000000000000002", "the newest Debian 12 for x86_64"
        assert instance["MetadataOptions"]["HttpTokens"] == "required"
        assert instance["Placement"]["AvailabilityZone"] == "eu-west-1a"
    assert [(disk["Size"], disk["VolumeType"], disk["Encrypted"]) for disk in life.account["disks"]] == [
        (50, "gp3", True)
    ] * 2


def test_only_ssh_is_open_and_only_to_the_admitted(life: Life) -> None:
    (group,) = life.account["groups"]
    coming_in = [rule for rule in life.account["rules"] if not rule["IsEgress"]]
    from_outside = [rule for rule in coming_in if "ReferencedGroupInfo" not in rule]
    assert [(r["CidrIpv4"], r["IpProtocol"], r["FromPort"], r["ToPort"]) for r in from_outside] == [
        ("203.0.113.7/32", "tcp", 22, 22)
    ]
    inside = [rule for rule in coming_in if "ReferencedGroupInfo" in rule]
    assert [(rule["ReferencedGroupInfo"]["GroupId"], rule["IpProtocol"]) for rule in inside] == [
        (group["GroupId"], "-1")
    ]
    nics = [nic for instance in life.account["instances"] for nic in instance["NetworkInterfaces"]]
    assert [[g["GroupId"] for g in nic["Groups"]] for nic in nics] == [[group["GroupId"]]] * 2


def test_everything_has_its_tags(life: Life) -> None:
    assert all(life.account.values())
    for kind, things in life.account.items():
        for thing in things:
            assert {tag["Key"] for tag in thing.get("Tags", [])} >= TAGS, f"{kind}: {thing}"
            assert tag(thing, "hvdctl.cluster") == "life"
            assert tag(thing, "team") == "blue"
    assert sorted(tag(instance, "hvdctl.name") or "" for instance in life.account["instances"]) == ["node0", "node1"]


def test_the_end_of_its_life_is_told_and_stays(life: Life) -> None:
    (until,) = {tag(thing, "hvdctl.until") for things in life.account.values() for thing in things}
    left = time.mktime(time.strptime(str(until), "%Y-%m-%dT%H:%M:%SZ")) - time.timezone - time.time()
    assert 7.8 * 3600 < left < 8 * 3600
    assert life.tags_then == {until}, "the third node ends with the others"
    assert life.again.changes == {}, "a second look finds nothing to do"


def test_a_machine_gets_its_name_its_host_key_and_who_may_log_in(life: Life) -> None:
    assert [given["hostname"] for given in life.given] == ["node0", "node1"]
    assert [given["ssh_keys"]["ed25519_private"] for given in life.given] == life.host_keys
    for given in life.given:
        (user,) = given["users"]
        assert user["name"] == "hvdctl"
        assert user["ssh_authorized_keys"][0].startswith("ssh-ed25519 ")


def test_no_private_key_is_in_the_state_or_a_log(life: Life) -> None:
    assert "terraform/terraform.tfstate" in life.files
    assert "logs/terraform.log" in life.files
    for name, text in life.files.items():
        assert "PRIVATE KEY" not in text, name


def test_the_site_tells_what_stands(life: Life) -> None:
    assert life.site["observe"] == {"node0": "running", "node1": "running"}
    assert life.site["about"].startswith("m6i.large in eu-west-1a, until 20")
    assert life.site["clusters"] == ["life"]
    kinds = [thing.split()[0] for thing in life.site["leftovers"]]
    assert sorted(kinds) == sorted(
        ["instance", "instance", "disk", "disk", "security-group", "subnet", "route-table", "internet-gateway", "vpc"]
    )


def test_a_lost_node_is_made_anew_and_a_third_beside_it(life: Life) -> None:
    assert life.lost == {"node0": "running", "node1": "terminated"}
    assert [node.name for node in life.three] == ["node0", "node1", "node2"]
    assert life.three[0].id == life.first[0].id, "the head is left alone"
    assert life.three[1].id != life.first[1].id


def test_scaling_down_keeps_the_head(life: Life) -> None:
    assert [node.id for node in life.one] == [life.first[0].id]
    assert {name: state for name, state in life.running_then.items() if state == "running"} == {"node0": "running"}


def test_credentials_of_another_account_are_refused(life: Life) -> None:
    """They would see nothing, and `down` would say that nothing is left."""
    preflight, leftovers, destroy = life.stranger
    for refused in (preflight, leftovers):
        assert isinstance(refused, UsageError)
        assert "'life' stands in the AWS account 123456789012; the credentials are of 111111111111" in refused.message
    assert "AWS account ID not allowed: 111111111111" in destroy.message
    assert "another AWS account" in awserrors.explain(destroy.message)


def test_bad_credentials_are_told(life: Life) -> None:
    preflight, leftovers, plan = life.denied
    for refused in (preflight, leftovers):
        assert "AWS refused GetCallerIdentity" in refused.message
        assert "AWS does not take these credentials" in refused.hint
    assert "AWS does not take these credentials" in awserrors.explain(plan.message), plan.message


def test_an_unknown_type_is_told_before_anything_is_made(life: Life) -> None:
    preflight, plan = life.typo
    assert isinstance(preflight, UsageError)
    assert "options.instance_type: eu-west-1 has no 'm6i.lagre'" in preflight.message
    assert "instance_type: eu-west-1 has no m6i.lagre; choose another type or region" in plan.message


def test_down_leaves_nothing(life: Life) -> None:
    assert (life.removed.left, life.removed.kept) == ([], [])
    assert {kind: things for kind, things in life.after.items() if things} == {}
    assert not Cluster("life").exists


def test_sweep_removes_by_tag_what_terraform_has_forgotten(life: Life) -> None:
    lost = Machines("lost")
    lost.apply(1, ttl="none", spot=True)
    assert aws.about("lost") == "m6i.large in eu-west-1a, spot"
    bystander = ec2().create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    for file in Cluster("lost").terraform.glob("terraform.tfstate*"):
        file.unlink()
    assert aws.clusters() == ["lost"]
    aws.sweep("lost", keep_data=False, step=Silent())
    assert aws.leftovers("lost") == []
    left = {kind: [thing.get("VpcId") for thing in things] for kind, things in everything().items() if things}
    assert left == {"vpcs": [bystander]}
    ec2().delete_vpc(VpcId=bystander)
