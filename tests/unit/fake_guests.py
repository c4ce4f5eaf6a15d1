"""A QEMU and a switch that only stand there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdctl import kvm, qemu
from hvdctl.errors import HvdctlError

NETWORK = {"cluster": "demo", "name": "net", "labels": None}


class Machine:
    """This machine's guests and switches: started, found and ended without a process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running: dict[tuple[str, str], int] = {}
        self.elsewhere: dict[tuple[str, str], Path] = {}
        self.started: list[qemu.Guest] = []
        self.switches: dict[int, Path] = {}
        self.refuse: list[str] = []
        self.next = 100
        monkeypatch.setattr(qemu, "start", self.start)
        monkeypatch.setattr(qemu, "stop", self.stop)
        monkeypatch.setattr(qemu, "guests", lambda: dict(self.running))
        monkeypatch.setattr(qemu, "others", lambda: dict(self.elsewhere))
        monkeypatch.setattr(qemu, "start_switch", self.start_switch)
        monkeypatch.setattr(qemu, "switches", self.found)
        monkeypatch.setattr(qemu, "overlay", lambda image, disk, size: disk.write_text("empty"))
        monkeypatch.setattr(kvm, "acceleration", lambda image: ("tcg", "there is no /dev/kvm"))
        monkeypatch.setattr(kvm, "known", lambda: ("tcg", "there is no /dev/kvm"))
        monkeypatch.setattr(qemu, "version", lambda: "7.2")

    def start(self, guest: qemu.Guest, acceleration: str) -> int:
        if self.refuse:
            raise HvdctlError(self.refuse.pop(0))
        self.next += 1
        self.started.append(guest)
        self.running[guest.cluster, guest.name] = self.next
        return self.next

    def start_switch(self, cluster: str) -> tuple[int, Path]:
        self.next += 1
        folder = qemu.switch_folder(cluster)
        folder.mkdir(parents=True)
        (folder / "ctl").touch()
        self.switches[self.next] = folder
        return self.next, folder

    def found(self, cluster: str) -> dict[int, Path]:
        return {pid: folder for pid, folder in self.switches.items() if folder.name.split(".")[0] == cluster}

    def stop(self, pid: int, patience: float = 10) -> None:
        self.running = {key: value for key, value in self.running.items() if value != pid}
        self.switches.pop(pid, None)
