"""An emulator whose containers are played, in a thread of its own, for clients that wait for their answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer
from emulator_lab import SSH, TESTER, FakeRunner
from hvdctl.gpulab.emulator.api import Api
from hvdctl.gpulab.emulator.faults import Faults
from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.lab import Lab
from hvdctl.gpulab.emulator.submission import PortMapping
from hvdctl.gpulab.emulator.workers import DEFAULT, Worker
from hvdctl.gpulab.job import Wanted

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGMyNDc2ZGVhZGJlZWZkZWFkYmVlZmRlYWRiZWVm"


def wanted(node: str = "node0", **more: Any) -> Wanted:
    given: dict[str, Any] = {
        "cluster": "demo",
        "node": node,
        "project": "urn:publicid:IDN+ilabt.imec.be+project+demo",
        "image": "hvdctl/horovod:1",
        "slots": 1,
        "cpus": None,
        "memory": None,
        "gpus": 1,
        "storage": "/project_ghent/hvdctl/demo",
        "public_key": KEY,
    }
    return Wanted(**given | more)


class Nodes(FakeRunner):
    """Containers of hvdctl's own image: each says who it is; one of an image `silent:1` says something else."""

    def start(self, job: Job) -> list[PortMapping]:
        mapped = super().start(job)
        docker = job.submission.request.docker
        if docker.image == "failing:1":
            self.say(job.uuid, b"one\ntwo\nno GPU here\n")
            self.end(job.uuid, 3)
            return mapped
        name = dict(docker.environment).get("HVD_NAME", "?")
        keys = {"host_key": "ssh-ed25519 HOST", "user_key": "ssh-ed25519 USER"}
        told = {"name": name, "address": "172.20.0.2", **keys}
        self.say(job.uuid, f"starting\nhvd-node: {json.dumps(told)}\n".encode())
        return mapped


@dataclass
class Played:
    url: str
    lab: Lab
    runner: Nodes
    faults: Path

    def inject(self, *faults: dict[str, Any]) -> None:
        self.faults.write_text(json.dumps(faults))

    @property
    def jobs(self) -> list[Job]:
        return list(self.lab.jobs.values())

    @property
    def active(self) -> list[Job]:
        return [job for job in self.jobs if job.status in ("QUEUED", "ASSIGNED", "STARTING", "RUNNING", "ONHOLD")]


@contextmanager
def played(folder: Path, workers: tuple[Worker, ...] = DEFAULT) -> Iterator[Played]:
    folder.mkdir(exist_ok=True)
    ready: threading.Event = threading.Event()
    made: list[Played] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        runner = Nodes()
        lab = Lab(runner, workers, folder, pace=0.0)
        faults = folder / "faults.json"
        api = Api(lab, SSH, Faults(faults), TESTER)
        scheduler = asyncio.create_task(lab.run())
        async with TestServer(api.app()) as server:
            made.append(Played(str(server.make_url("/api/")), lab, runner, faults))
            ready.set()
            await stop.wait()
        scheduler.cancel()
        await lab.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield made[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
