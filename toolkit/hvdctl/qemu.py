"""QEMU on this machine: which acceleration works, how a guest is started, which guests run. No root is needed."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from hvdctl import paths, process
from hvdctl.cluster import digest, write
from hvdctl.errors import HvdctlError

BINARY = "qemu-system-x86_64"
# A guest that KVM really runs says its first word within a second or two.
_PROBE_PATIENCE = 8.0
_PORTS = 1024
_ALONE = ("-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35")


@dataclass(frozen=True)
class Image:
    """A folder with what a guest starts from; hvdctl.vmimage makes it."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.raw"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"

    @property
    def whole(self) -> bool:
        return all(file.is_file() for file in (self.disk, self.kernel, self.initrd))


@dataclass(frozen=True)
class Guest:
    """One virtual machine, as it is started."""

    cluster: str
    name: str
    folder: Path
    image: Image
    cpus: int
    memory: int
    ssh_port: int
    switch: Path
    macs: tuple[str, str]
    internet: bool = True

    @property
    def title(self) -> str:
        return title(self.cluster, self.name)


def title(cluster: str, name: str) -> str:
    """The name by which a guest's process is found again."""
    return f"hvdctl-{cluster}-{name}"


def argv(guest: Guest, acceleration: str) -> list[str]:
    """The command that starts the guest. Pure."""
    outside = f"user,id=outside,hostfwd=tcp:127.0.0.1:{guest.ssh_port}-:22"
    return [
        BINARY,
        *_ALONE,
        *_cpu(acceleration),
        *("-name", f"guest={guest.title},process={guest.title[:15]}"),
        *("-smp", str(guest.cpus)),
        *("-m", f"size={guest.memory // 2**20}M"),
        *("-kernel", str(guest.image.kernel)),
        *("-initrd", str(guest.image.initrd)),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0"),
        *("-drive", f"file={_escaped(guest.folder / 'disk.qcow2')},if=virtio,format=qcow2,cache=unsafe,discard=unmap"),
        *("-drive", f"file={_escaped(guest.folder / 'seed.iso')},if=virtio,format=raw,readonly=on"),
        *("-netdev", outside if guest.internet else f"{outside},restrict=on"),
        *("-device", f"virtio-net-pci,netdev=outside,mac={guest.macs[0]},romfile="),
        *("-netdev", f"vde,id=inside,sock={_escaped(guest.switch)}"),
        *("-device", f"virtio-net-pci,netdev=inside,mac={guest.macs[1]},romfile="),
        *("-device", "virtio-rng-pci"),
        *("-serial", f"file:{guest.folder / 'console.log'}"),
        *("-pidfile", str(guest.folder / "pid")),
        "-daemonize",
    ]


def start(guest: Guest, acceleration: str) -> int:
    """Start the guest on its own, and return the id of its process."""
    done = _run([process.tool(BINARY), *argv(guest, acceleration)[1:]])
    if done.returncode:
        raise HvdctlError(f"QEMU does not start: {_last(done.stderr)}")
    found = running(guest.cluster).get(guest.name)
    if found is None:
        raise HvdctlError(f"QEMU ended at once; {guest.folder / 'console.log'} has its last words")
    return found


def overlay(image: Image, disk: Path, size: int) -> None:
    """A disk that holds what differs from the image."""
    done = process.capture(
        [process.tool("qemu-img"), "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, disk, str(size)]
    )
    if done.returncode:
        raise HvdctlError(f"the disk {disk} can't be made: {_last(done.stderr)}")


def seed(file: Path, documents: dict[str, str]) -> None:
    """A NoCloud seed: cloud-init in the guest finds it by its label."""
    import pycdlib

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident="cidata")
    for number, (name, text) in enumerate(documents.items()):
        content = text.encode()
        iso.add_fp(io.BytesIO(content), len(content), f"/FILE{number}.;1", rr_name=name, joliet_path=f"/{name}")
    file.touch(mode=0o600)
    iso.write(str(file))
    iso.close()


