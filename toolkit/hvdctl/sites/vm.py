"""The site `vm`: what of a cluster stands on this machine as QEMU guests, asked of the processes themselves."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hvdctl import kvm, owner, process, qemu
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.sites import only
from hvdctl.spec import Delay, Size, parse_disk

if TYPE_CHECKING:
    from hvdctl.spec import Spec

_MEMORY = 2 * 2**30
_DISK = 20 * 2**30
_IMAGE = "auto"


class Options(BaseModel):
    """Settings of virtual machines."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    # QEMU's own network: all addresses of it lead to the loopback of this machine.
    closed: ClassVar = ("10.0.2.0/24",)

    image: Annotated[str, Field(min_length=1)] = Field(
        _IMAGE, description="Folder with disk.raw, vmlinuz and initrd; auto: the one of `hvdctl image build vm`."
    )
    disk: Size = Field(_DISK, description="Disk of a machine, 20g or more; it grows as it is written to.")
    subnet: str = Field("10.87.0.0/16", description="Addresses of the network between the machines.")
    internet: bool = Field(True, description="Whether the machines reach beyond this one.")
    firewall: bool = Field(True, description="Whether the machines refuse all but SSH from outside the cluster.")
    delay: Delay = Field(None, description="Added to every packet that a machine sends, such as 2ms.")

    @field_validator("subnet")
    @classmethod
    def _network(cls, value: str) -> str:
        try:
            found = ipaddress.IPv4Network(value)
        except ValueError:
            found = None
        if found and "/" not in value:
            raise ValueError(f"{value!r} has no prefix length; write a range such as 10.87.0.0/16")
        if found is None or found.prefixlen > 29 or found.overlaps(ipaddress.IPv4Network(cls.closed[0])):
            raise ValueError(f"{value!r} is not a free range; write one such as 10.87.0.0/16, {cls.closed[0]} is taken")
        return value

    @field_validator("disk", mode="before")
    @classmethod
    def _disk(cls, value: object) -> int | None:
        return parse_disk(value, _DISK, needed=True)


def preflight(spec: Spec) -> None:
    """Raise where this machine can't run the guests that are asked for."""
    for tool in (qemu.BINARY, "qemu-img", "vde_switch"):
        process.tool(tool)
    options = _options(spec)
    if os.uname().machine != "x86_64":
        raise UsageError(f"provider vm has images for x86_64 only, this machine is {os.uname().machine}")
    if spec.gpus:
        raise UsageError(f"gpus: {spec.gpus} asked, but virtual machines have none here", hint="use --gpus 0")
    if options.image != _IMAGE and not qemu.Image(Path(options.image)).whole:
        raise UsageError(
            f"options.image: {options.image} has no disk.raw, vmlinuz and initrd",
            hint="write a folder that has them, or auto",
        )
    room = ipaddress.IPv4Network(options.subnet).num_addresses - 2
    if spec.nodes > room:
        raise UsageError(f"options.subnet: {options.subnet} has {room} addresses for {spec.nodes} nodes")
    wanted = spec.memory or _MEMORY
    if wanted < 2**30:
        raise UsageError("memory: a machine needs 1g or more", hint="use --memory 2g")
    have = _running(spec.name, "memory")
    free = process.available_memory()
    if spec.nodes * wanted > sum(have.values()) + free:
        beside = f" beside the {len(have)} that run" if have else ""
        raise UsageError(
            f"{spec.nodes} machines of {wanted / 2**30:g} GiB don't fit: "
            f"{free / 2**30:.1f} GiB of memory are free{beside}",
            hint="use fewer --nodes or less --memory",
        )


def access(spec: Spec) -> None:
    return None


def settings(spec: Spec) -> dict[str, Any]:
    from hvdctl import vmimage

    options = _options(spec)
    chosen = options.image if options.image != _IMAGE else str(vmimage.image(spec.framework).folder)
    return options.model_dump(mode="json") | {"disk": options.disk, "image": chosen}


def prepare(spec: Spec, progress: Progress) -> None:
    from hvdctl import vmimage

    options = _options(spec)
    if options.image == _IMAGE:
        vmimage.build(spec.framework, progress)
    image = qemu.Image(Path(settings(spec)["image"]))
    with progress.phase("Trying KVM") as step:
        chosen, why = kvm.acceleration(image)
        step.update(f"{chosen}: {why}")


def watch(spec: Spec, step: Step) -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()


def observe(cluster: str, nodes: Sequence[str] | None = None) -> dict[str, str]:
    """Guests that run; one whose switch is gone reaches no other node, and counts as lost."""
    joined = any(map(qemu.open_to_guests, qemu.switches(cluster).values()))
    return only(dict.fromkeys(qemu.running(cluster), "running" if joined else "cut off"), nodes)


def about(cluster: str) -> str:
    found = _running(cluster, "acceleration")
    if not found:
        return ""
    emulated = [name for name, chosen in found.items() if chosen != "kvm"]
    if not emulated:
        told = "KVM"
    elif len(emulated) < len(found):
        told = f"KVM, but {', '.join(emulated)} with TCG, emulated"
    else:
        now, _ = kvm.known() or ("tcg", "")
        whys = sorted(set(_running(cluster, "why").values()))
        told = f"TCG, emulated: {'KVM works only now' if now == 'kvm' else '; '.join(whys)}"
    return f"QEMU {qemu.version()} with {told}"


def hint(message: str) -> str:
    return ""


def claims(cluster: str, spec: Spec | None = None) -> list[owner.Claim]:
    """Guests are known by their folder, which is in the home of their owner: each has one."""
    this = owner.this() if (ours := leftovers(cluster)) else None
    found = [owner.claim(thing, this.labels) for thing in ours if this]
    for (named, name), home in qemu.others().items():
        if named == cluster:
            whose = owner.of_home(home)
            found.append(owner.Claim(f"process {qemu.title(cluster, name)}", whose.id or str(home), whose.name))
    return found


def leftovers(cluster: str) -> list[str]:
    folder = qemu.home(cluster)
    disks = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [
        *(f"process {qemu.title(cluster, name)} ({pid})" for name, pid in qemu.running(cluster).items()),
        *(f"disk {qemu.title(cluster, name)}" for name in disks),
        *(f"switch {switch}" for switch in qemu.switch_folders(cluster)),
    ]


def sweep(cluster: str, *, keep_data: bool, step: Step) -> None:
    from hvdctl.tfprovider import machine

    folder = qemu.home(cluster)
    names = {*qemu.running(cluster), *(entry.name for entry in (folder.iterdir() if folder.is_dir() else []))}
    for name in sorted(names):
        step.update(f"machine {name}")
        machine.end(cluster, name)
    machine.drop_switch(cluster)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def clusters() -> list[str]:
    return sorted({cluster for cluster, _ in (*qemu.guests(), *qemu.others())})


def _options(spec: Spec) -> Options:
    own = spec.own()
    assert isinstance(own, Options)  # noqa: S101 - the registry gave it
    return own


def _running(cluster: str, key: str) -> dict[str, Any]:
    """What was written down of each guest that runs."""
    facts = {}
    for name in qemu.running(cluster):
        with contextlib.suppress(HvdctlError):  # `up` says what is wrong
            facts[name] = qemu.stored(qemu.home(cluster) / name).get(key)
    return {name: value for name, value in facts.items() if value is not None}
