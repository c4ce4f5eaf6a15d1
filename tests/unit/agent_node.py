"""Runs the agent as a node does: as a program, with its own share and stand-ins for ssh and the launchers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAKES = Path(__file__).parent / "agent" / "fakes"
AGENT = Path(__file__).parents[2] / "toolkit" / "hvdctl" / "agent"
DEADLINE_S = 30.0


class Node:
    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.work = folder / "work dir"
        self.work.mkdir()
        self.env = os.environ | {
            "HVD_RUNS": str(self.runs),
            "HVD_GRACE": "1",
            "PATH": f"{FAKES / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(FAKES),
        }

    agent = AGENT

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(AGENT), *words], env=self.env, **options)

    def call(self, *words: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(AGENT), *words],
            env=self.env,
            input="" if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ask(self, *words: str, stdin: Any = None) -> Any:
        done = self.call(*words, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def submit(self, *command: str, np: int = 2, **fields: Any) -> int:
        request = {
            "command": list(command),
            "np": np,
            "launcher": "horovod",
            "hosts": [["localhost", np]],
            "env": {},
            "workdir": str(self.work),
            "interface": None,
            "threads": 1,
            "id": None,
            "user_command": " ".join(command),
        }
        answer = self.ask("submit", stdin=request | fields)
        run_id: int = answer["id"]
        return run_id

    def finished(self, run_id: int) -> dict[str, Any]:
        """The run's record once it is over."""
        wait_for(lambda: self.ask("show", str(run_id))["state"] not in ("starting", "running"))
        record: dict[str, Any] = self.ask("show", str(run_id))
        return record

    def log(self, run_id: int, name: str = "output.log") -> str:
        path = self.runs / str(run_id) / name
        return path.read_text() if path.exists() else ""

    def processes(self, run_id: int) -> list[int]:
        """Every process that carries one of the run's marks and this share."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            except OSError:
                continue
            marks = {f"HVDCTL_RUN={run_id}".encode(), f"HVDCTL_LAUNCH={run_id}".encode()}
            if marks & set(environ) and f"HVD_RUNS={self.runs}".encode() in environ:
                found.append(int(entry.name))
        return found


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.02)
    return value
