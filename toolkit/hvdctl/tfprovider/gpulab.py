"""hvd_gpulab_job: one job of GPULab that is a node of a Horovod cluster."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tf.iface import Config, State
from tf.schema import Attribute, Schema
from tf.types import List, Number, String

from hvdctl import owner
from hvdctl.errors import HvdctlError
from hvdctl.gpulab.job import NOT_WAITED, RUNNING, SSH_PORT, Job, Named, Told, Wanted, announced
from hvdctl.gpulab.service import Account, Service
from hvdctl.tfprovider.resource import EngineResource, common

_LOOK_FIRST, _LOOK_LAST = 0.5, 3.0
_ANNOUNCED_PATIENCE = 120.0
_TAIL = 5
_TOLD = ("id", "address", "ssh_port", "ssh_proxy", "private_address", "host_key", "user_key", "on")


class Gpulab:
    """The service for one run of Terraform, shared by all jobs: where one fails, the others are not waited for."""

    def __init__(self, config: Config) -> None:
        self._config = config or {}
        self.failed = threading.Event()

    @cached_property
    def service(self) -> Service:
        return Service(
            Account(
                server=self._config.get("gpulab_server") or "",
                certificate=Path(self._config.get("gpulab_certificate") or ""),
                server_certificate=_path(self._config.get("gpulab_server_certificate")),
                passphrase_file=_path(self._config.get("gpulab_passphrase_file")),
            )
        )

    @property
    def patience(self) -> float:
        """Seconds that a job may take until it runs."""
        return float(self._config.get("gpulab_wait") or 0)


def settings() -> list[Attribute]:
    """What the provider block takes."""
    return [
        Attribute("gpulab_server", String(), optional=True, description="Address of GPULab's API"),
        Attribute(
            "gpulab_certificate", String(), optional=True, description="File with the login's key and certificate"
        ),
        Attribute("gpulab_server_certificate", String(), optional=True, description="Authority of the server's own"),
        Attribute("gpulab_passphrase_file", String(), optional=True, description="File with the key's pass phrase"),
        Attribute("gpulab_wait", Number(), optional=True, description="Seconds until a job must run"),
    ]


class HvdGpulabJob(EngineResource):
    kind = "job"

    @classmethod
    def get_name(cls) -> str:
        return "gpulab_job"

    @classmethod
    def get_schema(cls) -> Schema:
        text, number, texts = String(), Number(), List(String())

        def fixed(name: str, kind: Any, description: str, *, needed: bool = False) -> Attribute:
            return Attribute(
                name, kind, required=needed, optional=not needed, requires_replace=True, description=description
            )

        def told(name: str, kind: Any, description: str) -> Attribute:
            return Attribute(name, kind, computed=True, description=description)

        return Schema(
            version=1,
            attributes=[
                *common(),
                fixed("project", text, "URN of the project", needed=True),
                fixed("image", text, "Image, in a registry that GPULab reaches", needed=True),
                fixed("slots", number, "Ranks that the node takes", needed=True),
                fixed("gpus", number, "GPUs", needed=True),
                fixed("cpus", number, "CPUs"),
                fixed("memory", number, "Bytes"),
                fixed("storage", text, "Folder of the project's storage that is /shared", needed=True),
                fixed("ssh_public_key", text, "May log in", needed=True),
                fixed("gpu_model", texts, "GPU models, any of them"),
                fixed("gpu_memory", number, "GB of a GPU"),
                fixed("min_cuda", number, "Version of CUDA that the worker must have"),
                fixed("cluster_id", number, "GPULab's own cluster"),
                fixed("worker", text, "Worker host"),
                fixed("min_duration", text, "From then on GPULab may end it", needed=True),
                fixed("max_duration", text, "Then GPULab ends it", needed=True),
                fixed("reservations", texts, "Reservations to be used"),
                told("address", text, "Worker host"),
                told("ssh_port", number, "Port of the worker host that leads to the node's sshd"),
                told("ssh_proxy", text, "Bastion, as user@host:port"),
                told("private_address", text, "The container's own address"),
                told("host_key", text, "The node's own host key, public"),
                told("user_key", text, "The key with which the node logs in on others, public"),
                told("on", text, "Name of the worker"),
            ],
        )

    def make(self, planned: State) -> State:
        gpulab = self.provider.gpulab
        try:
            job = self._running(gpulab.service.submit(_wanted(planned)))
            told = self._announced(job, planned["name"])
            # Ports may be told some moments after the container started.
            job = gpulab.service.job(job.uuid) or job
            if SSH_PORT not in job.ports or not job.host:
                raise HvdctlError(f"job {job.uuid} runs, but GPULab gives no host port for its port {SSH_PORT}")
        except HvdctlError:
            gpulab.failed.set()
            raise
        return {**planned, "id": job.uuid, **_said(told), **_place(job)}

    def look(self, current: State) -> State | None:
        """The job as it stands; None where it ended in whatever way, so that it is submitted anew."""
        job = self.provider.gpulab.service.job(current["id"])
        if job is None or job.gone:
            return None
        return {**current, **{key: value for key, value in _place(job).items() if value is not None}}

    def change(self, current: State, planned: State) -> State:
        return {**planned, **{key: current[key] for key in _TOLD}}

    def remove(self, current: State) -> None:
        service = self.provider.gpulab.service
        if job := service.job(current["id"]):
            service.remove([job])

    def find(self, engine_name: str) -> State | None:
        """By its id. What it was asked with is told by the service in other words: the next apply compares anew."""
        service = self.provider.gpulab.service
        job = service.job(engine_name)
        named = Named.of(job.name) if job else None
        told = announced(service.log(job.uuid), named.node) if job and named else None
        if job is None or named is None or told is None:
            return None
        known = {attribute.name: None for attribute in self.get_schema().attributes}
        whose = {"cluster": named.cluster, "name": named.node, "id": job.uuid}
        return {**known, **whose, **_said(told), **_place(job)}

    def _running(self, job: Job) -> Job:
        """The job when it runs; an error with the service's own words where it ended or waits for too long."""
        gpulab = self.provider.gpulab
        deadline = time.monotonic() + gpulab.patience
        pause = _LOOK_FIRST
        while job.status != RUNNING:
            if job.gone:
                raise HvdctlError(f"job {job.uuid} is {job.status}: {self._last_words(job)}")
            waits = f"job {job.uuid} is {job.status}" + (f": {job.why}" if job.why else "")
            if time.monotonic() > deadline:
                raise HvdctlError(f"{waits} (after {gpulab.patience:.0f} s)")
            if gpulab.failed.wait(pause):
                raise HvdctlError(f"{waits} ({NOT_WAITED})")
            pause = min(pause * 1.5, _LOOK_LAST)
            job = gpulab.service.job(job.uuid) or _deleted(job)
        return job

    def _announced(self, job: Job, node: str) -> Told:
        """What the node says of itself, some moments after its container started."""
        service = self.provider.gpulab.service
        deadline = time.monotonic() + _ANNOUNCED_PATIENCE
        pause = _LOOK_FIRST / 2
        while not (told := announced(service.log(job.uuid), node)):
            now = service.job(job.uuid) or _deleted(job)
            if now.gone:
                raise HvdctlError(f"job {job.uuid} is {now.status} at its start: {self._last_words(job)}")
            if time.monotonic() > deadline:
                raise HvdctlError(
                    f"job {job.uuid} runs, but its image does not say what hvdctl's images say in their log: "
                    f"{self._last_words(job)}"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LOOK_LAST)
        return told

    def _last_words(self, job: Job) -> str:
        """The end of its log, else what the service wrote down."""
        service = self.provider.gpulab.service
        lines: list[str] = []
        with contextlib.suppress(HvdctlError):
            lines = [line for line in service.log(job.uuid).splitlines() if line.strip()]
            lines = lines or service.events(job.uuid)
        return " | ".join(lines[-_TAIL:]) or "its log is empty"


