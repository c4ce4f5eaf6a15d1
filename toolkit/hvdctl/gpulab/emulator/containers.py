"""Jobs as containers of the Docker engine, on networks of the emulator's own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdctl import engine
from hvdctl.errors import HvdctlError
from hvdctl.gpulab.emulator import marks, storage
from hvdctl.gpulab.emulator.home import Home
from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.lab import NotStarted
from hvdctl.gpulab.emulator.submission import PortMapping
from hvdctl.gpulab.emulator.workers import INSTANCE, Worker

if TYPE_CHECKING:
    from docker.models.containers import Container
    from docker.models.networks import Network
    from docker.types import Mount

LABEL = "hvdctl.gpulab"
_SWEEPS = 10


class Containers:
    """The runner of a real emulator. `label` is what its things are labelled with, beside the marks of its home."""

    def __init__(self, label: str, folder: Path, workers: Sequence[Worker], *, isolate: bool = False) -> None:
        self.label = label
        self.folder = folder
        self.workers = workers
        self.isolate = isolate
        self.client = engine.client()
        self._networks: dict[str, Network] = {}
        self._ids: dict[str, str] = {}

    def open(self) -> None:
        """What an emulator on this folder left behind is gone, and the networks are there."""
        self.sweep()
        for worker in self.workers:
            key = self._key(worker)
            if key not in self._networks:
                self._networks[key] = self._network(f"{LABEL.replace('.', '-')}-{self.label}{key}")

    def sweep(self) -> None:
        """No container and no network of this folder's emulator is left."""
        from docker.errors import APIError

        of_ours: dict[str, Any] = {"label": [f"{LABEL}={self.label}", marks.mine()]}
        for last in (False,) * _SWEEPS + (True,):
            try:
                for container in self.client.containers.list(all=True, filters=of_ours, ignore_removed=True):
                    container.remove(force=True, v=True)
                for network in self.client.networks.list(filters=of_ours):
                    network.remove()
                return
            except APIError as error:
                # One that is just being made or removed holds its network for a moment.
                if last:
                    raise engine.describe(error) from error
                time.sleep(0.5)

    def host(self, worker: Worker) -> str:
        return str(self._networks[self._key(worker)].attrs["IPAM"]["Config"][0]["Gateway"])

    def start(self, job: Job) -> Sequence[PortMapping]:
        from docker.errors import DockerException

        if job.place is None:
            raise NotStarted("it has no worker")
        worker = job.place.worker
        try:
            self._pull(job)
            with storage.resolve(job, worker, self.folder) as mounts:
                container = self._make(job, worker, mounts)
                self._ids[job.uuid] = str(container.id)
                container.start()
            container.reload()
        except (DockerException, OSError) as error:
            self.remove(job.uuid)
            raise NotStarted(engine.describe(error).message) from error
        return _published(job, container)

    def follow(self, uuid: str, write: Callable[[bytes], None]) -> int:
        container = self.client.containers.get(self._ids[uuid])
        for piece in container.logs(stream=True, follow=True):
            write(piece)
        return int(container.wait()["StatusCode"])

    def stop(self, uuid: str, grace: float) -> None:
        from docker.errors import APIError, NotFound

        try:
            self.client.containers.get(self._ids[uuid]).stop(timeout=int(grace))
        except (KeyError, NotFound):
            return
        except APIError as error:
            raise engine.describe(error) from error

    def remove(self, uuid: str) -> None:
        from docker.errors import APIError

        if found := self._ids.pop(uuid, None):
            try:
                self.client.api.remove_container(found, force=True, v=True)
            except APIError:
                return  # it is being removed, or was

    def id_of(self, uuid: str) -> str | None:
        """The engine's name for a job's container, while there is one."""
        return self._ids.get(uuid)

    def _key(self, worker: Worker) -> str:
        return f"-{worker.name}" if self.isolate else ""

    def _labels(self) -> dict[str, str]:
        return {LABEL: self.label, **marks.labels()}

    def _network(self, name: str) -> Network:
        from docker.errors import APIError

        try:
            made = self.client.networks.create(name, driver="bridge", labels=self._labels())
            made.reload()  # the engine chose the addresses
            return made
        except APIError as error:
            if "address pools" in str(error):
                raise HvdctlError(
                    "the engine has no free network left", hint="docker network prune removes unused ones"
                ) from error
            raise engine.describe(error) from error

    def _make(self, job: Job, worker: Worker, mounts: storage.Mounts) -> Container:
        from docker.types import Mount

        docker = job.submission.request.docker
        network = self._networks[self._key(worker)]
        options: dict[str, Any] = {
            "name": f"{network.name}-{job.short}",
            "command": docker.command or None,
            "environment": environment(job, worker),
            "labels": self._labels() | {"hvdctl.gpulab.job": job.uuid},
            "network": network.name,
            "ports": {
                f"{one.container_port}/tcp": (job.host, one.host_port) if one.host_port else (job.host,)
                for one in docker.port_mappings
            },
            "mounts": [
                *(Mount(inside, str(outside), type="bind") for inside, outside in mounts.binds.items()),
                *(_anonymous(inside, outside) for inside, outside in mounts.opened.items()),
            ],
            "tmpfs": {inside: f"size={size}g" for inside, size in mounts.tmpfs.items()},
            "user": docker.user,
            "group_add": docker.group_add or None,
            "working_dir": docker.working_dir,
            "mem_limit": self._memory(job),
        }
        return self.client.containers.create(
            docker.reference, **{key: value for key, value in options.items() if value is not None}
        )

    def _pull(self, job: Job) -> None:
        from docker.errors import DockerException, ImageNotFound

        docker = job.submission.request.docker
        try:
            self.client.images.get(docker.reference)
        except ImageNotFound:
            job.note(f"image {docker.reference} is not there: pulling it")
            login = {"username": docker.login[0], "password": docker.login[1]} if docker.login else None
            try:
                self.client.images.pull(docker.reference, auth_config=login)
            except DockerException as error:
                said = engine.describe(error).message
                raise NotStarted(f"image {docker.reference} is not there and can't be pulled: {said}") from error

    def _memory(self, job: Job) -> int | None:
        """The limit in bytes, where this machine has more than that."""
        asked = job.memory * 1024**3
        return asked if asked < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") else None


