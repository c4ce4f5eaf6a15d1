"""A lab whose containers are played: what they say and how they end is up to the test."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from hvdctl.gpulab.emulator import pki, submission
from hvdctl.gpulab.emulator.api import BASE, Api
from hvdctl.gpulab.emulator.faults import Faults
from hvdctl.gpulab.emulator.jobs import Address, Job, User
from hvdctl.gpulab.emulator.lab import Lab, NotStarted
from hvdctl.gpulab.emulator.submission import PortMapping
from hvdctl.gpulab.emulator.workers import DEFAULT, Worker

T = TypeVar("T")
TESTER = User(pki.user_urn(), pki.email_of())
SSH = Address("127.0.0.1", 2222)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGMyNDc2ZGVhZGJlZWZkZWFkYmVlZmRlYWRiZWVm"


def body(name: str = "w0", project: str = "demo", **parts: Any) -> dict[str, Any]:
    """A request as a client sends it; each part is merged into its own."""
    request = {
        "resources": {"cpus": 1, "gpus": 1, "cpuMemoryGb": 2} | parts.get("resources", {}),
        "docker": {"image": "tiny:1", "command": ["sleep", "1"]} | parts.get("docker", {}),
        "scheduling": parts.get("scheduling", {}),
        "extra": {"sshPubKeys": [KEY]} | parts.get("extra", {}),
    }
    return {"name": name, "owner": {"projectUrn": pki.project_urn(project)}, "request": request}


def parsed(**parts: Any) -> submission.Submission:
    return submission.parse(json.dumps(body(**parts)).encode())


@dataclass
class FakeRunner:
    """Containers that run until the test, or somebody who asks for it, ends them."""

    ends: dict[str, queue.Queue[tuple[bytes, int | None]]] = field(default_factory=dict)
    stopped: dict[str, float] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)

    def host(self, worker: Worker) -> str:
        return "192.0.2.1"

    def start(self, job: Job) -> list[PortMapping]:
        docker = job.submission.request.docker
        if docker.image == "missing:1":
            raise NotStarted("image missing:1 is not there")
        self.ends[job.uuid] = queue.Queue()
        return [
            PortMapping(containerPort=one.container_port, hostPort=30000 + place, hostIp="192.0.2.1")
            for place, one in enumerate(docker.port_mappings)
        ]

    def follow(self, uuid: str, write: Callable[[bytes], None]) -> int:
        while True:
            said, code = self.ends[uuid].get()
            write(said)
            if code is not None:
                return code

    def say(self, uuid: str, said: bytes) -> None:
        self.ends[uuid].put((said, None))

    def end(self, uuid: str, code: int) -> None:
        self.ends[uuid].put((b"", code))

    def stop(self, uuid: str, grace: float) -> None:
        self.stopped[uuid] = grace
        if uuid in self.ends:
            self.end(uuid, 143)

    def remove(self, uuid: str) -> None:
        self.removed.append(uuid)


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(20):
            return await work()

    return asyncio.run(bounded())


async def until(what: Callable[[], Any]) -> Any:
    """What the look finds, as soon as it finds anything."""
    deadline = time.monotonic() + 10
    while not (found := what()):
        assert time.monotonic() < deadline, "nothing within the time"
        await asyncio.sleep(0.005)
    return found


async def reaches(job: Job, status: str) -> None:
    await until(lambda: job.status == status)


@dataclass
class Bench:
    """A lab at work with its API on loopback, for one user without a certificate."""

    lab: Lab
    runner: FakeRunner
    api: Api
    client: TestClient[Any, Any]

    async def call(self, method: str, path: str, **more: Any) -> tuple[ClientResponse, str]:
        answer = await self.client.request(method, BASE + path, **more)
        return answer, await answer.text()

    async def submit(self, query: str = "", **parts: Any) -> Job:
        answer, text = await self.call("POST", f"jobs{query}", json=body(**parts))
        assert answer.status == 200, text
        return self.lab.jobs[text]

    async def get(self, path: str) -> Any:
        answer, text = await self.call("GET", path)
        assert answer.status == 200, text
        return json.loads(text)

    async def put(self, job: Job, state: str) -> int:
        answer, _ = await self.call("PUT", f"jobs/{job.uuid}/state/status", data=state.encode())
        return answer.status

    async def running(self, **parts: Any) -> Job:
        job = await self.submit(**parts)
        await reaches(job, "RUNNING")
        return job


def with_bench(
    folder: Path,
    work: Callable[[Bench], Awaitable[None]],
    *,
    pace: float = 0.0,
    faults: Path | None = None,
    workers: tuple[Worker, ...] = DEFAULT,
) -> None:
    async def all_of_it() -> None:
        runner = FakeRunner()
        folder.mkdir(exist_ok=True)
        lab = Lab(runner, workers, folder, pace=pace)
        api = Api(lab, SSH, Faults(faults), TESTER)
        scheduler = asyncio.create_task(lab.run())
        async with TestClient(TestServer(api.app())) as client:
            try:
                await work(Bench(lab, runner, api, client))
                assert not scheduler.done(), scheduler.exception()
            finally:
                scheduler.cancel()
                await lab.close()

    run(all_of_it)
