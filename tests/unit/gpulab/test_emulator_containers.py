"""What the engine is asked for, and how its streams are read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound
from emulator_lab import TESTER, parsed
from hvdctl import engine
from hvdctl.gpulab.emulator.containers import Containers
from hvdctl.gpulab.emulator.execs import Exec
from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.lab import NotStarted
from hvdctl.gpulab.emulator.schedule import Place
from hvdctl.gpulab.emulator.workers import DEFAULT


class Thing:
    def __init__(self, name: str, **attrs: Any) -> None:
        self.name = self.id = name
        self.attrs = attrs
        self.started = False

    def reload(self) -> None: ...

    def start(self) -> None:
        self.started = True


class Stub:
    """The part of Docker's SDK that jobs need; `asked` is what containers were made of."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.labels: list[dict[str, str]] = []
        self.pulled: list[tuple[str, Any]] = []
        self.images = self.containers = self.networks = self

    def list(self, **_: Any) -> list[Thing]:
        return []

    def get(self, name: str) -> Thing:
        if name.startswith("missing"):
            raise ImageNotFound("no such image")
        return Thing(name)

    def pull(self, name: str, auth_config: Any = None) -> None:
        self.pulled.append((name, auth_config))
        raise APIError("refused")

    def create(self, what: str, **options: Any) -> Thing:
        self.labels.append(options["labels"])
        if "driver" in options:
            number = len(self.labels)
            return Thing(what, IPAM={"Config": [{"Gateway": f"192.0.2.{number}"}]})
        self.asked = options | {"image": what}
        bound = {port: [{"HostIp": to[0], "HostPort": str((*to, 32768)[1])}] for port, to in options["ports"].items()}
        return Thing(what, NetworkSettings={"Ports": bound})


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub()
    monkeypatch.setattr(engine, "client", lambda timeout=60: made)
    return made


def placed(runner: Containers, **docker: Any) -> Job:
    job = Job(parsed(docker=docker, resources={"cpuMemoryGb": 1}), TESTER)
    job.place = Place(DEFAULT[0], (0,), (0,))
    job.host = runner.host(DEFAULT[0])
    return job


def opened(folder: Path, *, isolate: bool = False) -> Containers:
    runner = Containers("id", folder, DEFAULT, isolate=isolate)
    runner.open()
    return runner


def test_ports_are_published_on_the_worker_s_address_only(stub: Stub, tmp_path: Path) -> None:
    runner = opened(tmp_path)
    job = placed(runner, portMappings=[22, {"containerPort": 80, "hostPort": 8080, "hostIp": "0.0.0.0"}])
    found = runner.start(job)
    assert stub.asked["ports"] == {"22/tcp": ("192.0.2.1",), "80/tcp": ("192.0.2.1", 8080)}
    assert [(one.container_port, one.host_port, one.host_ip) for one in found] == [
        (22, 32768, "192.0.2.1"),
        (80, 8080, "192.0.2.1"),
    ]


def test_what_a_job_asks_for_is_what_the_engine_gets(stub: Stub, tmp_path: Path) -> None:
    runner = opened(tmp_path)
    job = placed(
        runner,
        image="me:secret@tiny:1",
        command="echo 'a b'",
        user="root",
        groupAdd=["users"],
        workingDir="/p/",
        storage=[{"hostPath": "tmpfs", "containerPath": "/t", "sizeGb": 1}, "/project_ghent"],
    )
    runner.start(job)
    asked = stub.asked
    assert (asked["image"], asked["command"], asked["user"]) == ("tiny:1", "echo 'a b'", "root")
    assert (asked["group_add"], asked["working_dir"], asked["tmpfs"]) == (["users"], "/p/", {"/t": "size=1g"})
    assert [(one["Target"], one["Type"]) for one in asked["mounts"]] == [("/project_ghent", "bind")]
    assert asked["mem_limit"] == 2 * 1024**3
    assert "hostname" not in asked
    assert all(labels["hvdctl.gpulab"] == "id" and "hvdctl.cluster" not in labels for labels in stub.labels)


def test_an_image_s_own_command_is_left_alone(stub: Stub, tmp_path: Path) -> None:
    runner = opened(tmp_path)
    runner.start(placed(runner, command=[]))
    assert "command" not in stub.asked


@pytest.mark.parametrize(("isolate", "networks"), [(False, 1), (True, 4)])
def test_isolated_workers_have_a_network_each(stub: Stub, tmp_path: Path, isolate: bool, networks: int) -> None:
    runner = opened(tmp_path, isolate=isolate)
    assert len({runner.host(worker) for worker in DEFAULT}) == networks


def test_an_image_that_is_not_there_is_pulled_with_its_login(stub: Stub, tmp_path: Path) -> None:
    runner = opened(tmp_path)
    with pytest.raises(NotStarted, match=r"image missing/x:1 is not there and can't be pulled"):
        runner.start(placed(runner, image="me:secret@missing/x:1"))
    assert stub.pulled == [("missing/x:1", {"username": "me", "password": "secret"})]


def test_the_streams_of_a_program_come_apart() -> None:
    frames = b"\1\0\0\0\0\0\0\5hello" + b"\1\0\0\0\0\0\0\0" + b"\2\0\0\0\0\0\0\3err" + b"\1\0\0\0"
    running = Exec(None, "c", ["x"], None)  # type: ignore[arg-type]
    running._reader = io.BufferedReader(io.BytesIO(frames))
    assert [running.read(), running.read(), running.read()] == [(False, b"hello"), (True, b"err"), None]
