"""What several test modules share."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import engine as engine_module
from hvdctl import owner
from hvdctl.cluster import Cluster, Node

IMAGE = "test/node:1"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Hvdctl = Callable[..., Result]


def make_nodes(count: int, slots: int = 1) -> list[Node]:
    return [
        Node(
            id=f"id{index}",
            name=f"node{index}",
            role="worker" if index else "head",
            kind="container",
            address=f"10.99.0.{index + 2}",
            private_address=f"10.99.0.{index + 2}",
            ssh_user="hvd",
            ssh_port=2222,
            ssh_proxy=None,
            slots=slots,
            gpus=0,
        )
        for index in range(count)
    ]


def wait_for(what: Callable[[], object], seconds: float = 30) -> object:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends_at_once(waiting: subprocess.Popen[str], asked: Path) -> None:
    """Ctrl-C ends the process at once, and so those that it has started, whose ids are in the file."""
    pressed = time.monotonic()
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=60)
    assert time.monotonic() - pressed < 10
    assert said.rstrip().endswith("KeyboardInterrupt")
    wait_for(lambda: not any(runs(int(pid)) for pid in asked.read_text().split()))


def started_with(variable: str) -> list[int]:
    """The processes, but for this one, that have NAME=VALUE in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if variable.encode() in variables and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def hold(name: str = "demo") -> subprocess.Popen[str]:
    """Another process that has the cluster."""
    script = (
        "import sys\n"
        "from hvdctl.cluster import Cluster\n"
        f"with Cluster({name!r}).locked('up --nodes 10'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


RECORD = {"id": 3, "state": "succeeded", "np": 4, "launcher": "horovod", "exit_code": 0, "user_command": "x"}


def answer(nodes: Path, verb: str, data: object, code: int = 0) -> None:
    (nodes / f"{verb}.json").write_text(json.dumps(data))
    (nodes / f"{verb}.code").write_text(str(code))


def keep(cluster: Cluster, run: int, **facts: Any) -> Path:
    folder = cluster.runs / str(run)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**RECORD, "id": run, **facts}))
    return folder


def refuse(patch: pytest.MonkeyPatch, *folders: Path) -> None:
    """These folders and all in them are of another account: root, which tests may run as, could read all."""

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **more: Any) -> Any:
            if isinstance(path, str | Path) and any(folder in Path(path).parents for folder in folders):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *rest, **more)

        return call

    for module, name in ((os, "stat"), (os, "lstat"), (os, "open"), (io, "open")):
        patch.setattr(module, name, refusing(getattr(module, name)))


def stand(engine: FakeEngine, *nodes: str, cluster: str = "demo", labels: dict[str, str] | None = None) -> None:
    """Containers of a cluster that run; without other labels, with the owner mark of this home."""
    client = engine_module.client()
    marks = owner.this().labels if labels is None else labels
    for node in nodes:
        labels = {"hvdctl.cluster": cluster, "hvdctl.name": node, **marks}
        client.containers.create(IMAGE, name=f"hvdctl-{cluster}-{node}", labels=labels).start()


def program(folder: Path, name: str, text: str) -> None:
    """A program of a test's own, in a folder for PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
