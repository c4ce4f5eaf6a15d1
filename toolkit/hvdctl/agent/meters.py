"""What this node uses, as the kernel counts it.

/proc/stat and /proc/meminfo tell of the whole host. For a container among others on one machine the node's own share is
in its cgroup, of version 1 or 2; for a container that has a machine to itself the machine's figures are the node's.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Protocol

from . import hosts, store

# For documentation (RFC 5737): the routing table tells of it as of any address out there.
_ELSEWHERE = "192.0.2.1"


class Meter(Protocol):
    scope: str
    """What the figures are of: `container` or `machine`."""

    def cpus(self) -> float:
        """How many CPUs the node may use."""

    def cpu_seconds(self) -> float:
        """CPU time used so far."""

    def memory(self) -> tuple[int, int]:
        """Bytes in use, without file contents that can be dropped, and how many there may be."""


def meter(machine: bool = False) -> Meter:
    """The meter that tells about this node; where a container can't see its cgroup, that of the machine."""
    if not (machine or has_machine()):
        for kind in (Unified, Split):
            try:
                found = kind()
                found.cpus(), found.cpu_seconds(), found.memory()
            except (OSError, ValueError, KeyError):
                continue
            return found
    return Machine()


def has_machine() -> bool:
    """Whether this node has a machine to itself: the role that starts such containers tells them where to listen."""
    try:
        return any(word.startswith(b"HVD_LISTEN=") for word in _root("proc/1/environ").read_bytes().split(b"\0"))
    except OSError:
        return False


class Unified:
    """A cgroup of version 2."""

    scope = "container"

    def __init__(self) -> None:
        self.folder = _group("", "")

    def cpus(self) -> float:
        quota, period = (self.folder / "cpu.max").read_text().split()
        return _allowed(None if quota == "max" else int(quota) / int(period))

    def cpu_seconds(self) -> float:
        return _pairs(self.folder / "cpu.stat")["usage_usec"] / 1e6

    def memory(self) -> tuple[int, int]:
        limit = (self.folder / "memory.max").read_text().strip()
        droppable = _pairs(self.folder / "memory.stat")["inactive_file"]
        total = _memory()["MemTotal"]
        used = _number(self.folder / "memory.current") - droppable
        return max(0, used), total if limit == "max" else min(total, int(limit))


class Split:
    """A cgroup of version 1, with a folder for each controller."""

    scope = "container"

    def __init__(self) -> None:
        self.accounts, self.quota, self.pages = (_group(name, name) for name in ("cpuacct", "cpu", "memory"))

    def cpus(self) -> float:
        quota = _number(self.quota / "cpu.cfs_quota_us")
        return _allowed(quota / _number(self.quota / "cpu.cfs_period_us") if quota > 0 else None)

    def cpu_seconds(self) -> float:
        return _number(self.accounts / "cpuacct.usage") / 1e9

    def memory(self) -> tuple[int, int]:
        droppable = _pairs(self.pages / "memory.stat")["total_inactive_file"]
        used = _number(self.pages / "memory.usage_in_bytes") - droppable
        # No limit is a number far above all memory.
        return max(0, used), min(_memory()["MemTotal"], _number(self.pages / "memory.limit_in_bytes"))


class Machine:
    """The whole machine under the node."""

    scope = "machine"

    def cpus(self) -> float:
        return float(sum(line.startswith("cpu") for line in self._stat().splitlines()) - 1)

    def cpu_seconds(self) -> float:
        user, nice, system, _, _, irq, softirq = (int(word) for word in self._stat().split(maxsplit=8)[1:8])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> tuple[int, int]:
        facts = _memory()
        return facts["MemTotal"] - facts["MemAvailable"], facts["MemTotal"]

    def _stat(self) -> str:
        return _root("proc/stat").read_text()


def interface() -> str | None:
    """The interface on the cluster's network, never the loopback."""
    found = hosts.interface_of(store.here())
    if found not in (None, "lo"):
        return found
    # The own name may lead to the loopback; the way to any other node does not.
    for name in [*_others(), _ELSEWHERE]:
        found = hosts.interface_to(name)
        if found not in (None, "lo"):
            return found
    return None


def traffic(name: str) -> tuple[int, int]:
    """Bytes received and sent by an interface so far."""
    for line in _root("proc/net/dev").read_text().splitlines():
        device, colon, counters = line.partition(":")
        if colon and device.strip() == name:
            fields = counters.split()
            return int(fields[0]), int(fields[8])
    raise OSError(f"there is no interface {name}")


def link_rate(name: str, scope: str) -> int | None:
    """Bits per second: the limit that was set or, on a machine, what the hardware has; None where neither is known."""
    try:
        shown = subprocess.run(["hvd-link", name, "show"], capture_output=True, text=True, timeout=10, check=False)
        if shown.stdout.strip().isdecimal():
            return int(shown.stdout)
        # The interface of a container claims a rate that means nothing.
        speed = _number(_root("sys/class/net") / name / "speed") if scope == "machine" else 0
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return speed * 10**6 if speed > 0 else None


def ranks() -> int:
    """How many ranks of jobs run here: each has one wrapper, `hvd-agent rank ID`."""
    count = 0
    for entry in _root("proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")[:5]
        except OSError:
            continue  # it has ended
        # Launchers have the same words, further on in theirs.
        count += any(words[i].endswith(b"/agent") and words[i + 1] == b"rank" for i in (1, 2) if len(words) > i + 1)
    return count


def _others() -> list[str]:
    try:
        return [name for name in hosts.listed() if name != store.here()][:4]
    except OSError:
        return []


def _allowed(quota: float | None) -> float:
    cores = float(len(os.sched_getaffinity(0)))
    return cores if quota is None else min(quota, cores)


def _group(folder: str, controller: str) -> Path:
    """The node's own cgroup: below the mount where all of the host's are seen, else the mount itself."""
    mount = _root("sys/fs/cgroup") / folder
    for line in _root("proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (mount / path.lstrip("/")).is_dir():
            return mount / path.lstrip("/")
    return mount


def _memory() -> dict[str, int]:
    facts = {}
    for line in _root("proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            facts[name] = int(value.split()[0]) * 1024
    return facts


def _pairs(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}


def _number(file: Path) -> int:
    return int(file.read_text())


def _root(*parts: str) -> Path:
    return Path(os.environ.get("HVD_SYSTEM") or "/", *parts)
