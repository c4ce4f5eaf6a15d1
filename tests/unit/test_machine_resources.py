"""hvd_switch and hvd_virtual_machine: what is made, seen, started again and ended."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pycdlib
import pytest
from fake_guests import NETWORK, Machine
from hvdctl import owner, process, qemu
from hvdctl.cluster import Cluster, write
from hvdctl.tfprovider.machine import HvdSwitch, HvdVirtualMachine, mac, seed
from hvdctl.tfprovider.provider import HvdProvider
from test_tfprovider import Caller
from tf.iface import PlanContext
from tf.types import Unknown
from tf.utils import Diagnostics


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


def disk(planned: dict[str, Any]) -> Path:
    return qemu.home(planned["cluster"]) / str(planned["name"]) / "disk.qcow2"


def instance(planned: dict[str, Any]) -> str:
    """What cloud-init in the guest takes itself for."""
    iso, read = pycdlib.PyCdlib(), io.BytesIO()
    iso.open(str(disk(planned).with_name("seed.iso")))
    iso.get_file_from_iso_fp(read, rr_path="/meta-data")
    iso.close()
    found: str = json.loads(read.getvalue())["instance-id"]
    return found


def test_one_that_ended_is_started_again_with_its_own_disk(here: Machine, planned: dict[str, Any]) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    made, first = caller.create(planned), instance(planned)
    disk(planned).write_text("the user's data")
    here.running.clear()
    assert caller.read(made) is None
    again = caller.create(planned)
    assert disk(planned).read_text() == "the user's data"
    assert again["id"] != made["id"], "it is configured and verified again"
    assert instance(planned) == first, "first-boot work is not repeated"
    assert caller.read(again) == again
    assert caller.read(made) is None, "another machine has its place"


def test_one_that_lost_its_switch_is_started_again_with_its_own_disk(
    here: Machine, planned: dict[str, Any], switch: dict[str, Any]
) -> None:
    switches, caller = Caller(HvdSwitch(HvdProvider())), Caller(HvdVirtualMachine(HvdProvider()))
    made = caller.create(planned)
    disk(planned).write_text("the user's data")
    here.switches.clear()
    assert (switches.read(switch), caller.read(made)) == (None, None)
    assert here.running, "it runs, with nobody to talk to"
    new = switches.create(NETWORK)
    again = caller.create(planned | {"switch": new["id"], "socket": new["socket"]})
    assert disk(planned).read_text() == "the user's data"
    assert len(here.running) == 1
    assert caller.read(again) == again


def test_a_switch_without_its_socket_is_dead(here: Machine, planned: dict[str, Any], switch: dict[str, Any]) -> None:
    made = Caller(HvdVirtualMachine(HvdProvider())).create(planned)
    (Path(switch["socket"]) / "ctl").unlink()
    assert Caller(HvdSwitch(HvdProvider())).read(switch) is None
    assert Caller(HvdVirtualMachine(HvdProvider())).read(made) is None
    Caller(HvdSwitch(HvdProvider())).create(NETWORK)
    assert here.running == {}, "also one that is no part of the cluster any more"
    assert len(here.switches) == 1


@pytest.mark.parametrize("changes", [{"disk": 40 * 2**30}, {"private_address": "10.9.0.2/16"}])
def test_a_disk_that_was_made_with_something_else_is_neither_taken_nor_lost(
    here: Machine, planned: dict[str, Any], changes: dict[str, Any]
) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    caller.create(planned)
    disk(planned).write_text("old")
    here.running.clear()
    assert caller.create(planned | changes) is None
    assert f"its disk was made with another {next(iter(changes))}; `hvdctl up` without that change" in caller.errors[0]
    assert disk(planned).read_text() == "old"


def test_a_half_made_disk_is_not_taken(here: Machine, planned: dict[str, Any]) -> None:
    disk(planned).parent.mkdir(parents=True)
    disk(planned).write_text("half")
    Caller(HvdVirtualMachine(HvdProvider())).create(planned)
    assert disk(planned).read_text() == "empty"


def test_a_new_image_is_for_new_machines(here: Machine, planned: dict[str, Any], image: Path) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    caller.create(planned)
    disk(planned).write_text("the user's data")
    here.running.clear()
    new = image.with_name("new image")
    shutil.copytree(image, new, ignore=shutil.ignore_patterns("claims"))
    again = caller.create(planned | {"image": str(new)})
    assert again["image"] == str(new), "Terraform gets what it planned"
    assert here.started[-1].image.folder == image, "the disk is based on the old one"
    assert disk(planned).read_text() == "the user's data"
    assert qemu.in_use(qemu.Image(image))
    assert not qemu.in_use(qemu.Image(new))
    caller.create(planned | {"image": str(new), "name": "node2"})
    assert here.started[-1].image.folder == new


@pytest.mark.parametrize("lost", ["gone", "another"])
def test_a_disk_is_not_started_on_another_image_than_its_own(
    here: Machine, planned: dict[str, Any], image: Path, lost: str
) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    caller.create(planned)
    disk(planned).write_text("the user's data")
    here.running.clear()
    (image / "disk.raw").unlink()
    if lost == "another":
        (image / "disk.raw").write_text("built once more")
    assert caller.create(planned) is None
    assert "which is gone or is another one now" in caller.errors[0]
    assert disk(planned).read_text() == "the user's data"


def test_more_memory_is_a_start_with_the_same_disk(
    here: Machine, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = HvdVirtualMachine(HvdProvider())
    caller = Caller(resource)
    made = caller.create(planned)
    disk(planned).write_text("the user's data")
    wanted = made | {"memory": 4 * 2**30, "cpus": 3, "internet": True}
    expected = resource.plan(
        PlanContext(Diagnostics(), "x", changed_fields={"memory", "cpus", "internet"}), made, wanted
    )
    assert expected["id"] is Unknown, "it is configured and verified again"
    asked: list[list[str]] = []
    monkeypatch.setattr(process, "gather", lambda commands, timeout: asked.extend(commands))
    write(Cluster("demo").ssh_config, "")
    changed = caller.update(made, expected)
    assert [words[-3:] for words in asked] == [["node1.machine", "--", "sudo sync"]], "before its end"
    assert changed["id"] not in (made["id"], Unknown)
    assert disk(planned).read_text() == "the user's data"
    assert (here.started[-1].memory, here.started[-1].cpus, here.started[-1].internet) == (4 * 2**30, 3, True)
    assert len(here.running) == 1
    assert caller.read(changed) == changed
    assert resource.plan(PlanContext(Diagnostics(), "x", changed_fields=set()), made, made) == made


def test_a_machine_that_gets_its_owners_mark_goes_on_running(here: Machine, planned: dict[str, Any]) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    made = caller.create(planned)
    started = len(here.started)
    marked = {**made, "labels": owner.this().labels}
    assert caller.update(made, marked) == marked
    assert len(here.started) == started


def test_only_what_a_disk_is_made_with_makes_a_machine_anew() -> None:
    replacing = {one.name for one in HvdVirtualMachine.get_schema().attributes if one.requires_replace}
    assert replacing == {"cluster", "name", "image", "disk", "private_address", "user_data"}


def test_one_killed_before_its_port_was_told_is_started_again(
    here: Machine, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(HvdVirtualMachine(HvdProvider()))
    made = caller.create(planned)
    disk(planned).write_text("the user's data")
    here.running.clear()

    def killed(guest: qemu.Guest, acceleration: str) -> int:
        here.start(guest, acceleration)
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(qemu, "start", killed)
        caller.create(planned)
    assert here.running
    assert caller.read(made) is None, "nobody knows its port"
    assert caller.create(planned)["ssh_port"]
    assert disk(planned).read_text() == "the user's data"


def test_what_is_written_down_holds_no_secret(here: Machine, planned: dict[str, Any]) -> None:
    Caller(HvdVirtualMachine(HvdProvider())).create(planned)
    stored = disk(planned).with_name("machine.json").read_text()
    assert "cloud-config" not in stored
    assert "PRIVATE" not in stored


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
    told = json.loads(documents["meta-data"])
    assert (told["instance-id"], told["dsmode"]) == ("i-1", "local")


def test_hardware_addresses_differ_by_network_and_node() -> None:
    found = {mac({"name": f"node{number}"}, network) for number in range(512) for network in (1, 2)}
    assert len(found) == 1024


def test_a_switch_that_is_not_the_same_is_gone(here: Machine) -> None:
    caller = Caller(HvdSwitch(HvdProvider()))
    made = caller.create(NETWORK)
    assert caller.read(made) == made
    assert caller.import_("hvdctl-demo-net")["socket"] == made["socket"]
    here.switches.clear()
    assert caller.read(made) is None
    again = caller.create(NETWORK)
    assert again["id"] != made["id"], "its machines are started again"
    caller.delete(again)
    assert not Path(made["socket"]).exists()
