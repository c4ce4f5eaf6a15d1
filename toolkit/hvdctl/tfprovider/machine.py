"""hvd_switch and hvd_virtual_machine: QEMU guests on this machine, with a network between them."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tf.iface import PlanContext, State
from tf.schema import Attribute, Schema
from tf.types import Bool, Number, String, Unknown

from hvdctl import inventory, kvm, process, qemu, ssh
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError
from hvdctl.tfprovider.resource import EngineResource, common

# The addresses that QEMU's own network gives to guest, host and name server.
_OUTSIDE = {"address": "10.0.2.15/24", "host": "10.0.2.2", "names": "10.0.2.3"}
OUTSIDE, INSIDE = 0x86, 0x87
_STARTS = 3
_SYNC_PATIENCE = 60.0
# What a disk was made with: with something else in place of it, another disk is wanted.
_OF_DISK = ("disk", "private_address")
# What a guest is only started with: it is started again with its own disk.
_OF_START = frozenset({"switch", "socket", "cpus", "memory", "internet"})


class HvdSwitch(EngineResource):
    """The private network of a cluster's virtual machines."""

    kind = "switch"

    @classmethod
    def get_name(cls) -> str:
        return "switch"

    @classmethod
    def get_schema(cls) -> Schema:
        socket = Attribute("socket", String(), computed=True, description="Folder with its socket")
        return Schema(version=1, attributes=[*common(), socket])

    def make(self, planned: State) -> State:
        # One that a killed hvdctl left before Terraform knew of it, or one without its socket. Guests can't be moved to
        # another switch, only be started again.
        drop_switch(planned["cluster"])
        running = qemu.running(planned["cluster"])
        _write_out(planned["cluster"], running)
        for pid in running.values():
            qemu.stop(pid)
        pid, folder = qemu.start_switch(planned["cluster"])
        return {**planned, "id": f"{pid}-{uuid.uuid4().hex[:12]}", "socket": str(folder)}

    def look(self, current: State) -> State | None:
        return current if _works(current["cluster"], current["id"]) else None

    def remove(self, current: State) -> None:
        drop_switch(current["cluster"])
        qemu.drop(Path(current["socket"]))

    def find(self, engine_name: str) -> State | None:
        cluster = engine_name.removeprefix("hvdctl-").removesuffix("-net")
        for pid, folder in qemu.switches(cluster).items():
            return {"cluster": cluster, "name": "net", "labels": None, "id": f"{pid}-imported", "socket": str(folder)}
        return None


