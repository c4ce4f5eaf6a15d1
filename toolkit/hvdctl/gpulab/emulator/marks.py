"""Whose an emulator's containers and networks are, and whether that emulator has certainly ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hvdctl import owner

PID = "hvdctl.gpulab.pid"
BOOT = "hvdctl.gpulab.boot"
NAMESPACE = "hvdctl.gpulab.pid-namespace"


def labels() -> dict[str, str]:
    """What this process and its home mark their things with."""
    return {PID: str(os.getpid()), **_here(), **owner.this().labels}


def mine() -> str:
    """The label of the things of this home, as a filter for the engine."""
    return f"{owner.MARK}={owner.this().id}"


def ours(found: Mapping[str, str]) -> bool:
    """Whether this home made the thing with these labels."""
    return found.get(owner.MARK) == owner.this().id


def ended(found: Mapping[str, str]) -> bool:
    """Whether the emulator that made the thing with these labels has certainly ended.

    A process id identifies a process only within one PID namespace and one boot: others may share the engine.
    """
    # Earlier versions wrote only the PID: what their killed emulators left stays until the user removes it.
    return all(found.get(name) == value for name, value in _here().items()) and not _runs(found.get(PID, ""))


def _here() -> dict[str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {BOOT: boot, NAMESPACE: str(Path("/proc/self/ns/pid").readlink())}


def _runs(pid: str) -> bool:
    """Whether an emulator may have this process id, which another process may have by now."""
    try:
        # A signal also finds a process that /proc hides (hidepid).
        os.kill(int(pid), 0)
        return b"emulate" in Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True
