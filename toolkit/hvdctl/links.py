"""Link rates as the nodes reach them, measured with iperf3."""

from __future__ import annotations

import json
import random
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hvdctl import process, ssh
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError

# Below this share of the asked rate a link counts as short of it; headers alone take 4 to 6 percent.
ENOUGH = 0.85
_PORTS = range(20000, 30000)
_SERVER_WAIT = 15


@dataclass(frozen=True)
class Measured:
    """What one TCP connection reached from one node to another, in bits per second."""

    source: str
    target: str
    bits: float
    asked: int | None

    @property
    def short(self) -> bool:
        return self.asked is not None and self.bits < ENOUGH * self.asked

    @classmethod
    def of(cls, cluster: Cluster) -> Measured | None:
        """What was last measured; None if nothing was, or if the record of it is damaged."""
        known = cluster.record("link").get("measured")
        try:
            return TypeAdapter(cls).validate_json(json.dumps(known), strict=True)
        except ValidationError:
            return None

    def __str__(self) -> str:
        told = f"{self.source} to {self.target}: {shown(self.bits)}"
        if self.asked is None:
            return f"{told}, not limited"
        told += f" of {shown(self.asked)} asked"
        if self.short:
            told += "; the nodes can't reach it now: "
            told += "their CPUs are the limit" if self.asked >= 10**9 else "other work may use the machine"
        return told


def measure(cluster: Cluster, source: str, target: str, asked: int | None, seconds: int = 1) -> Measured:
    """Send from one node to another as fast as one connection can."""
    # Any one that no job is likely to use; both sides must agree on it beforehand.
    port = str(random.choice(_PORTS))  # noqa: S311 - not a secret
    server = ["iperf3", "--server", "--one-off", "--port", port, "--idle-timeout", str(_SERVER_WAIT)]
    listening = process.start(
        ssh.argv(cluster, target, server),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = next(node.private_address for node in cluster.nodes() if node.name == target)
    client = ["iperf3", "--client", address, "--port", port, "--time", str(seconds), "--json"]
    try:
        deadline = time.monotonic() + _SERVER_WAIT
        while True:
            done = ssh.run(cluster, source, client, timeout=seconds + 30)
            report = _report(done.stdout)
            if "sum_received" in report.get("end", {}):
                bits = float(report["end"]["sum_received"]["bits_per_second"])
                return Measured(source, target, bits, asked)
            if time.monotonic() > deadline:
                said = report.get("error") or done.stderr.strip() or f"iperf3 ended with {done.returncode}"
                raise HvdctlError(f"the link from {source} to {target} can't be measured: {said}")
            time.sleep(0.1)
    finally:
        listening.terminate()
        listening.wait()


def shown(bits: float) -> str:
    """A measured rate for people: 962 Mbit/s, 9.56 Gbit/s."""
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def _report(text: str) -> dict[str, Any]:
    """What iperf3 says; with --json its errors are in the report, and its exit code may be 0 all the same."""
    try:
        report = json.loads(text)
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}
