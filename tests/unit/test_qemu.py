"""QEMU: the command of a guest, the seed, which acceleration works, and which processes are whose."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pycdlib
import pytest
from hvdctl import process, qemu
from hvdctl.errors import HvdctlError
from support import runs, wait_for


def guest(folder: Path, **changes: Any) -> qemu.Guest:
    given: dict[str, Any] = {
        "cluster": "demo",
        "name": "node1",
        "folder": folder,
        "image": qemu.Image(Path("/images/a")),
        "cpus": 2,
        "memory": 2 * 2**30,
        "ssh_port": 40022,
        "switch": Path("/run/demo.vde"),
        "macs": ("52:54:00:86:00:01", "52:54:00:87:00:01"),
    }
    return qemu.Guest(**given | changes)


def after(words: list[str], flag: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == flag]


def test_a_guest_is_reached_on_the_loopback_and_by_its_own_switch_only() -> None:
    words = qemu.argv(guest(Path("/c/vm/node1")), "tcg")
    assert after(words, "-netdev") == [
        "user,id=outside,hostfwd=tcp:127.0.0.1:40022-:22",
        "vde,id=inside,sock=/run/demo.vde",
    ]
    assert after(words, "-accel") == ["tcg,thread=multi"]
    assert after(words, "-m") == ["size=2048M"]
    assert after(words, "-name") == ["guest=hvdctl-demo-node1,process=hvdctl-demo-nod"]
    assert "-daemonize" in words
    assert not {"-vnc", "-monitor", "-qmp"} & set(words), "nothing else to talk to"


def test_without_internet_the_guest_reaches_nobody() -> None:
    outside = after(qemu.argv(guest(Path("/c"), internet=False), "kvm"), "-netdev")[0]
    assert outside.endswith(",restrict=on")


def test_a_comma_in_a_path_is_no_separator() -> None:
    drives = after(qemu.argv(guest(Path("/c/a,b")), "kvm"), "-drive")
    assert drives[0].startswith("file=/c/a,,b/disk.qcow2,")


def test_cloud_init_finds_the_seed_by_its_label_and_names(tmp_path: Path) -> None:
    file = tmp_path / "seed.iso"
    given = {"meta-data": "{}", "user-data": "#cloud-config\nä", "network-config": '{"version": 2}'}
    qemu.seed(file, given)
    assert file.stat().st_mode & 0o777 == 0o600, "it holds a private key"
    iso = pycdlib.PyCdlib()
    iso.open(str(file))
    assert iso.pvd.volume_identifier.strip() == b"cidata"
    for name, text in given.items():
        for where in ({"rr_path": f"/{name}"}, {"joliet_path": f"/{name}"}):
            read = io.BytesIO()
            iso.get_file_from_iso_fp(read, **where)
            assert read.getvalue().decode() == text
    iso.close()


class Probe:
    """A QEMU that says what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: bool = True) -> None:
        self.calls = 0
        self.said: subprocess.CompletedProcess[str] | subprocess.TimeoutExpired = subprocess.CompletedProcess([], 0, "")
        monkeypatch.setattr(process, "capture", self.capture)
        monkeypatch.setattr(process, "tool", lambda name: name)
        real = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path: device if str(path) == "/dev/kvm" else real(path))
        monkeypatch.setattr(os, "access", lambda path, mode: True)

    def capture(self, argv: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        if isinstance(self.said, subprocess.TimeoutExpired):
            raise self.said
        return self.said


IMAGE = qemu.Image(Path("/images/a"))


def test_kvm_is_used_where_a_guest_says_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = Probe(monkeypatch, tmp_path)
    probe.said = subprocess.CompletedProcess([], 0, "[0.0] Linux version 6.1\nKernel panic", "")
    assert qemu.acceleration(IMAGE)[0] == "kvm"
    assert qemu.acceleration(IMAGE)[0] == "kvm"
    assert probe.calls == 1, "once for each boot of this machine"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (subprocess.TimeoutExpired("q", 8, output=b""), "said nothing within 8 s"),
        (subprocess.CompletedProcess([], 1, "", "error: failed to set MSR 0x1\n"), "failed to set MSR 0x1"),
    ],
)
def test_a_kvm_that_is_there_and_does_not_work_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: Any, why: str
) -> None:
    probe = Probe(monkeypatch, tmp_path)
    probe.said = said
    chosen, told = qemu.acceleration(IMAGE)
    assert chosen == "tcg"
    assert why in told


def test_a_guest_that_hangs_after_its_first_word_runs_with_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = Probe(monkeypatch, tmp_path)
    probe.said = subprocess.TimeoutExpired("q", 8, output=b"Linux version 6.1")
    assert qemu.acceleration(IMAGE)[0] == "kvm"


def test_no_device_no_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = Probe(monkeypatch, tmp_path, device=False)
    assert qemu.acceleration(IMAGE) == ("tcg", "there is no /dev/kvm")
    assert probe.calls == 0


def test_guests_are_known_by_the_names_of_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (11, [qemu.BINARY, "-name", "guest=hvdctl-my-lab-node0,process=x"]),
        (12, [qemu.BINARY, "-name", "guest=hvdctl-my-lab-node12,process=x"]),
        (13, [qemu.BINARY, "-name", "guest=hvdctl-my-node0,process=x"]),
        (14, [qemu.BINARY, "-name", "guest=someone-elses"]),
        (15, [qemu.BINARY]),
    ]
    monkeypatch.setattr(qemu, "processes", lambda program="": found)
    assert qemu.running("my-lab") == {"node0": 11, "node12": 12}
    assert qemu.running("my") == {"node0": 13}
    assert qemu.running("lab") == {}


def test_one_that_does_not_listen_is_killed() -> None:
    deaf = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    qemu.stop(child.pid, patience=0.3)
    assert not runs(child.pid)
    assert child.wait() == -signal.SIGKILL
    qemu.stop(child.pid)


def test_what_qemu_refuses_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / qemu.BINARY
    program.write_text("#!/bin/sh\necho 'could not set up host forwarding rule' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(process, "tool", lambda name: str(program))
    with pytest.raises(HvdctlError, match="QEMU does not start: could not set up host forwarding rule"):
        qemu.start(guest(tmp_path), "tcg")


def test_a_real_process_is_found_by_its_program_and_words(undone: None, tmp_path: Path) -> None:
    program = tmp_path / "vde_switch"
    program.symlink_to(sys.executable)
    words = [str(program), "-c", "import time; time.sleep(60)", "-sock", "/run/x.vde"]
    child = subprocess.Popen(words)
    try:
        wait_for(lambda: qemu.switch(Path("/run/x.vde")) == child.pid)
        assert qemu.switch(Path("/run/y.vde")) is None
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own processes, which other tests don't see."""
    monkeypatch.undo()
