"""One job of an emulator, and how it is told to whoever asks."""

from __future__ import annotations

import asyncio
import datetime
import secrets
import string
import uuid
from dataclasses import dataclass, field
from typing import Any

from hvdctl.gpulab.emulator import states
from hvdctl.gpulab.emulator.schedule import Ask, Held, Place
from hvdctl.gpulab.emulator.submission import PortMapping, Submission, seconds
from hvdctl.gpulab.emulator.workers import INSTANCE

_HIDDEN_EMAIL = "hidden@hidden.hidden"


@dataclass(frozen=True)
class User:
    urn: str
    email: str

    @property
    def name(self) -> str:
        return self.urn.rsplit("+", 1)[-1]


@dataclass(frozen=True)
class Address:
    """Where the SSH server listens, for the jobs to tell."""

    host: str
    port: int


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _letters() -> str:
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(8))


@dataclass
class Job:
    submission: Submission
    user: User
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    created: datetime.datetime = field(default_factory=now)
    status: str = states.QUEUED
    times: dict[str, datetime.datetime] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    reasons: tuple[str, ...] = ()
    place: Place | None = None
    host: str = ""
    ports: tuple[PortMapping, ...] = ()
    ssh_username: str = field(default_factory=_letters)
    initial: str = ""
    restarts: int = 0
    ran_before: float = 0.0
    # What the user asked of a job that has a place, and whoever waits for its end.
    wanted: str = ""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def project(self) -> str:
        return self.submission.owner.project_urn

    @property
    def short(self) -> str:
        return self.uuid.split("-")[0]

    @property
    def seconds_left(self) -> float:
        """How long it may still run; restarts count together."""
        running = self.times.get(states.RUNNING)
        ran = (now() - running).total_seconds() if running else 0.0
        return seconds(self.submission.request.scheduling.max_duration) - self.ran_before - ran

    @property
    def memory(self) -> int:
        request = self.submission.request
        return request.resources.cpu_memory_gb + request.docker.tmpfs_gb

    def enter(self, status: str) -> None:
        """It is in that state from now on."""
        self.status = status
        if status in states.TIMED:
            self.times[status] = now()
        self._event("STATUS_CHANGE", newState=status)

    def note(self, text: str, kind: str = "DEBUG") -> None:
        self._event(kind, msg=text)

    def _event(self, kind: str, **more: str) -> None:
        self.events.append({"jobId": self.uuid, "type": kind, "time": _time(now()), **more})

    def again(self) -> Job:
        """The job that goes on where this one was halted."""
        running, halted = self.times.get(states.RUNNING), self.times.get(states.HALTED)
        ran = (halted - running).total_seconds() if running and halted else 0.0
        return Job(
            self.submission,
            self.user,
            initial=self.initial or self.uuid,
            restarts=self.restarts + 1,
            ran_before=self.ran_before + ran,
        )

    def ask(self) -> Ask:
        resources, scheduling = self.submission.request.resources, self.submission.request.scheduling
        bucket = scheduling.max_simultaneous_jobs
        return Ask(
            uuid=self.uuid,
            user=self.user.urn,
            project=self.project,
            cpus=resources.cpus,
            gpus=resources.gpus,
            memory=self.memory,
            gpu_memory=resources.gpu_memory_gb,
            gpu_models=tuple(resources.gpu_model),
            features=tuple(resources.features),
            cuda=resources.min_cuda_version,
            cluster=resources.cluster_id,
            worker=resources.slave_name,
            instance=resources.slave_instance_id,
            bucket=(bucket.bucket_name, bucket.bucket_max) if bucket else None,
            not_before=scheduling.not_before,
            not_after=scheduling.not_after,
            interactive=scheduling.interactive,
        )

    def held(self) -> Held | None:
        if self.place is None or self.status not in states.PLACED:
            return None
        bucket = self.submission.request.scheduling.max_simultaneous_jobs
        return Held(
            self.user.urn,
            self.project,
            self.place.worker.name,
            self.place.cpu_ids,
            self.place.gpu_ids,
            self.memory,
            bucket.bucket_name if bucket else None,
            counts=self.status in states.COUNTED,
        )


