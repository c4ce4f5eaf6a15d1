"""A job of GPULab: what is asked for (pure), and what the service answers, read leniently."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hvdctl.cluster import digest
from hvdctl.errors import HvdctlError

SSH_PORT = 2222
"""Where sshd listens in a node's container."""

MOUNT = "/project"
"""Where the project's storage is in a container; /shared is a folder of it."""

RUNNING = "RUNNING"
NOT_WAITED = "not waited for any longer, as another job can't start"
"""What is said of a job where the reason is another one."""

ENDED = frozenset({"FINISHED", "FAILED", "CANCELLED", "DELETED", "HALTED"})
ENDING = frozenset({"CANCELLING", "MUSTHALT", "HALTING"})

_NAME = re.compile(r"hvdctl-(?P<cluster>.+)-(?P<node>node\d+)-(?P<owner>[0-9a-f]{8})")
_ANNOUNCED = re.compile(r"^hvd-node: (\{.*\})\s*$", re.MULTILINE)
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]+={0,2}")
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9a-fA-F:]+")
_GIB = 2**30
_FOR = " for "
# For each rank, where the spec says nothing: the service wants numbers.
_CPUS, _MEMORY_GB = 2, 8


@dataclass(frozen=True)
class Named:
    """Whose job it is, told by its name."""

    cluster: str
    node: str
    owner: str

    def __str__(self) -> str:
        return f"hvdctl-{self.cluster}-{self.node}-{self.owner}"

    @classmethod
    def of(cls, name: str) -> Named | None:
        """None for a job that hvdctl did not submit."""
        found = _NAME.fullmatch(name)
        return cls(**found.groupdict()) if found else None


@dataclass(frozen=True)
class Wanted:
    """What one node of a cluster needs of the service."""

    cluster: str
    node: str
    project: str
    """The project's URN."""
    image: str
    slots: int
    cpus: float | None
    memory: float | None
    """Bytes; None: as many as the ranks are likely to need."""
    gpus: int
    storage: str
    """A folder of the project's storage, such as /project_ghent/hvdctl/demo."""
    public_key: str
    """May log in on the node."""
    gpu_model: tuple[str, ...] = ()
    gpu_memory: int | None = None
    min_cuda: int | None = None
    cluster_id: int | None = None
    worker: str | None = None
    min_duration: str = "1 hour"
    max_duration: str = "12 hours"
    reservations: tuple[str, ...] = ()
    mark: str = ""
    """The id of the owner."""
    owner: str = ""
    """The owner in words."""

    @property
    def name(self) -> Named:
        return Named(self.cluster, self.node, self.mark[:8] or owner(self.public_key))


def owner(public_key: str) -> str:
    """What told clusters of one name apart before there were owners: jobs of older versions have it."""
    return digest(public_key.strip())[:8]


def request(wanted: Wanted) -> dict[str, Any]:
    """The body of a submission. Pure; golden cases hold its form, and imec's own models accept it."""
    volume, folder = split_storage(wanted.storage)
    resources: dict[str, Any] = {
        "cpus": math.ceil(wanted.cpus) if wanted.cpus else _CPUS * wanted.slots,
        "gpus": wanted.gpus,
        "cpuMemoryGb": math.ceil(wanted.memory / _GIB) if wanted.memory else _MEMORY_GB * wanted.slots,
        "gpuMemoryGb": wanted.gpu_memory,
        "gpuModel": list(wanted.gpu_model),
        "minCudaVersion": wanted.min_cuda,
        "clusterId": wanted.cluster_id,
        "slaveName": wanted.worker,
    }
    docker = {
        "image": wanted.image,
        "environment": {
            "HVD_NAME": wanted.node,
            "HVD_SHARE": str(PurePosixPath(MOUNT) / folder),
            "HVD_AUTHORIZED_KEY": wanted.public_key.strip(),
        },
        "storage": [{"hostPath": volume, "containerPath": MOUNT}],
        "portMappings": [{"containerPort": SSH_PORT}],
        "projectGidVariableName": "HVD_GROUP",
        # The node gives up all privileges when it has put /shared in its place.
        "user": "root",
    }
    scheduling = {
        "interactive": False,
        # A node that goes on elsewhere under another id is another node: hvdctl makes it anew itself.
        "restartable": False,
        "minDuration": wanted.min_duration,
        "maxDuration": wanted.max_duration,
        "reservationIds": list(wanted.reservations),
    }
    body = {
        "name": str(wanted.name),
        "deploymentEnvironment": "production",
        "owner": {"projectUrn": wanted.project},
        "request": {
            "resources": {key: value for key, value in resources.items() if value not in (None, [])},
            "docker": docker,
            "scheduling": {key: value for key, value in scheduling.items() if value != []},
            "extra": {"sshPubKeys": [wanted.public_key.strip()]},
        },
    }
    # A job that is found under this name is the one that was asked for only if it has this mark.
    whose = f"{_FOR}{wanted.owner}" if wanted.owner else ""
    return body | {"description": f"hvdctl {digest(json.dumps(body, sort_keys=True))}{whose}"}


