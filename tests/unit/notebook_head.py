"""A head of two nodes on this machine: the real agent, with the stand-ins of its own tests for ssh and horovodrun."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

AGENT = Path(__file__).parents[2] / "toolkit" / "hvdctl" / "agent"
FAKES = Path(__file__).parent / "agent" / "fakes"


class Head:
    def __init__(self, folder: Path) -> None:
        self.share = folder / "shared"
        self.runs = self.share / "runs"
        self.file = folder / "cluster.json"
        self.share.mkdir()
        self.describe()

    def describe(self, **facts: Any) -> None:
        """cluster.json, with these facts in place of the usual ones."""
        nodes = [
            {
                "name": "localhost",
                "role": "head",
                "kind": "container",
                "id": "a",
                "slots": 1,
                "gpus": 0,
                "address": "::1",
            },
            {
                "name": "node1",
                "role": "worker",
                "kind": "container",
                "id": "b",
                "slots": 1,
                "gpus": 0,
                "address": "::2",
            },
        ]
        usual = {"cluster": "demo", "provider": "local", "framework": "pytorch", "net": 10**9, "nodes": nodes}
        usual |= {"env": {"FROM_SPEC": "yes"}, "cpus": None, "interface": None, "image": "test/node:1"}
        usual |= {"one_machine": True, "about": "", "hvdctl": "0.1.0"}
        self.file.write_text(json.dumps(usual | facts))

    def records(self) -> list[dict[str, Any]]:
        """Every run as the agent knows it."""
        done = subprocess.run(["hvd-agent", "list"], capture_output=True, check=True)
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def left(self) -> list[Path]:
        """What is on the share of calls that are over."""
        folder = self.share / ".hvd_cluster"
        return list(folder.iterdir()) if folder.exists() else []

    def processes(self) -> list[int]:
        """Ranks and all else that a run started."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            except OSError:
                continue
            ours = f"HVD_RUNS={self.runs}".encode() in environ
            if ours and any(word.startswith((b"HVDCTL_RUN=", b"HVDCTL_LAUNCH=")) for word in environ):
                found.append(int(entry.name))
        return found


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.02)
    return value
