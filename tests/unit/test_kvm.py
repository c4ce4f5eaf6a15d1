"""Which acceleration works: asked of a QEMU that says what it is told to."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hvdctl import kvm, process, qemu


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
    assert kvm.acceleration(IMAGE)[0] == "kvm"
    assert kvm.acceleration(IMAGE)[0] == "kvm"
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
    chosen, told = kvm.acceleration(IMAGE)
    assert chosen == "tcg"
    assert why in told
    assert kvm.known() == (chosen, told)


def test_a_kvm_that_did_not_work_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may have been the moment: this machine had much else to do."""
    probe = Probe(monkeypatch, tmp_path)
    probe.said = subprocess.TimeoutExpired("q", 8, output=b"")
    assert kvm.acceleration(IMAGE)[0] == "tcg"
    probe.said = subprocess.CompletedProcess([], 0, "Linux version 6.1", "")
    assert kvm.acceleration(IMAGE)[0] == "tcg"
    assert probe.calls == 1, "not with every command"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 601)
    assert kvm.known() is None
    assert kvm.acceleration(IMAGE)[0] == "kvm"
    monkeypatch.setattr(time, "time", lambda: now + 10**6)
    assert kvm.acceleration(IMAGE)[0] == "kvm"
    assert probe.calls == 2, "one that works is not tried again"


def test_a_guest_that_hangs_after_its_first_word_runs_with_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = Probe(monkeypatch, tmp_path)
    probe.said = subprocess.TimeoutExpired("q", 8, output=b"Linux version 6.1")
    assert kvm.acceleration(IMAGE)[0] == "kvm"


def test_no_device_no_kvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = Probe(monkeypatch, tmp_path, device=False)
    assert kvm.acceleration(IMAGE) == ("tcg", "there is no /dev/kvm")
    assert probe.calls == 0


def test_a_permission_that_was_given_counts_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    probe = Probe(monkeypatch, tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert kvm.acceleration(IMAGE) == ("tcg", "no permission to use /dev/kvm (join the group kvm)")
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    probe.said = subprocess.CompletedProcess([], 0, "Linux version 6.1", "")
    assert kvm.acceleration(IMAGE)[0] == "kvm"