def start_switch(folder: Path) -> int:
    """A virtual switch for the private network of a cluster, as a socket that only its user can reach."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = [process.tool("vde_switch"), "-sock", str(folder), "-dirmode", "0700", "-mode", "0600"]
    done = _run([*words, "-numports", str(_PORTS), "-pidfile", str(folder.with_suffix(".pid")), "-daemon"])
    if done.returncode:
        raise HvdctlError(f"vde_switch does not start: {_last(done.stderr)}")
    deadline = time.monotonic() + 5
    while (found := switch(folder)) is None or not (folder / "ctl").exists():
        if time.monotonic() > deadline:
            raise HvdctlError("vde_switch ended at once")
        time.sleep(0.02)
    return found


def switch(folder: Path) -> int | None:
    """The process of the switch at this socket."""
    return next((pid for pid, words in processes("vde_switch") if str(folder) in words), None)


def switch_folder(cluster: str) -> Path:
    """Where the switch of a cluster has its socket: a short path, as that of a socket must be."""
    return paths.runtime() / f"{cluster}.vde"


def running(cluster: str) -> dict[str, int]:
    """The processes of a cluster's guests, by the name of the node."""
    return {name: pid for (found, name), pid in guests().items() if found == cluster}


def guests() -> dict[tuple[str, str], int]:
    """All guests of hvdctl on this machine by cluster and node."""
    found = {}
    for pid, words in processes():
        named = next((word for word in words if word.startswith("guest=hvdctl-")), "")
        whole = named.removeprefix("guest=hvdctl-").split(",")[0]
        cluster, _, name = whole.rpartition("-")
        if cluster and name:
            found[cluster, name] = pid
    return found


def stop(pid: int, patience: float = 10) -> None:
    """End a guest or a switch; a guest that does not listen is killed."""
    for word in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, word)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not _alive(pid):
                return
            time.sleep(0.05)
    raise HvdctlError(f"process {pid} can't be ended")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def acceleration(image: Image) -> tuple[str, str]:
    """`kvm` where a guest really runs with it, else `tcg`, and why. Tried once for each boot of this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = paths.cache() / "vm" / "acceleration.json"
    wanted = digest(boot, process.tool(BINARY), image.kernel.name, os.access("/dev/kvm", os.R_OK | os.W_OK))
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(kept.read_text())
        if known["digest"] == wanted:
            return known["acceleration"], known["why"]
    chosen, why = _probe(image)
    write(kept, json.dumps({"digest": wanted, "acceleration": chosen, "why": why}))
    return chosen, why


@functools.cache
def version() -> str:
    said = process.capture([process.tool(BINARY), "--version"]).stdout.split()
    return said[3] if len(said) > 3 else "?"


def _probe(image: Image) -> tuple[str, str]:
    if not Path("/dev/kvm").exists():
        return "tcg", "there is no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg", "no permission to use /dev/kvm (join the group kvm)"
    words = [process.tool(BINARY), *_ALONE, *_cpu("kvm"), "-m", "256", "-kernel", str(image.kernel), "-no-reboot"]
    words += ["-append", "console=ttyS0 panic=-1", "-serial", "stdio"]
    try:
        done = process.capture(words, timeout=_PROBE_PATIENCE)
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        if b"Linux version" in said:
            return "kvm", "a guest runs with it"
        return "tcg", f"/dev/kvm is there, but a guest said nothing within {_PROBE_PATIENCE:.0f} s"
    if "Linux version" in done.stdout:
        return "kvm", "a guest runs with it"
    return "tcg", f"/dev/kvm is there, but QEMU says: {_last(done.stderr)}"


def _cpu(acceleration: str) -> tuple[str, ...]:
    if acceleration == "kvm":
        return ("-accel", "kvm", "-cpu", "host")
    return ("-accel", "tcg,thread=multi", "-cpu", "max")


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run what puts itself in the background and is to outlive hvdctl."""
    with process.start(
        words,
        outlive=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        # Not to the end of the stream: the one in the background may keep it open.
        code = child.wait(timeout=60)
        said = child.stderr.read() if code and child.stderr else ""
    return subprocess.CompletedProcess([], code, "", said)


def processes(program: str = BINARY) -> list[tuple[int, list[str]]]:
    """The processes of a program, with their words, that this user started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name == program and entry.stat().st_uid == os.getuid():
                found.append((int(entry.name), words))
    return sorted(found)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")


def _last(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


def drop(folder: Path) -> None:
    """Remove a folder of a guest or a switch, whatever is in it."""
    shutil.rmtree(folder, ignore_errors=True)