def _wanted(planned: State) -> Wanted:
    labels = planned["labels"] or {}
    return Wanted(
        cluster=planned["cluster"],
        node=planned["name"],
        project=planned["project"],
        image=planned["image"],
        slots=int(planned["slots"]),
        cpus=planned["cpus"],
        memory=planned["memory"],
        gpus=int(planned["gpus"]),
        storage=planned["storage"],
        public_key=planned["ssh_public_key"],
        gpu_model=tuple(planned["gpu_model"] or ()),
        gpu_memory=_whole(planned["gpu_memory"]),
        min_cuda=_whole(planned["min_cuda"]),
        cluster_id=_whole(planned["cluster_id"]),
        worker=planned["worker"],
        min_duration=planned["min_duration"],
        max_duration=planned["max_duration"],
        reservations=tuple(planned["reservations"] or ()),
        mark=labels.get(owner.MARK, ""),
        owner=labels.get(owner.NAME, ""),
    )


def _said(told: Told) -> dict[str, str]:
    return {"private_address": told.address, "host_key": told.host_key, "user_key": told.user_key}


def _place(job: Job) -> dict[str, Any]:
    return {"address": job.host, "ssh_port": job.ports.get(SSH_PORT), "ssh_proxy": job.proxy, "on": job.worker}


def _deleted(job: Job) -> Job:
    return replace(job, status="DELETED")


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _path(value: str | None) -> Path | None:
    return Path(value) if value else None
