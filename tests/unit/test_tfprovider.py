"""The provider's resources through the real Docker SDK, against a small engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import engine as engine_module
from hvdctl import owner
from hvdctl.tfprovider import link
from hvdctl.tfprovider.network import HvdNetwork
from hvdctl.tfprovider.node import HvdContainerNode
from hvdctl.tfprovider.provider import HvdProvider
from hvdctl.tfprovider.volume import HvdVolume
from support import IMAGE
from tf.iface import CreateContext, DeleteContext, ImportContext, ReadContext, UpdateContext
from tf.utils import Diagnostics

LABELS = {"hvdctl.cluster": "demo", "hvdctl.name": "node0"}


class Caller:
    """Calls a resource as Terraform does, and keeps what it complained of."""

    def __init__(self, resource: Any) -> None:
        self.resource = resource
        self.errors: list[str] = []

    def _with(self, kind: Any, method: str, *arguments: Any) -> Any:
        context = kind(Diagnostics(), self.resource.get_name())
        outcome = getattr(self.resource, method)(context, *arguments)
        self.errors = [found.summary for found in context.diagnostics.diagnostics]
        return outcome

    def create(self, planned: Any) -> Any:
        return self._with(CreateContext, "create", planned)

    def read(self, current: Any) -> Any:
        return self._with(ReadContext, "read", current)

    def update(self, current: Any, planned: Any) -> Any:
        return self._with(UpdateContext, "update", current, planned)

    def delete(self, current: Any) -> Any:
        return self._with(DeleteContext, "delete", current)

    def import_(self, identity: str) -> Any:
        return self._with(ImportContext, "import_", identity)


@pytest.fixture
def provider(engine: FakeEngine) -> HvdProvider:
    return HvdProvider()


def thing(name: str) -> dict[str, Any]:
    return {"cluster": "demo", "name": name, "labels": {}, "id": None}


@pytest.fixture
def network(provider: HvdProvider) -> dict[str, Any]:
    made: dict[str, Any] = Caller(HvdNetwork(provider)).create(thing("net"))
    return made


@pytest.fixture
def planned(network: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "host_key").write_text("PRIVATE HOST KEY\n")
    (tmp_path / "user_key").write_text("PRIVATE USER KEY\n")
    return {
        **thing("node0"),
        "image": IMAGE,
        "network": network["id"],
        "share": "hvdctl-demo-share",
        "cpus": None,
        "memory": None,
        "gpus": 0,
        "rate": None,
        "ssh_public_key": "ssh-ed25519 USER",
        "ssh_host_public_key": "ssh-ed25519 HOST",
        "ssh_private_key": str(tmp_path / "user_key"),
        "ssh_host_private_key": str(tmp_path / "host_key"),
        "address": None,
        "started": None,
    }


@pytest.fixture
def node(provider: HvdProvider) -> Caller:
    return Caller(HvdContainerNode(provider))


def test_every_attribute_and_resource_is_described(provider: HvdProvider) -> None:
    assert sorted(kind.get_name() for kind in provider.get_resources()) == [
        "container_node",
        "gpulab_job",
        "network",
        "switch",
        "virtual_machine",
        "volume",
    ]
    for kind in provider.get_resources():
        for attribute in kind.get_schema().attributes:
            assert attribute.description, f"{kind.get_name()}.{attribute.name}"


@pytest.mark.parametrize(("kind", "things"), [(HvdNetwork, "networks"), (HvdVolume, "volumes")])
def test_a_network_and_a_volume_live_and_die(
    provider: HvdProvider, engine: FakeEngine, kind: type[Any], things: str
) -> None:
    caller = Caller(kind(provider))
    made = caller.create(thing("x"))
    assert engine.names(things) == ["hvdctl-demo-x"]
    (stands,) = getattr(engine, things).values()
    assert stands["Labels"] == {"hvdctl.cluster": "demo", "hvdctl.name": "x"}
    assert caller.read(made) == made
    assert caller.create(thing("x"))["id"] == made["id"], "one that a killed run left is taken up"
    assert len(getattr(engine, things)) == 1
    assert caller.import_("hvdctl-demo-x") == made
    caller.delete(made)
    assert engine.names(things) == []
    assert caller.read(made) is None
    caller.delete(made)
    assert caller.errors == [], "what is gone is removed"


@pytest.mark.parametrize(("kind", "things"), [(HvdNetwork, "networks"), (HvdVolume, "volumes")])
def test_a_name_that_belongs_to_another_is_refused(
    provider: HvdProvider, engine: FakeEngine, kind: type[Any], things: str
) -> None:
    getattr(engine, things)["other"] = {"Id": "other", "Name": "hvdctl-demo-x", "Labels": {}}
    if things == "volumes":
        engine.volumes = {"hvdctl-demo-x": engine.volumes["other"]}
    caller = Caller(kind(provider))
    assert caller.create(thing("x")) is None
    assert "this cluster did not make; remove or rename it" in caller.errors[0]
    assert len(getattr(engine, things)) == 1


def test_a_network_is_not_confused_with_one_whose_name_holds_its_own(
    provider: HvdProvider, engine: FakeEngine, network: dict[str, Any]
) -> None:
    longer = Caller(HvdNetwork(provider)).create({**thing("net"), "cluster": "demo2", "name": "net"})
    other = Caller(HvdNetwork(provider)).create({**thing("net"), "name": "ne"})
    assert len({network["id"], longer["id"], other["id"]}) == 3


def test_a_node_is_unprivileged_labelled_and_reachable(
    node: Caller, engine: FakeEngine, planned: dict[str, Any]
) -> None:
    made = node.create(planned)
    assert node.errors == []
    assert made["address"].startswith("10.99.0.")
    stands = engine.container("hvdctl-demo-node0")
    assert stands["State"]["Status"] == "running"
    assert stands["Config"]["Labels"] == LABELS
    assert stands["Config"]["Hostname"] == "node0"
    assert stands["Config"]["User"] == "1000:1000"
    host = stands["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert not host.get("Privileged")
    assert not host.get("CapAdd")
    assert not host.get("PortBindings"), "nothing listens on the machine's own addresses"
    assert not host.get("PublishAllPorts")


def test_the_keys_reach_the_node_as_files_of_its_user(
    node: Caller, engine: FakeEngine, planned: dict[str, Any]
) -> None:
    made = node.create(planned)
    stands = engine.container("hvdctl-demo-node0")
    assert stands["files"] == {
        "/etc/hvdctl/ssh/ssh_host_ed25519_key": ("PRIVATE HOST KEY\n", "0o600", 1000),
        "/etc/hvdctl/ssh/ssh_host_ed25519_key.pub": ("ssh-ed25519 HOST\n", "0o600", 1000),
        "/etc/hvdctl/ssh/authorized_keys": ("ssh-ed25519 USER\n", "0o600", 1000),
        "/etc/hvdctl/ssh/id_ed25519": ("PRIVATE USER KEY\n", "0o600", 1000),
    }
    assert "PRIVATE" not in str({key: value for key, value in stands.items() if key != "files"})
    assert "PRIVATE" not in str(made)


def test_limits_reach_the_engine(node: Caller, engine: FakeEngine, planned: dict[str, Any]) -> None:
    made = node.create({**planned, "cpus": 1.5, "memory": 2**30, "gpus": 2, "rate": 10**9})
    host = engine.container("hvdctl-demo-node0")["HostConfig"]
    assert (host["CpuQuota"], host["CpuPeriod"]) == (150_000, 100_000)
    assert (host["Memory"], host["MemorySwap"]) == (2**30, 2**30)
    assert host["DeviceRequests"][0]["Count"] == 2
    assert engine.links() == {"hvdctl-demo-node0": "1000000000"}
    assert engine.names("containers") == ["hvdctl-demo-node0"], "the helper that set the link is gone"

    lifted = {**made, "cpus": None, "memory": None, "rate": None}
    assert node.update(made, lifted) == lifted
    assert host["CpuQuota"] == -1
    assert host["Memory"] == 8 * 2**30
    assert engine.links() == {"hvdctl-demo-node0": "none"}


@pytest.mark.parametrize(("share", "kind"), [("hvdctl-demo-share", "volume"), ("/data/mine", "bind")])
def test_the_share_is_a_volume_or_a_folder(
    node: Caller, engine: FakeEngine, planned: dict[str, Any], share: str, kind: str
) -> None:
    node.create({**planned, "share": share})
    (mount,) = engine.container("hvdctl-demo-node0")["HostConfig"]["Mounts"]
    assert (mount["Target"], mount["Source"], mount["Type"]) == ("/shared", share, kind)


@pytest.mark.parametrize("status", ["exited", "dead", "created", "paused"])
def test_a_node_that_does_not_run_is_seen_as_gone(
    node: Caller, engine: FakeEngine, planned: dict[str, Any], status: str
) -> None:
    made = node.create(planned)
    assert node.read(made) == made
    engine.container("hvdctl-demo-node0")["State"]["Status"] = status
    assert node.read(made) is None


def test_a_container_left_by_a_killed_run_is_replaced(
    node: Caller, engine: FakeEngine, planned: dict[str, Any]
) -> None:
    first = node.create(planned)
    second = node.create(planned)
    assert second["id"] != first["id"]
    assert engine.names("containers") == ["hvdctl-demo-node0"]


def test_a_container_of_someone_else_stays(node: Caller, engine: FakeEngine, planned: dict[str, Any]) -> None:
    theirs = node.create(planned)
    engine.container("hvdctl-demo-node0")["Config"]["Labels"] = {}
    assert node.create(planned) is None
    assert node.errors == [
        "can't create container hvdctl-demo-node0: "
        "a container of that name exists that this cluster did not make; remove or rename it"
    ]
    assert theirs["id"] in engine.containers


def helper(engine: FakeEngine, labels: dict[str, str]) -> None:
    client: Any = engine_module.client()
    client.containers.create(IMAGE, name="hvdctl-demo-node0-link", labels=labels)


@pytest.mark.parametrize("labels", [{}, {**LABELS, owner.MARK: "0" * 16}])
def test_a_container_of_someone_else_with_the_name_of_the_helper_stays(
    node: Caller, engine: FakeEngine, planned: dict[str, Any], labels: dict[str, str]
) -> None:
    made = node.create(planned)
    helper(engine, labels)
    for told in (node.create(planned), node.update(made, {**made, "rate": 10**8})):
        assert told in (None, made)
        assert "a container hvdctl-demo-node0-link of that name exists that" in node.errors[0]
    assert engine.names("containers") == ["hvdctl-demo-node0", "hvdctl-demo-node0-link"]


def test_a_helper_that_a_killed_run_left_is_removed_with_its_own_node_only(
    node: Caller, engine: FakeEngine, planned: dict[str, Any]
) -> None:
    made = node.create(planned)
    helper(engine, LABELS)
    node.update(made, {**made, "rate": 10**8})
    assert node.errors == []
    assert engine.names("containers") == ["hvdctl-demo-node0"]
    helper(engine, LABELS)
    engine.container("hvdctl-demo-node0")["Config"]["Labels"] = {}
    assert node.create(planned) is None
    assert engine.names("containers") == ["hvdctl-demo-node0", "hvdctl-demo-node0-link"], "the node is not ours"


def test_a_node_that_ends_at_once_is_told_with_its_last_words_and_removed(
    node: Caller, engine: FakeEngine, planned: dict[str, Any]
) -> None:
    engine.dies_at_start = True
    assert node.create(planned) is None
    assert "the container is exited: sshd: no hostkeys available" in node.errors[0]
    assert engine.containers == {}


def test_a_link_that_can_not_be_set_is_told_and_the_node_removed(
    node: Caller, engine: FakeEngine, planned: dict[str, Any]
) -> None:
    engine.link_error = "tc: no ifb module\n"
    assert node.create({**planned, "rate": 10**9}) is None
    assert "the link can't be set to 1000000000 bit/s: tc: no ifb module" in node.errors[0]
    assert engine.containers == {}


def test_an_image_or_key_that_is_missing_is_one_line(node: Caller, engine: FakeEngine, planned: dict[str, Any]) -> None:
    engine.refuses["POST /containers/create"] = "No such image: test/node:1"
    assert node.create(planned) is None
    what = "can't create container hvdctl-demo-node0"
    assert node.errors == [f"{what}: the Docker engine says: No such image: test/node:1"]
    engine.refuses.clear()
    assert node.create({**planned, "ssh_host_private_key": "/gone"}) is None
    assert node.errors == [f"{what}: No such file or directory: /gone"]
    assert engine.containers == {}


def test_a_full_disk_is_told(node: Caller, engine: FakeEngine, planned: dict[str, Any]) -> None:
    engine.refuses["POST /containers/create"] = "mkdir /var/lib/docker/x: no space left on device"
    node.create(planned)
    assert "the disk is full" in node.errors[0]


def test_an_error_of_the_engine_keeps_what_is_known(node: Caller, engine: FakeEngine, planned: dict[str, Any]) -> None:
    """A stopped engine must not make Terraform forget the nodes."""
    made = node.create(planned)
    engine.refuses["GET /containers"] = "the engine is in trouble"
    assert node.read(made) == made
    assert node.errors
    assert node.delete(made) == made
    assert node.update(made, {**made, "rate": 10**8}) == made
    engine.refuses.clear()
    assert node.delete(made) is None
    assert engine.containers == {}


def test_no_engine_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/gone.sock")
    volume = Caller(HvdVolume(HvdProvider()))
    assert volume.create(thing("share")) is None
    assert f"no Docker engine answers at unix://{tmp_path}/gone.sock" in volume.errors[0]


def test_a_node_is_imported_as_it_stands(
    node: Caller, engine: FakeEngine, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "rate_of", lambda node: 1e9)
    made = node.create({**planned, "cpus": 2, "memory": 2**30, "rate": 10**9})
    found = node.import_("hvdctl-demo-node0")
    assert {key: value for key, value in found.items() if found[key] != made[key]} == {
        "ssh_host_private_key": "",
        "ssh_private_key": "",
    }


def test_what_hvdctl_did_not_make_is_not_imported(
    provider: HvdProvider, engine: FakeEngine, network: dict[str, Any]
) -> None:
    engine.networks["x"] = {"Id": "x", "Name": "theirs", "Labels": {}}
    caller = Caller(HvdNetwork(provider))
    for name in ("theirs", "not-there"):
        assert caller.import_(name) is None
        assert len(caller.errors) == 1
        assert name in caller.errors[0]


def test_a_restarted_node_has_lost_its_link_rate(
    node: Caller, engine: FakeEngine, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node.create({**planned, "rate": 10**9})
    assert node.read(made) == made
    engine.container("hvdctl-demo-node0")["State"]["StartedAt"] = "later"
    assert node.read(made)["rate"] is None
