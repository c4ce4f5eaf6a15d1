"""The box that hvdctl is called in, and what holds for every call.

hvdctl runs in this process with folders of its own and without a network. The engine is the small one of the unit
tests; terraform plans nothing and can't apply, ssh gives one answer to everything, and no image is built.
Whatever the input, it ends in time, with a documented exit code and without a traceback, and a refusal makes nothing.
"""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer.main
import yaml
from hvdctl import cli, images, inventory
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError
from hvdctl.spec import Spec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit"))
from fake_engine import FakeEngine  # noqa: E402
from support import make_nodes  # noqa: E402

RESULTS = ROOT / "docs" / "results" / "slices" / "results.jsonl"
SECONDS = 60
# Of these a call may change something that is there, unless it is refused.
WRITES = {"up", "scale", "down", "run", "logs", "cancel", "pull", "report", "jupyter", "tune", "bench", "stage"}
PROGRAMS = {
    "terraform": '[ "$1" != apply ] && [ "$1" != destroy ] || exit 1',
    "ssh": 'cat "$HVDCTL_FUZZ_ANSWER"',
    "rsync": "exit 0",
    "cat": 'exec /bin/cat "$@"',
}
# What a command that holds a cluster or plans for it leaves in its folder.
_OWN = (("lock",), ("logs",), ("ansible",), ("jupyter",), ("terraform",), ("ssh",))
CODES = {0, 1, 2, 3, 4, 130}


class Hang(BaseException):
    """An input that takes too long; no `except Exception` may swallow it."""


@dataclass(frozen=True)
class Told:
    code: int
    out: str
    err: str


class Box:
    """A home with a cluster `demo` or without, and hvdctl in it."""

    def __init__(self, root: Path, engine: FakeEngine) -> None:
        self.home, self.here, self.answer, self.engine = root / "home", root / "here", root / "answer", engine
        self._stored = root / "stored"
        os.environ["HVDCTL_HOME"] = str(self._stored)
        _store_cluster()
        os.environ["HVDCTL_HOME"] = str(self.home)

    def clean(self, *, cluster: bool = False) -> None:
        os.chdir("/")
        for folder in (self.home, self.here):
            shutil.rmtree(folder, ignore_errors=True)
        self.here.mkdir()
        if cluster:
            shutil.copytree(self._stored, self.home)
        os.chdir(self.here)
        self.answer.write_text("{}")

    def call(self, *words: str) -> Told:
        """Run hvdctl and check what holds for every call."""
        before = self._files()
        told = _called(words)
        shown = f"hvdctl {' '.join(words)!r:.300}: exit {told.code}\n{told.err[-1500:]}"
        assert "defect of hvdctl" not in told.err and "Traceback" not in told.err, shown
        assert told.code in CODES, shown
        assert told.code == 0 or told.err.strip() or told.out.strip(), f"no word about an error: {shown}"
        if words[0] not in WRITES or told.code in {2, 3, 4}:
            made = sorted({*before.items()} ^ {*self._files().items()})
            assert not made, f"changed {made[0][0]}: {shown}"
        held = [name for kind in ("containers", "networks", "volumes") for name in self.engine.names(kind)]
        assert not held, f"made {held}: {shown}"
        return told

    def _files(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() if path.is_file() else b""
            for folder in (self.home, self.here)
            for path in sorted(folder.rglob("*"))
            if path.relative_to(folder).parts[1:2] not in _OWN and path.relative_to(folder).parts[0] != ".owner"
        }


@contextmanager
def boxed() -> Iterator[Box]:
    """A box, and everything of this process as it was afterwards."""
    environment, folder, argv, command = dict(os.environ), Path.cwd(), sys.argv, typer.main.get_command
    temporary, connect, resolve = tempfile.tempdir, socket.socket.connect, socket.getaddrinfo
    alarm = signal.signal(signal.SIGALRM, _hang)
    build = images.build_all
    with tempfile.TemporaryDirectory(prefix="hvdctl-fuzz-") as name:
        root = Path(name)
        engine = FakeEngine(root / "engine.sock")
        try:
            for part in ("bin", "tmp", "user"):
                (root / part).mkdir()
            for program, text in PROGRAMS.items():
                (root / "bin" / program).write_text(f"#!/bin/sh\n{text}\n")
                (root / "bin" / program).chmod(0o755)
            os.environ.clear()
            os.environ.update(
                PATH=str(root / "bin"),
                HOME=str(root / "user"),
                HVDCTL_CACHE=str(root / "cache"),
                DOCKER_HOST=engine.url,
                HVDCTL_FUZZ_ANSWER=str(root / "answer"),
                AWS_MAX_ATTEMPTS="1",
                AWS_EC2_METADATA_DISABLED="true",
                NO_COLOR="1",
                COLUMNS="200",
            )
            tempfile.tempdir = str(root / "tmp")
            # Typer builds the parser of all commands for every call, which takes longer than most commands.
            typer.main.get_command = functools.cache(command)
            images.build_all = _no_image
            socket.socket.connect = _connector(connect)  # type: ignore[method-assign, assignment]
            socket.getaddrinfo = _resolve
            yield Box(root, engine)
        finally:
            engine.close()
            images.build_all = build
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv, tempfile.tempdir = argv, temporary
            typer.main.get_command = command
            socket.socket.connect = connect  # type: ignore[method-assign]
            socket.getaddrinfo = resolve
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)