def told(job: Job, ssh: Address, *, owner: bool, same_project: bool) -> dict[str, Any]:
    """The job as the API answers it: all of it to its owner, less to the project, least to others."""
    request = job.submission.request.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not owner:
        _hide_request(request, job, same_project)
    answer: dict[str, Any] = {
        "uuid": job.uuid,
        "name": job.submission.name if owner or same_project else f"job-{job.uuid[:6]}",
        "deploymentEnvironment": "production",
        "owner": _owner(job, owner=owner, same_project=same_project),
        "request": request,
        "state": _state(job, ssh, owner=owner),
        "restartInfo": {"initialJobUuid": job.initial or job.uuid, "restartCount": job.restarts},
    }
    if job.submission.description is not None and (owner or same_project):
        answer["description"] = job.submission.description
    return answer


def _hide_request(request: dict[str, Any], job: Job, same_project: bool) -> None:
    request["extra"] = {}
    request["scheduling"].pop("maxSimultaneousJobs", None)
    request["scheduling"]["reservationIds"] = []
    if same_project:
        request["docker"]["image"] = job.submission.request.docker.reference
    else:
        request["docker"] = {"image": "hidden"}


def _owner(job: Job, *, owner: bool, same_project: bool) -> dict[str, str]:
    if owner or same_project:
        email = job.user.email if owner else _HIDDEN_EMAIL
        return {"userUrn": job.user.urn, "userEmail": email, "projectUrn": job.project}
    return {
        "userUrn": "urn:publicid:IDN+hidden+user+hidden",
        "userEmail": _HIDDEN_EMAIL,
        "projectUrn": "urn:publicid:IDN+hidden+project+hidden",
    }


def _state(job: Job, ssh: Address, *, owner: bool) -> dict[str, Any]:
    changed = max([job.created, *job.times.values()])
    times = {"created": _time(job.created), "statusUpdated": _time(changed)}
    scheduling: dict[str, Any] = {"queuedExplanations": list(job.reasons), "haltEvents": []}
    if job.place:
        scheduling["assignedClusterId"] = job.place.worker.cluster
        scheduling["assignedSlaveName"] = job.place.worker.name
        scheduling["assignedInstanceId"] = INSTANCE
    state: dict[str, Any] = {
        "status": job.status,
        "eventTimes": times | {status: _time(when) for status, when in job.times.items()},
        "scheduling": scheduling,
    }
    if job.place and states.STARTING in job.times:
        state["resources"] = _resources(job, job.place, ssh, owner=owner)
    return state


def _resources(job: Job, place: Place, ssh: Address, *, owner: bool) -> dict[str, Any]:
    ports = job.ports or tuple(job.submission.request.docker.port_mappings)
    return {
        "clusterId": place.worker.cluster,
        "gpuIds": list(place.gpu_ids),
        "cpuIds": list(place.cpu_ids),
        "cpuMemoryGb": job.submission.request.resources.cpu_memory_gb,
        "gpuMemoryGb": place.worker.gpu_memory * len(place.gpu_ids),
        "tmpfsMemGb": job.submission.request.docker.tmpfs_gb,
        "slaveName": place.worker.name,
        "slaveHost": job.host,
        "slaveInstanceId": INSTANCE,
        "slaveInstancePid": 1,
        "workerId": 0,
        "sshHost": ssh.host,
        "sshPort": ssh.port,
        "sshUsername": job.ssh_username if owner else "hidden",
        "sshProxyHost": ssh.host,
        "sshProxyPort": ssh.port,
        "sshProxyUsername": job.user.name if owner else "hidden",
        "portMappings": [one.model_dump(by_alias=True) for one in ports] if owner else [],
    }


def _time(when: datetime.datetime) -> str:
    return when.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
