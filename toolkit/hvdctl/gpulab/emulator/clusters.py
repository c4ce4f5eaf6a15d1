"""What `GET clusters` and `GET slaves` answer: what each worker has and what is free of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hvdctl.gpulab.emulator import states, storage
from hvdctl.gpulab.emulator.jobs import Job, now
from hvdctl.gpulab.emulator.workers import INSTANCE, Worker

_COUNTED = ("onhold", "queued", "assigned", "starting", "running", "musthalt", "halting")
# The most jobs that a worker takes at once; there is no such limit, but the answer must have a number.
_WORKERS = 64


def slaves(
    workers: Iterable[Worker], jobs: Iterable[Job], host: Callable[[Worker], str] = lambda worker: worker.name
) -> list[dict[str, Any]]:
    """One SlaveInfo2 for each worker."""
    listed = list(jobs)
    return [_slave(worker, _placed(listed, worker), host(worker)) for worker in workers]


def clusters(workers: Iterable[Worker], jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """One ClusterInfo for each cluster."""
    workers, jobs = list(workers), list(jobs)
    return [_cluster(number, workers, jobs) for number in sorted({worker.cluster for worker in workers})]


def _cluster(number: int, workers: list[Worker], jobs: list[Job]) -> dict[str, Any]:
    found = slaves([worker for worker in workers if worker.cluster == number], jobs)
    waiting = [
        job
        for job in jobs
        if job.status in states.WAITING and job.submission.request.resources.cluster_id in (None, number)
    ]
    placed = [job for job in jobs if job.place and job.place.worker.cluster == number]
    return {
        "deploymentEnvironment": "production",
        "clusterId": number,
        "comment": f"emulated cluster {number}",
        "isPrivate": False,
        "slaveCount": len(found),
        "gpuModel": list({one["gpuModel"][0]["name"]: one["gpuModel"][0] for one in found}.values()),
        **{name: _sum(one[name] for one in found) for name in ("worker", "cpuMemoryMb", "gpu", "cpu")},
        "activeJobsCounts": _counts([*waiting, *placed]),
        "haveAccess": True,
        "storagePathsAvailable": storage.available(number),
    }


def _slave(worker: Worker, jobs: list[Job], host: str) -> dict[str, Any]:
    gpus = sum(len(job.place.gpu_ids) for job in jobs if job.place)
    cpus = sum(len(job.place.cpu_ids) for job in jobs if job.place)
    return {
        "name": worker.name,
        "instanceId": INSTANCE,
        "clusterId": worker.cluster,
        "deploymentEnvironment": "production",
        "aliases": [],
        "comment": "GPUs are counted, not there",
        "host": host,
        "gpuModel": [{"vendor": "NVIDIA", "name": worker.gpu_model, "memoryMb": worker.gpu_memory * 1024}],
        "cpuModel": ["emulated"],
        "worker": _resource(_WORKERS, len(jobs)),
        "cpuMemoryMb": _resource(worker.memory * 1024, sum(job.memory for job in jobs) * 1024),
        "gpu": _resource(worker.gpus, gpus),
        "cpu": _resource(worker.cpus, cpus),
        "lastUpdate": now().isoformat(timespec="milliseconds"),
        "shuttingDown": False,
        "cudaVersionFull": worker.cuda,
        "cudaVersionMajor": worker.cuda_major,
        "acceptingJobs": True,
        "activeJobsCounts": _counts(jobs),
        "storagePathsAvailable": storage.available(worker.cluster),
        "activeJobUuids": [job.uuid for job in jobs],
    }


def _placed(jobs: list[Job], worker: Worker) -> list[Job]:
    return [job for job in jobs if job.status in states.PLACED and job.place and job.place.worker.name == worker.name]


def _resource(total: int, used: int) -> dict[str, int]:
    return {"systemTotal": total, "acquired": total, "used": used, "available": total - used}


def _sum(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    listed = list(parts)
    return {key: sum(one[key] for one in listed) for key in listed[0]}


def _counts(jobs: list[Job]) -> dict[str, int]:
    return {name: sum(job.status == name.upper() for job in jobs) for name in _COUNTED}