def _connector(real: Callable[[socket.socket, Any], None]) -> Callable[[socket.socket, Any], None]:
    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            raise ConnectionRefusedError(111, "Connection refused")
        real(self, address)

    return connect


def _no_image(*_: Any, **__: Any) -> NoReturn:
    raise HvdctlError("no image is built here")


def _resolve(*_: Any, **__: Any) -> NoReturn:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def _hang(*_: Any) -> NoReturn:
    raise Hang


def _called(words: tuple[str, ...]) -> Told:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    saved = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["hvdctl", *words]
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), out, err
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        cli.main()
        code: object = 0
    except SystemExit as left:
        code = left.code
    except Hang:
        raise AssertionError(f"hvdctl {' '.join(words)!r:.300} takes more than {SECONDS} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdin, sys.stdout, sys.stderr = saved
    read = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    return Told(code if isinstance(code, int) else int(bool(code)), *read)


def _store_cluster() -> None:
    """A cluster `demo`, as `up` leaves its folder, with a run and a bench."""
    cluster = Cluster("demo")
    nodes = make_nodes(2, slots=2)
    cluster.store_spec(Spec(name="demo", nodes=2, slots=2, image="test/node:1", net=10**9))
    cluster.store_nodes(nodes)
    cluster.complete("provision", 1.0, module="m")
    cluster.complete("configure", 1.0, digest="d", ids=[node.id for node in nodes], jupyter=True)
    cluster.complete(
        "link", 1.0, digest="d", measured={"source": "node0", "target": "node1", "bits": 9e8, "asked": 10**9}
    )
    host_keys = {node.name: (cluster.host_key(node.name).public,) for node in nodes}
    write(cluster.known_hosts, inventory.known_hosts("demo", host_keys))
    write(cluster.ssh_config, inventory.ssh_config("demo", nodes, cluster.key().private, cluster.known_hosts))
    write(cluster.inventory, yaml.safe_dump(inventory.inventory("demo", nodes, cluster.ssh_config)))
    write(cluster.terraform / "terraform.tfstate", json.dumps({"version": 4, "resources": []}))
    write(
        cluster.terraform / "terraform.tfvars.json", json.dumps({"cluster": "demo", "nodes": 2, "image": "test/node:1"})
    )
    write(cluster.folder / "profile.json", json.dumps(PROFILE))
    write(cluster.runs / "1" / "run.json", json.dumps(RUN))
    write(cluster.runs / "1" / "output.log", "[rank 0 node0] hello\n")
    write(cluster.folder / "bench" / "20261118-031500" / "results.jsonl", lines(few_records()))


PROFILE = {"launcher": "horovod", "threads": 1, "fusion_mb": 64.0, "cycle_ms": 1.0, "layout": "2x2", "net": "1g"}
PROFILE |= {"measured": "20261118", "gain": 1.1, "gain_low": 1.0, "gain_high": 1.2}
RUN = {"id": 1, "state": "succeeded", "np": 4, "launcher": "horovod", "exit_code": 0, "user_command": "python x.py"}
RUN |= {"command": ["python", "x.py"], "started": 1.0, "ended": 2.5, "duration_s": 1.5, "hosts": [["node0", 2]]}
RUN |= {"env": [], "failed_rank": None, "reason": None, "supervisor": {"node": "node0", "pid": 7}}


@functools.cache
def _records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


@functools.cache
def few_records() -> list[dict[str, Any]]:
    """One or two records of each kind: figures take their time."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in _records():
        kinds.setdefault(record["kind"], []).append(record)
    return [record for kind, found in kinds.items() for record in found[: 3 if kind == "point" else 1]]


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
