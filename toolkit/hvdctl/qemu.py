"""QEMU on this machine: how a guest is started, which guests run, what is known of them. No root is needed."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdctl import owner, paths, process
from hvdctl.cluster import Cluster, digest, write
from hvdctl.errors import HvdctlError

BINARY = "qemu-system-x86_64"
DISK = "disk.qcow2"
_START_PATIENCE = 60.0
_PORTS = 1024
_STORED = "machine.json"
_CLAIMS = "claims"
ALONE = ("-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35")


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

    @property
    def stamp(self) -> str:
        """Another one for another disk at the same place, on which a guest's own disk does not fit."""
        found = self.disk.stat()
        return f"{found.st_size}-{found.st_mtime_ns}"


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
    outside = f"user,id=outside,ipv6=off,hostfwd=tcp:127.0.0.1:{guest.ssh_port}-:22"
    return [
        BINARY,
        *ALONE,
        *cpu(acceleration),
        *("-name", f"guest={guest.title},process={guest.title[:15]}"),
        *("-smp", str(guest.cpus)),
        *("-m", f"size={guest.memory // 2**20}M"),
        *("-kernel", str(guest.image.kernel)),
        *("-initrd", str(guest.image.initrd)),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 panic=10"),
        *("-drive", f"file={_escaped(guest.folder / DISK)},if=virtio,format=qcow2,cache=writeback,discard=unmap"),
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
    try:
        done = _run([process.tool(BINARY), *argv(guest, acceleration)[1:]])
    except HvdctlError:
        # The half of it that went into the background.
        if (left := running(guest.cluster).get(guest.name)) is not None:
            stop(left)
        raise
    if done.returncode:
        raise HvdctlError(f"QEMU does not start: {last(done.stderr)}")
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
        raise HvdctlError(f"the disk {disk} can't be made: {last(done.stderr)}")


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


def start_switch(cluster: str) -> tuple[int, Path]:
    """A virtual switch for the private network of a cluster: its process, and a socket that only its user can reach."""
    folder = switch_folder(cluster)
    words = [process.tool("vde_switch"), "-sock", str(folder), "-dirmode", "0700", "-mode", "0600"]
    done = _run([*words, "-numports", str(_PORTS), "-pidfile", str(folder.with_suffix(".pid")), "-daemon"])
    if done.returncode:
        raise HvdctlError(f"vde_switch does not start: {last(done.stderr)}")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for pid, where in switches(cluster).items():
            if where == folder and open_to_guests(folder):
                return pid, folder
        time.sleep(0.02)
    raise HvdctlError("vde_switch ended at once")


def switches(cluster: str) -> dict[int, Path]:
    """The processes of a cluster's switch with the folder of the socket, wherever that is: cron has another one.

    The socket's name has the owner. One of an older version has not: see `_old_is_ours`.
    """
    own, old = f"/{_socket_name(cluster)}", f"/{cluster}.vde"
    return {
        pid: Path(word)
        for pid, words in processes("vde_switch")
        for word in words
        if word.endswith(own) or (word.endswith(old) and _old_is_ours(cluster, Path(word)))
    }


def switch_folders(cluster: str) -> list[Path]:
    """The folders with a socket of the cluster's switch, whether or not it runs."""
    usual = (folder for folder in (switch_folder(cluster), _old_folder(cluster)) if folder and folder.exists())
    return sorted({*switches(cluster).values(), *usual})


def open_to_guests(folder: Path) -> bool:
    """Whether the socket of a switch is there; a switch without it is as good as dead."""
    return (folder / "ctl").exists()


def switch_folder(cluster: str) -> Path:
    """Where a new switch of a cluster gets its socket: a short path, as that of a socket must be."""
    return paths.runtime() / _socket_name(cluster)


def _old_folder(cluster: str) -> Path | None:
    """Where versions without owners had that socket; None if what is there is not ours."""
    folder = paths.runtime() / f"{cluster}.vde"
    return folder if _old_is_ours(cluster, folder) else None


def _old_is_ours(cluster: str, folder: Path) -> bool:
    """Whether a socket without an owner is this home's: it has had machines of that cluster, and no other home's are
    on it.
    """
    sock = f"sock={_escaped(folder)}"
    others = [words for place, words in _guests().values() if place != _here()]
    return home(cluster).is_dir() and not any(sock in word for words in others for word in words)


def running(cluster: str) -> dict[str, int]:
    """The processes of a cluster's guests, by the name of the node."""
    return {name: pid for (found, name), pid in guests().items() if found == cluster}


def guests() -> dict[tuple[str, str], int]:
    """All guests of this home by cluster and node."""
    return {(cluster, name): pid for (pid, cluster, name), (home, _) in _guests().items() if home == _here()}


def others() -> dict[tuple[str, str], Path]:
    """The guests that other homes of this user have on this machine: the home of each, by cluster and node."""
    return {(cluster, name): home for (_, cluster, name), (home, _) in _guests().items() if home != _here()}


def home(cluster: str) -> Path:
    """The folder with one folder for each guest of a cluster."""
    return Cluster(cluster).folder / "vm"


def store(folder: Path, facts: dict[str, Any]) -> None:
    """Write down how a guest was started."""
    write(folder / _STORED, json.dumps(facts))


def stored(folder: Path) -> dict[str, Any]:
    """What was written down of a guest, running or not; nothing where there is nothing."""
    file = folder / _STORED
    try:
        known = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise HvdctlError(
            f"{file} can't be read, and it says what the disk beside it is based on; put it back, or give up the disk "
            "with `hvdctl down`"
        )
    return known


def claim(image: Image, folder: Path) -> None:
    """Say in the image's folder, common to all homes, that the disk in this folder is based on it."""
    with contextlib.suppress(OSError):  # one of the user's own, which nobody else removes
        write(image.folder / _CLAIMS / digest(folder), f"{folder}\n")


def in_use(image: Image) -> bool:
    """Whether a guest runs on the image, or the disk of one that ended is based on it."""
    kernels = {after for _, words in processes() for word, after in itertools.pairwise(words) if word == "-kernel"}
    claims = (image.folder / _CLAIMS).glob("*")
    return str(image.kernel) in kernels or any((Path(file.read_text().strip()) / DISK).exists() for file in claims)


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


@functools.cache
def version() -> str:
    said = process.capture([process.tool(BINARY), "--version"]).stdout.split()
    return said[3] if len(said) > 3 else "?"


def cpu(acceleration: str) -> tuple[str, ...]:
    """The words for `kvm` or `tcg`."""
    if acceleration == "kvm":
        return ("-accel", "kvm", "-cpu", "host")
    return ("-accel", "tcg,thread=multi", "-cpu", "max")


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


def drop(folder: Path) -> None:
    """Remove a folder of a guest or a switch, whatever is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def last(said: str) -> str:
    """The last line that a program said."""
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run what puts itself in the background and is to outlive hvdctl."""
    # A file, as a pipe would have no end: the one in the background may keep it open.
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = process.start(
            words, outlive=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said.fileno()
        )
        try:
            code = child.wait(timeout=_START_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            said.seek(0)
            told = f"{Path(words[0]).name} is not up after {_START_PATIENCE:.0f} s: {last(said.read())}"
            raise HvdctlError(told) from None
        said.seek(0)
        return subprocess.CompletedProcess([], code, "", said.read())


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def _guests() -> dict[tuple[int, str, str], tuple[Path, list[str]]]:
    """Every guest of hvdctl by process, cluster and node: its home, and its words."""
    found = {}
    for pid, words in processes():
        named = next((word for word in words if word.startswith("guest=hvdctl-")), "")
        whole = named.removeprefix("guest=hvdctl-").split(",")[0]
        cluster, _, name = whole.rpartition("-")
        # Its folder is <home>/<cluster>/vm/<name>.
        file = next((after for word, after in itertools.pairwise(words) if word == "-pidfile"), "")
        if cluster and name and len(Path(file).parents) > 3:
            found[pid, cluster, name] = Path(os.path.realpath(Path(file).parents[3])), words
    return found


def _here() -> Path:
    return Path(os.path.realpath(paths.home()))


def _socket_name(cluster: str) -> str:
    this = owner.known()
    return f"{cluster}.{this.id[:8] if this else 'none'}.vde"


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")
