from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from fake_engine import FakeEngine
from fake_guests import NETWORK, Machine
from hvdctl import cli, inventory, neighbours, qemu
from hvdctl.cluster import Cluster, write
from hvdctl.spec import Spec
from support import IMAGE, Hvdctl, Result, make_nodes, started_with, wait_for

FAKES = Path(__file__).parent / "fakes"
# Typer builds the parser of all commands for every call, which takes longer than most commands.
parser = cache(typer.main.get_command)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """In the background of a script Ctrl-C is ignored, also by all that is started there; here it must not be."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's is read or written, no engine answers and no guest runs."""
    monkeypatch.setattr(qemu, "processes", lambda program="": [])
    monkeypatch.setattr(neighbours, "LIMIT", tmp_path / "no-limit")
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "clusters"))
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in [name for name in os.environ if name.startswith(("TF_", "ANSIBLE_", "GPULAB_", "HVDCTL_GPULAB"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def hvdctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Hvdctl:
    """The command line as a user calls it, in a folder of its own: exit code, stdout and stderr."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(typer.main, "get_command", parser)

    def call(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["hvdctl", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        told = capfd.readouterr()
        code = left.value.code
        return Result(code if isinstance(code, int) else 0, told.out, told.err)

    return call


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """A Docker engine with one image and nothing else."""
    # Paths of sockets are short, those of pytest need not be.
    folder = Path(tempfile.mkdtemp(prefix="hvd"))
    made = FakeEngine(folder / "s")
    monkeypatch.setenv("DOCKER_HOST", made.url)
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Puts a folder of programs before all others."""

    def add(folder: Path) -> None:
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return add


@pytest.fixture
def fake_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: Callable[[Path], None]) -> Iterator[Path]:
    """ssh, rsync, iperf3 and hvd-agent that act on this folder in place of nodes; none may outlive the test."""
    folder = tmp_path / "nodes"
    folder.mkdir()
    monkeypatch.setenv("FAKE_NODES", str(folder))
    on_path(FAKES / "nodes")
    yield folder
    wait_for(lambda: not started_with(f"FAKE_NODES={folder}"))


@pytest.fixture
def fake_terraform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: Callable[[Path], None]) -> Path:
    """A terraform that says what this folder's files hold."""
    folder = tmp_path / "fake-terraform"
    folder.mkdir()
    monkeypatch.setenv("FAKE_TERRAFORM", str(folder))
    on_path(FAKES / "terraform")
    return folder


@pytest.fixture
def cluster() -> Cluster:
    """A cluster `demo` of two nodes of two slots, as `up` leaves its folder."""
    made = Cluster("demo")
    nodes = make_nodes(2, slots=2)
    made.store_spec(Spec(name="demo", nodes=2, slots=2, image=IMAGE, net=10**9))
    made.store_nodes(nodes)
    made.complete("configure", 1.0, digest="d", ids=[node.id for node in nodes])
    host_keys = {node.name: (made.host_key(node.name).public,) for node in nodes}
    write(made.known_hosts, inventory.known_hosts("demo", host_keys))
    write(made.ssh_config, inventory.ssh_config("demo", nodes, made.key().private, made.known_hosts))
    return made


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """This machine, with guests and switches that are no processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "run"))
    return Machine(monkeypatch)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The folder of a machine image."""
    folder = tmp_path / "image"
    folder.mkdir()
    for name in ("disk.raw", "vmlinuz", "initrd"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def switch(here: Machine) -> dict[str, Any]:
    from hvdctl.tfprovider.machine import HvdSwitch
    from hvdctl.tfprovider.provider import HvdProvider
    from test_tfprovider import Caller

    made: dict[str, Any] = Caller(HvdSwitch(HvdProvider())).create(NETWORK)
    return made


@pytest.fixture
def planned(tmp_path: Path, image: Path, switch: dict[str, Any]) -> dict[str, Any]:
    key = tmp_path / "host key"
    key.write_text("-----BEGIN\nPRIVATE")
    return {
        "cluster": "demo",
        "name": "node1",
        "labels": None,
        "image": str(image),
        "switch": switch["id"],
        "socket": switch["socket"],
        "cpus": 1.5,
        "memory": 2 * 2**30,
        "disk": 20 * 2**30,
        "private_address": "10.87.0.2/16",
        "internet": False,
        "user_data": f'#cloud-config\nssh_keys: {{"ed25519_private": "@file:{key}"}}\n',
    }