def environment(job: Job, worker: Worker) -> dict[str, str]:
    """What the container finds in its environment: the user's own, and what GPULab tells every job."""
    docker, resources = job.submission.request.docker, job.submission.request.resources
    given = {name: _text(value) for name, value in docker.environment.items()}
    if docker.project_gid_variable_name:
        given[docker.project_gid_variable_name] = str(storage.PROJECT_GID)
    return given | {
        "GPULAB_JOB_ID": job.uuid,
        "GPULAB_USERNAME": job.user.name,
        "GPULAB_USER_URN": job.user.urn,
        "GPULAB_USERURN_NAME": job.user.name,
        "GPULAB_USERURN_AUTH": job.user.urn.split("+")[1],
        "GPULAB_PROJECT": job.project.rsplit("+", 1)[-1],
        "GPULAB_DEPLOYMENT_ENVIRONMENT": "production",
        "GPULAB_CLUSTER_ID": str(worker.cluster),
        "GPULAB_SLAVE_HOSTNAME": worker.name,
        "GPULAB_SLAVE_DNSNAME": job.host,
        "GPULAB_SLAVE_INSTANCE_ID": INSTANCE,
        "GPULAB_WORKER_ID": "0",
        "GPULAB_CPUS_RESERVED": str(resources.cpus),
        "GPULAB_GPUS_RESERVED": str(resources.gpus),
        "GPULAB_MEM_RESERVED": str(job.memory * 1024),
    }


def _anonymous(inside: str, folder: Path) -> Mount:
    """A folder that is open here: a bind in the container's own namespace can't name it, the engine's volumes can."""
    from docker.types import DriverConfig, Mount

    options = {"type": "none", "o": "bind", "device": str(folder)}
    return Mount(inside, None, type="volume", no_copy=True, driver_config=DriverConfig("local", options))


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _published(job: Job, container: Container) -> list[PortMapping]:
    found = container.attrs["NetworkSettings"]["Ports"] or {}
    mapped = []
    for one in job.submission.request.docker.port_mappings:
        bound = (found.get(f"{one.container_port}/tcp") or [{}])[0]
        mapped.append(
            PortMapping.model_validate(
                {
                    "containerPort": one.container_port,
                    "hostPort": int(bound["HostPort"]) if bound.get("HostPort") else None,
                    "hostIp": bound.get("HostIp"),
                }
            )
        )
    return mapped


def clear_killed(folder: Path) -> None:
    """Remove what killed emulators of this home left on the engine, and what the one of this folder left.

    A cluster that has the login of an emulator may belong to another home than the emulator.
    """
    from docker.errors import APIError

    label = Home(folder).last_id

    def dead(labels: dict[str, str]) -> bool:
        return (marks.ours(labels) or (bool(label) and labels.get(LABEL) == label)) and marks.ended(labels)

    client = engine.client()
    try:
        found: list[Any] = client.containers.list(all=True, filters={"label": marks.PID}, ignore_removed=True)
        for container in (one for one in found if dead(one.labels)):
            container.remove(force=True, v=True)
        for network in client.networks.list(filters={"label": marks.PID}):
            if dead(network.attrs["Labels"]):
                network.remove()
    except APIError as error:
        raise engine.describe(error) from error
    finally:
        client.close()
