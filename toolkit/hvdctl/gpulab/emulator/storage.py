"""What a job's `storage` means on this machine: folders of the emulator's own in place of the project's."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.lab import NotStarted
from hvdctl.gpulab.emulator.workers import Worker

PROJECT_GID = 20001
ANTWERP = range(100, 200)
_SCRATCH = "project_scratch"
_making = threading.Lock()
_AUTO = "PROJECT_SHARE_AUTO"


@dataclass(frozen=True)
class Mounts:
    """Folders of this machine by their path in the container, and sizes of tmpfs in GB by theirs."""

    binds: dict[str, Path]
    tmpfs: dict[str, int]


def available(cluster: int) -> list[str]:
    """The volumes that jobs on a cluster may use."""
    own = "/project_antwerp" if cluster in ANTWERP else "/project_ghent"
    return [own, "/project_madrid", f"/{_SCRATCH}"]


def resolve(job: Job, worker: Worker, folder: Path) -> Mounts:
    """The mounts of a job on that worker; raises `NotStarted` for what there is not."""
    binds: dict[str, Path] = {}
    tmpfs: dict[str, int] = {}
    for one in job.submission.request.docker.storage:
        host, inside = one.host_path or "", (one.container_path or "").rstrip("/") or "/"
        if not inside.startswith("/") or inside == "/":
            raise NotStarted(f"storage: containerPath {one.container_path!r} is not a folder below the root")
        if host == "tmpfs":
            tmpfs[inside] = one.size_gb or 1
        elif host == ".ssh/":
            binds[inside] = _keys(job, folder)
        else:
            binds[inside] = _volume(host, job, worker, folder)
    return Mounts(binds, tmpfs)


def _volume(host: str, job: Job, worker: Worker, folder: Path) -> Path:
    parts = PurePosixPath(host).parts
    if parts[:1] == (_AUTO,):
        parts = ("/", available(worker.cluster)[0].lstrip("/"), *parts[1:])
    volume = parts[1] if len(parts) > 1 and parts[0] == "/" else ""
    if f"/{volume}" not in available(worker.cluster) or ".." in parts:
        known = ", ".join(available(worker.cluster))
        raise NotStarted(f"storage: there is no {host!r} on cluster {worker.cluster}; there are: {known}")
    project = job.project.rsplit("+", 1)[-1]
    top = folder / "storage" / project / volume
    # Scratch is a disk of the worker, the others are shared by all.
    top = top / worker.name if volume == _SCRATCH else top
    wanted = top.joinpath(*parts[2:])
    if not wanted.resolve().is_relative_to(top.resolve()):
        raise NotStarted(f"storage: {host!r} leads out of the project's folder")
    for folder in reversed([wanted, *(one for one in wanted.parents if one.is_relative_to(top))]):
        _ensure(folder)
    return wanted


def _ensure(top: Path) -> None:
    # Jobs start side by side, and each must find the folder as it is to be.
    with _making:
        _make(top)


def _make(top: Path) -> None:
    if top.is_dir():
        return
    top.mkdir(parents=True)
    # Without root's rights the folder stays the user's: the containers' root may still use it.
    with contextlib.suppress(PermissionError):
        os.chown(top, 0, PROJECT_GID)
    top.chmod(0o2770)


def _keys(job: Job, folder: Path) -> Path:
    """A folder with the job's keys as authorized_keys."""
    made = folder / "jobs" / f"{job.uuid}.ssh"
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = made / "authorized_keys"
    keys.write_text("".join(f"{key.strip()}\n" for key in job.submission.request.extra.ssh_pub_keys))
    keys.chmod(0o600)
    return made