def split_storage(path: str) -> tuple[str, str]:
    """The volume of a path such as /project_ghent/data/x, and the folder on it."""
    _, volume, *rest = PurePosixPath(path).parts
    return f"/{volume}", "/".join(rest)


@dataclass(frozen=True)
class Told:
    """What a node says of itself in its job's log."""

    address: str
    host_key: str
    user_key: str


def announced(log: str, node: str) -> Told | None:
    """What the node said when it started; None where it has said nothing yet.

    Only its first word counts: from then on sshd listens, which writes down what strangers send to it.
    """
    found = _ANNOUNCED.search(log)
    if found is None:
        return None
    try:
        said = json.loads(found[1])
        if said["name"] != node:
            raise ValueError(f"it says that it is {said['name']!r}")
        address = str(ipaddress.ip_address(said["address"]))
        return Told(address, _key(said["host_key"]), _key(said["user_key"]))
    except (ValueError, KeyError, TypeError) as error:
        raise HvdctlError(f"what the job of {node} says of itself can't be right: {error}") from None


def _key(said: object) -> str:
    if not isinstance(said, str) or not _KEY.fullmatch(said):
        raise ValueError(f"{said!r} is not a public key")
    return said


@dataclass(frozen=True)
class Job:
    """A job as the service tells of it; what this version does not know of is left aside."""

    uuid: str
    name: str
    description: str
    status: str
    created: str
    explanations: tuple[str, ...] = ()
    host: str | None = None
    worker: str | None = None
    ports: dict[int, int] = field(default_factory=dict)
    """Ports of the worker host by ports of the container."""
    proxy: str | None = None
    """The bastion, as user@host:port."""

    @property
    def owner(self) -> str:
        """The owner in words; empty where the job does not have it."""
        return self.description.partition(_FOR)[2]

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def gone(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.ended or self.status in ENDING

    @property
    def why(self) -> str:
        """The service's own words on why it waits."""
        return "; ".join(self.explanations)

    @classmethod
    def read(cls, data: Any) -> Job:
        """Raises ValueError where it is no job."""
        try:
            state = data["state"]
            resources = state.get("resources") or {}
            scheduling = state.get("scheduling") or {}
            return cls(
                uuid=str(data["uuid"]),
                name=str(data.get("name") or ""),
                description=str(data.get("description") or ""),
                status=re.sub(r"[^A-Z]", "", str(state["status"]).upper()),
                created=str((state.get("eventTimes") or {}).get("created") or ""),
                explanations=tuple(map(str, scheduling.get("queuedExplanations") or ())),
                host=_safe(resources.get("slaveHost")),
                worker=resources.get("slaveName") or scheduling.get("assignedSlaveName"),
                ports={
                    int(mapping["containerPort"]): int(mapping["hostPort"])
                    for mapping in resources.get("portMappings") or ()
                    if mapping.get("hostPort")
                },
                proxy=_proxy(resources),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a job: {error!r}") from None


def _proxy(resources: dict[str, Any]) -> str | None:
    host, user = _safe(resources.get("sshProxyHost")), _safe(resources.get("sshProxyUsername"))
    return f"{user}@{host}:{int(resources.get('sshProxyPort') or 22)}" if host and user else None


def _safe(said: object) -> str | None:
    """A name or an address of the service's; None for one that would be more than that in a file of SSH's."""
    return said if isinstance(said, str) and _PLACE.fullmatch(said) else None
