"""hvd_switch and hvd_virtual_machine: QEMU guests on this machine, with a network between them."""

from __future__ import annotations

import json
import math
import re
import uuid
from pathlib import Path
from typing import Any

from tf.iface import State
from tf.schema import Attribute, Schema
from tf.types import Bool, Number, String

from hvdctl import qemu
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError
from hvdctl.tfprovider.resource import EngineResource, common

# The addresses that QEMU's own network gives to guest, host and name server.
_OUTSIDE = {"address": "10.0.2.15/24", "host": "10.0.2.2", "names": "10.0.2.3"}
OUTSIDE, INSIDE = 0x86, 0x87
_STORED = "machine.json"
_STARTS = 3


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
        folder = qemu.switch_folder(planned["cluster"])
        # One that a killed hvdctl left before Terraform knew of it has no guests.
        self.remove({**planned, "socket": str(folder)})
        pid = qemu.start_switch(folder)
        return {**planned, "id": f"{pid}-{uuid.uuid4().hex[:12]}", "socket": str(folder)}

    def look(self, current: State) -> State | None:
        pid = qemu.switch(Path(current["socket"]))
        return current if pid is not None and current["id"].startswith(f"{pid}-") else None

    def remove(self, current: State) -> None:
        drop_switch(Path(current["socket"]))

    def find(self, engine_name: str) -> State | None:
        cluster = engine_name.removeprefix("hvdctl-").removesuffix("-net")
        folder = qemu.switch_folder(cluster)
        pid = qemu.switch(folder)
        if pid is None:
            return None
        return {"cluster": cluster, "name": "net", "labels": None, "id": f"{pid}-imported", "socket": str(folder)}


class HvdVirtualMachine(EngineResource):
    """A guest with a disk of its own over a common image. It outlives hvdctl; one that ended is gone."""

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
                Attribute("switch", text, required=True, requires_replace=True, description="Id of the switch"),
                Attribute("socket", text, required=True, requires_replace=True, description="Folder of its socket"),
                Attribute("cpus", number, required=True, requires_replace=True, description="CPUs"),
                Attribute("memory", number, required=True, requires_replace=True, description="Bytes"),
                Attribute("disk", number, required=True, requires_replace=True, description="Bytes"),
                Attribute("private_address", text, required=True, requires_replace=True, description="Address/prefix"),
                Attribute("internet", Bool(), required=True, requires_replace=True, description="Reaches outside"),
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
        image = qemu.Image(Path(planned["image"]))
        if not image.whole:
            raise HvdctlError(f"there is no machine image in {image.folder}; `hvdctl image build vm` makes it")
        self._end(planned)
        folder = _folder(planned)
        folder.mkdir(mode=0o700, parents=True)
        qemu.overlay(image, folder / "disk.qcow2", int(planned["disk"]))
        identity = uuid.uuid4().hex
        qemu.seed(folder / "seed.iso", seed(planned, identity))
        chosen, _ = qemu.acceleration(image)
        port = _start(planned, folder, image, chosen)
        state = {**planned, "id": identity, "acceleration": chosen, "ssh_port": port}
        write(folder / _STORED, json.dumps({key: value for key, value in state.items() if key != "user_data"}))
        return state

    def look(self, current: State) -> State | None:
        if current["name"] not in qemu.running(current["cluster"]):
            return None
        return current if _stored(_folder(current)).get("id") == current["id"] else None

    def remove(self, current: State) -> None:
        self._end(current)

    def find(self, engine_name: str) -> State | None:
        cluster, _, name = engine_name.removeprefix("hvdctl-").rpartition("-")
        if name not in qemu.running(cluster):
            return None
        known = _stored(Cluster(cluster).folder / "vm" / name)
        return {**known, "user_data": ""} if known else None

    def _end(self, state: State) -> None:
        end(state["cluster"], state["name"])


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
        "meta-data": json.dumps({"instance-id": identity, "local-hostname": planned["name"]}),
        "user-data": _filled(planned["user_data"]),
        "network-config": json.dumps(network),
    }


def mac(planned: State, network: int) -> str:
    """A hardware address after the network and the node's number."""
    number = int(re.sub(r"\D", "", planned["name"]) or 0)
    return f"52:54:00:{network:02x}:{number >> 8:02x}:{number & 255:02x}"


def end(cluster: str, name: str) -> None:
    """End a guest and remove its disk, whatever is there of them."""
    pid = qemu.running(cluster).get(name)
    if pid is not None:
        qemu.stop(pid)
    qemu.drop(Cluster(cluster).folder / "vm" / name)


def drop_switch(folder: Path) -> None:
    pid = qemu.switch(folder)
    if pid is not None:
        qemu.stop(pid)
    qemu.drop(folder)
    folder.with_suffix(".pid").unlink(missing_ok=True)


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
    return Cluster(state["cluster"]).folder / "vm" / str(state["name"])


def _stored(folder: Path) -> dict[str, Any]:
    try:
        known = json.loads((folder / _STORED).read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