class HvdVirtualMachine(EngineResource):
    """A guest with a disk of its own over a common image. It outlives hvdctl; one that ended is started again with its
    disk, under a new id.
    """

    kind = "virtual machine"

    @classmethod
    def get_name(cls) -> str:
        return "virtual_machine"

    @classmethod
    def get_schema(cls) -> Schema:
        text, number = String(), Number()
        return Schema(
            version=1,
            attributes=[
                *common(),
                Attribute("image", text, required=True, requires_replace=True, description="Folder of the image"),
                Attribute("switch", text, required=True, description="Id of the switch"),
                Attribute("socket", text, required=True, description="Folder of its socket"),
                Attribute("cpus", number, required=True, description="CPUs"),
                Attribute("memory", number, required=True, description="Bytes"),
                Attribute("disk", number, required=True, requires_replace=True, description="Bytes"),
                Attribute("private_address", text, required=True, requires_replace=True, description="Address/prefix"),
                Attribute("internet", Bool(), required=True, description="Reaches outside"),
                Attribute(
                    "user_data",
                    text,
                    required=True,
                    requires_replace=True,
                    description='For cloud-init; a text "@file:PATH" in it stands for what is in that file',
                ),
                Attribute("acceleration", text, computed=True, description="kvm or tcg"),
                Attribute("ssh_port", number, computed=True, description="Port of its sshd on the loopback"),
            ],
        )

    def make(self, planned: State) -> State:
        return _boot(planned, _own_disk(planned) or _new_disk(planned))

    def look(self, current: State) -> State | None:
        """The guest as it stands; None where it ended, or lost its switch for good, so that it is started again."""
        cluster = current["cluster"]
        if current["name"] not in qemu.running(cluster) or not _works(cluster, current["switch"]):
            return None
        return current if qemu.stored(_folder(current)).get("id") == current["id"] else None

    def plan(self, ctx: PlanContext, current: State | None, planned: State) -> State:
        if ctx.changed_fields & _OF_START:
            return {**planned, "id": Unknown, "acceleration": Unknown, "ssh_port": Unknown}
        return planned

    def change(self, current: State, planned: State) -> State:
        if all(current[key] == planned[key] for key in _OF_START):
            return {**planned, **{key: current[key] for key in ("id", "acceleration", "ssh_port")}}  # its labels alone
        disk = _own_disk(planned)
        if disk is None:
            raise HvdctlError(f"{_folder(planned)} does not hold what was written down of its disk")
        _write_out(current["cluster"], [current["name"]])
        return _boot(planned, disk)

    def remove(self, current: State) -> None:
        end(current["cluster"], current["name"])

    def find(self, engine_name: str) -> State | None:
        cluster, _, name = engine_name.removeprefix("hvdctl-").rpartition("-")
        known = qemu.stored(qemu.home(cluster) / name)
        if name not in qemu.running(cluster) or not known:
            return None
        told = {attribute.name: known.get(attribute.name) for attribute in self.get_schema().attributes}
        return {**told, "user_data": ""}


def seed(planned: State, identity: str) -> dict[str, str]:
    """The documents of the NoCloud seed."""
    network = {
        "version": 2,
        "ethernets": {
            "outside": {
                "match": {"macaddress": mac(planned, OUTSIDE)},
                "addresses": [_OUTSIDE["address"]],
                "gateway4": _OUTSIDE["host"],
                "nameservers": {"addresses": [_OUTSIDE["names"]]},
            },
            "inside": {
                "match": {"macaddress": mac(planned, INSIDE)},
                "addresses": [planned["private_address"]],
            },
        },
    }
    return {
        # All of it before the network comes up: starting cloud-init once more takes half a minute where it is emulated.
        "meta-data": json.dumps({"instance-id": identity, "local-hostname": planned["name"], "dsmode": "local"}),
        "user-data": _filled(planned["user_data"]),
        "network-config": json.dumps(network),
    }


def mac(planned: State, network: int) -> str:
    """A hardware address after the network and the node's number."""
    number = int(re.sub(r"\D", "", planned["name"]) or 0)
    return f"52:54:00:{network:02x}:{number >> 8:02x}:{number & 255:02x}"


def end(cluster: str, name: str) -> None:
    """End a guest and remove its disk, whatever is there of them."""
    _stop(cluster, name)
    qemu.drop(qemu.home(cluster) / name)


def drop_switch(cluster: str) -> None:
    """End the switch of a cluster, and remove its socket where it is and where a new one would get it."""
    folders = {*qemu.switch_folders(cluster), qemu.switch_folder(cluster)}
    for pid in qemu.switches(cluster):
        qemu.stop(pid)
    for folder in folders:
        qemu.drop(folder)
        folder.with_suffix(".pid").unlink(missing_ok=True)


def _works(cluster: str, switch: str) -> bool:
    """Whether the switch of this id runs, and can be reached."""
    folder = qemu.switches(cluster).get(int(switch.partition("-")[0]))
    return folder is not None and qemu.open_to_guests(folder)


