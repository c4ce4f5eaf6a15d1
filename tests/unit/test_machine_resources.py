"""hvd_switch and hvd_virtual_machine with a QEMU and a switch that only stand there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hvdctl import qemu
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError
from hvdctl.progress import Silent
from hvdctl.sites import vm
from hvdctl.spec import Spec
from hvdctl.tfprovider.machine import HvdSwitch, HvdVirtualMachine, mac, seed
from hvdctl.tfprovider.provider import HvdProvider
from test_tfprovider import Caller


class Machine:
    """This machine's guests and switches: started, found and ended without a process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: dict[tuple[str, str], int] = {}
        self.switches: dict[Path, int] = {}
        self.refuse: list[str] = []
        self.next = 100
        monkeypatch.setattr(qemu, "start", self.start)
        monkeypatch.setattr(qemu, "stop", self.stop)
        monkeypatch.setattr(qemu, "guests", lambda: dict(self.running))
        monkeypatch.setattr(qemu, "start_switch", self.start_switch)
        monkeypatch.setattr(qemu, "switch", self.switches.get)
        monkeypatch.setattr(qemu, "overlay", lambda image, disk, size: disk.write_text(str(size)))
        monkeypatch.setattr(qemu, "acceleration", lambda image: ("tcg", "there is no /dev/kvm"))
        monkeypatch.setattr(qemu, "version", lambda: "7.2")

    def start(self, guest: qemu.Guest, acceleration: str) -> int:
        if self.refuse:
            raise HvdctlError(self.refuse.pop(0))
        self.next += 1
        self.running[guest.cluster, guest.name] = self.next
        return self.next

    def start_switch(self, folder: Path) -> int:
        self.next += 1
        folder.mkdir(parents=True)
        self.switches[folder] = self.next
        return self.next

    def stop(self, pid: int, patience: float = 10) -> None:
        self.running = {key: value for key, value in self.running.items() if value != pid}
        for folder in [folder for folder, value in self.switches.items() if value == pid]:
            del self.switches[folder]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return Machine(monkeypatch)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    folder.mkdir()
    for name in ("disk.raw", "vmlinuz", "initrd"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def planned(tmp_path: Path, image: Path) -> dict[str, Any]:
    key = tmp_path / "host key"
    key.write_text("-----BEGIN\nPRIVATE")
    return {
        "cluster": "demo",
        "name": "node1",
        "labels": None,
        "image": str(image),
        "switch": "s",
        "socket": str(tmp_path / "run" / "demo.vde"),
        "cpus": 1.5,
        "memory": 2 * 2**30,
        "disk": 20 * 2**30,
        "private_address": "10.87.0.2/16",
        "internet": False,
        "user_data": f'#cloud-config\nssh_keys: {{"ed25519_private": "@file:{key}"}}\n',
    }


def test_a_machine_lives_and_dies(here: Machine, planned: dict[str, Any]) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    made = caller.create(planned)
    folder = Cluster("demo").folder / "vm" / "node1"
    assert made["acceleration"] == "tcg"
    assert made["ssh_port"] > 1024
    assert sorted(file.name for file in folder.iterdir()) == ["disk.qcow2", "machine.json", "seed.iso"]
    assert caller.read(made) == made
    assert caller.import_("hvdctl-demo-node1") == made | {"user_data": ""}
    caller.delete(made)
    assert here.running == {}
    assert not folder.exists()
    caller.delete(made)


def test_one_that_ended_is_gone_and_made_anew(here: Machine, planned: dict[str, Any]) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    made = caller.create(planned)
    here.running.clear()
    assert caller.read(made) is None
    again = caller.create(planned)
    assert again["id"] != made["id"]
    assert caller.read(made) is None, "another machine has its place"


def test_a_port_that_was_taken_meanwhile_is_no_end(here: Machine, planned: dict[str, Any]) -> None:
    here.refuse = ["QEMU does not start: Could not set up host forwarding rule"] * 2
    assert Caller(HvdVirtualMachine(HvdProvider())).create(planned)["ssh_port"]
    here.refuse = ["QEMU does not start: out of memory"]
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    assert caller.create(planned | {"name": "node2"}) is None
    assert caller.errors == ["can't create virtual machine hvdctl-demo-node2: QEMU does not start: out of memory"]


def test_no_image_is_told(here: Machine, planned: dict[str, Any], tmp_path: Path) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    caller.create(planned | {"image": str(tmp_path)})
    assert "`hvdctl image build vm` makes it" in caller.errors[0]


def test_the_private_host_key_goes_from_its_file_to_the_seed_alone(planned: dict[str, Any]) -> None:
    documents = seed(planned, "i-1")
    assert json.dumps("-----BEGIN\nPRIVATE") in documents["user-data"]
    assert "PRIVATE" not in planned["user_data"]
    network = json.loads(documents["network-config"])["ethernets"]
    assert network["inside"]["addresses"] == ["10.87.0.2/16"]
    assert network["inside"]["match"] != network["outside"]["match"]
    assert json.loads(documents["meta-data"])["instance-id"] == "i-1"


def test_hardware_addresses_differ_by_network_and_node() -> None:
    found = {mac({"name": f"node{number}"}, network) for number in range(512) for network in (1, 2)}
    assert len(found) == 1024


def test_a_switch_that_is_not_the_same_is_gone(here: Machine) -> None:
    caller = Caller(HvdSwitch(HvdProvider()))
    asked = {"cluster": "demo", "name": "net", "labels": None}
    made = caller.create(asked)
    assert caller.read(made) == made
    assert caller.import_("hvdctl-demo-net")["socket"] == made["socket"]
    here.switches.clear()
    assert caller.read(made) is None
    again = caller.create(asked)
    assert again["id"] != made["id"], "its machines are made anew with it"
    caller.delete(again)
    assert not Path(made["socket"]).exists()


def test_what_is_left_is_named_and_swept(here: Machine, planned: dict[str, Any]) -> None:
    switch = Caller(HvdSwitch(HvdProvider())).create({"cluster": "demo", "name": "net", "labels": None})
    Caller(HvdVirtualMachine(HvdProvider())).create(planned)
    assert vm.observe("demo") == {"node1": "running"}
    assert vm.clusters() == ["demo"]
    pid = here.running["demo", "node1"]
    assert vm.leftovers("demo") == [
        f"process hvdctl-demo-node1 ({pid})",
        "disk hvdctl-demo-node1",
        f"switch {switch['socket']}",
    ]
    # Half of it: the process is gone, its disk is not.
    here.running.clear()
    assert "disk hvdctl-demo-node1" in vm.leftovers("demo")
    vm.sweep("demo", keep_data=False, step=Silent())
    assert vm.leftovers("demo") == []


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"gpus": 1}, "gpus: 1 asked, but virtual machines have none"),
        ({"memory": 2**29}, "memory: a machine needs 1g or more"),
        ({"memory": 2**50}, "don't fit"),
        ({"options": {"image": "/no/such"}}, "/no/such has no disk.raw"),
        ({"nodes": 20, "options": {"subnet": "10.9.0.0/28"}}, "has 14 addresses for 20 nodes"),
    ],
)
def test_what_this_machine_can_not_give_is_refused(
    here: Machine, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], told: str
) -> None:
    monkeypatch.setattr("hvdctl.process.tool", lambda name: name)
    with pytest.raises(HvdctlError) as refused:
        vm.preflight(Spec(name="demo", provider="vm", **keys))
    assert told in refused.value.message


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"disk": "5g"}, "options.disk: a machine's disk has 20g or more"),
        ({"subnet": "10.0.2.0/24"}, "options.subnet: '10.0.2.0/24' is not a free range"),
        ({"subnet": "here"}, "options.subnet: 'here' is not a free range"),
        ({"delay": "2 minutes"}, "options.delay: '2 minutes' is not a delay; write 500us, 2ms, 1s or none"),
        ({"intrenet": False}, "unknown key 'options.intrenet'; did you mean 'internet'?"),
        ({"internet": "no"}, "options.internet"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], told: str) -> None:
    from hvdctl.errors import UsageError
    from hvdctl.spec import parse

    with pytest.raises(UsageError) as refused:
        parse({"provider": "vm", "options": options}, source="hvdctl.yml")
    assert told in refused.value.message
