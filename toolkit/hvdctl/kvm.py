"""Which acceleration QEMU has here: /dev/kvm may be there and not work, so a guest is started with it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

from hvdctl import paths, process
from hvdctl.cluster import digest, write
from hvdctl.qemu import ALONE, BINARY, Image, cpu, last

# A guest that KVM really runs says its first word within a second or two.
_PATIENCE = 8.0
# How long a KVM that did not work is not tried again: it may have been the moment.
_UNSURE = 600.0


def acceleration(image: Image) -> tuple[str, str]:
    """`kvm` where a guest really runs with it, else `tcg`, and why."""
    if (found := known()) is not None:
        return found
    chosen, why = _probe(image)
    until = None if chosen == "kvm" else time.time() + _UNSURE
    facts = {"digest": _circumstances(), "acceleration": chosen, "why": why, "until": until}
    write(_probed(), json.dumps(facts))
    return chosen, why


def known() -> tuple[str, str] | None:
    """The same where it is known without a try: a KVM that works does so until this machine is booted again."""
    if not Path("/dev/kvm").exists():
        return "tcg", "there is no /dev/kvm"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg", "no permission to use /dev/kvm (join the group kvm)"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(_probed().read_text())
        if kept["digest"] == _circumstances() and (kept["until"] is None or time.time() < kept["until"]):
            return kept["acceleration"], kept["why"]
    return None


def _circumstances() -> str:
    return digest(Path("/proc/sys/kernel/random/boot_id").read_text(), process.tool(BINARY))


def _probed() -> Path:
    return paths.cache() / "vm" / "acceleration.json"


def _probe(image: Image) -> tuple[str, str]:
    words = [process.tool(BINARY), *ALONE, *cpu("kvm"), "-m", "256", "-kernel", str(image.kernel), "-no-reboot"]
    words += ["-append", "console=ttyS0 panic=-1", "-serial", "stdio"]
    try:
        done = process.capture(words, timeout=_PATIENCE)
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        if b"Linux version" in said:
            return "kvm", "a guest runs with it"
        return "tcg", f"/dev/kvm is there, but a guest said nothing within {_PATIENCE:.0f} s"
    if "Linux version" in done.stdout:
        return "kvm", "a guest runs with it"
    return "tcg", f"/dev/kvm is there, but QEMU says: {last(done.stderr)}"