def _own_disk(planned: State) -> dict[str, Any] | None:
    """What the guest's disk was made with; None where there is none. One that does not fit is not ours to lose here."""
    folder = _folder(planned)
    known = qemu.stored(folder)
    if not (folder / qemu.DISK).exists() or not known:
        return None
    if other := [key for key in _OF_DISK if known.get(key) != planned[key]]:
        raise HvdctlError(
            f"it ended, and its disk was made with another {' and '.join(other)}; `hvdctl up` without that change "
            "brings it back, `hvdctl down` gives it up"
        )
    image = qemu.Image(Path(known["image"]))
    if not image.whole or image.stamp != known["image_stamp"]:
        raise HvdctlError(
            f"its disk {folder / qemu.DISK} is based on the image {image.folder}, which is gone or is another one now; "
            "put it back, or give up the disk with `hvdctl down`"
        )
    return {key: known[key] for key in ("image", "image_stamp", "instance")}


def _new_disk(planned: State) -> dict[str, Any]:
    image = qemu.Image(Path(planned["image"]))
    if not image.whole:
        raise HvdctlError(f"there is no machine image in {image.folder}; `hvdctl image build vm` makes it")
    end(planned["cluster"], planned["name"])
    folder = _folder(planned)
    folder.mkdir(mode=0o700, parents=True)
    qemu.claim(image, folder)
    qemu.overlay(image, folder / qemu.DISK, int(planned["disk"]))
    return {"image": str(image.folder), "image_stamp": image.stamp, "instance": uuid.uuid4().hex}


def _boot(planned: State, disk: dict[str, Any]) -> State:
    """Start the guest with this disk, ending it first where it runs; a new id tells that it has to be looked after."""
    folder, image = _folder(planned), qemu.Image(Path(disk["image"]))
    _stop(planned["cluster"], planned["name"])
    # Its instance stays that of the disk: cloud-init does not begin again.
    qemu.seed(folder / "seed.iso", seed(planned, disk["instance"]))
    chosen, why = kvm.acceleration(image)
    state = {**planned, "id": uuid.uuid4().hex, "acceleration": chosen}
    facts = {key: value for key, value in state.items() if key != "user_data"}
    facts |= {**disk, "why": why, "ssh_port": None}
    # Before it starts: a guest whose port nobody was told has another id than the one that is known.
    qemu.store(folder, facts)
    port = _start(planned, folder, image, chosen)
    qemu.store(folder, facts | {"ssh_port": port})
    return {**state, "ssh_port": port}


def _write_out(cluster: str, names: Iterable[str]) -> None:
    """Have guests write to their disks what they have not written yet, where they can be asked."""
    known = Cluster(cluster)
    if known.ssh_config.exists():
        hosts = (inventory.ssh_host(name, "machine") for name in names)
        process.gather([ssh.argv(known, host, ["sudo", "sync"]) for host in hosts], timeout=_SYNC_PATIENCE)


def _stop(cluster: str, name: str) -> None:
    pid = qemu.running(cluster).get(name)
    if pid is not None:
        qemu.stop(pid)


def _start(planned: State, folder: Path, image: qemu.Image, acceleration: str) -> int:
    """The port that the guest's sshd has on the loopback; another one where it was taken meanwhile."""
    for left in reversed(range(_STARTS)):
        guest = qemu.Guest(
            cluster=planned["cluster"],
            name=planned["name"],
            folder=folder,
            image=image,
            cpus=math.ceil(planned["cpus"]),
            memory=int(planned["memory"]),
            ssh_port=qemu.free_port(),
            switch=Path(planned["socket"]),
            macs=(mac(planned, OUTSIDE), mac(planned, INSIDE)),
            internet=planned["internet"],
        )
        try:
            qemu.start(guest, acceleration)
            break
        except HvdctlError as error:
            if not left or "host forwarding" not in error.message:
                raise
    return guest.ssh_port


def _filled(user_data: str) -> str:
    """The private host key goes from its file to the guest, and past Terraform's state."""
    return re.sub(
        r'"@file:([^"]+)"', lambda found: json.dumps(Path(json.loads(f'"{found[1]}"')).read_text()), user_data
    )


def _folder(state: State) -> Path:
    return qemu.home(state["cluster"]) / str(state["name"])
