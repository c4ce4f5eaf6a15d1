"""What a job's `storage` means on this machine: folders of the emulator's own in place of the project's."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.lab import NotStarted
from hvdctl.gpulab.emulator.workers import Worker

PROJECT_GID = 20001
ANTWERP = range(100, 200)
_SCRATCH = "project_scratch"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_making = threading.Lock()
_AUTO = "PROJECT_SHARE_AUTO"


@dataclass(frozen=True)
class Mounts:
    """Folders of this machine by their path in the container, and sizes of tmpfs in GB by theirs.

    `opened` are folders that jobs could replace: paths to open descriptors.
    """

    binds: dict[str, Path]
    opened: dict[str, Path]
    tmpfs: dict[str, int]


def available(cluster: int) -> list[str]:
    """The volumes that jobs on a cluster may use."""
    own = "/project_antwerp" if cluster in ANTWERP else "/project_ghent"
    return [own, "/project_madrid", f"/{_SCRATCH}"]


@contextlib.contextmanager
def resolve(job: Job, worker: Worker, folder: Path) -> Iterator[Mounts]:
    """The mounts of a job on that worker, good as long as the block; raises `NotStarted` for what there is not."""
    with contextlib.ExitStack() as held:
        yield _mounts(job, worker, folder, held)


def _mounts(job: Job, worker: Worker, folder: Path, held: contextlib.ExitStack) -> Mounts:
    binds: dict[str, Path] = {}
    opened: dict[str, Path] = {}
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
            top, below = _volume(host, job, worker, folder)
            path = held.enter_context(_opened(top, below))
            # No job has the folder that the top is in.
            (opened if below else binds)[inside] = path if below else top
    return Mounts(binds, opened, tmpfs)


def _volume(host: str, job: Job, worker: Worker, folder: Path) -> tuple[Path, Sequence[str]]:
    """The folder that a volume is, and the way from there to what is asked for."""
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
    return top / worker.name if volume == _SCRATCH else top, parts[2:]


@contextlib.contextmanager
def _opened(top: Path, parts: Sequence[str]) -> Iterator[Path]:
    """A path to the folder that stays the one that was checked, whatever other jobs do in the storage meanwhile."""
    # Jobs start side by side, and each must find the folder as it is to be.
    with _making:
        top.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _way(top, parts)
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _way(top: Path, parts: Sequence[str]) -> int:
    descriptor = os.open(top.parent, _FOLDER)
    try:
        for name in (top.name, *parts):
            below = _enter(descriptor, name)
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _enter(parent: int, name: str) -> int:
    """The folder of that name, made if it is missing; never what a link leads to."""
    new = True
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        new = False
    try:
        found = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotStarted(f"storage: {name!r} is a link or a file, not a folder") from None
        raise
    if new:
        # Without root's rights the folder stays the user's: the containers' root may still use it.
        with contextlib.suppress(PermissionError):
            os.fchown(found, 0, PROJECT_GID)
        os.fchmod(found, 0o2770)
    return found


def _keys(job: Job, folder: Path) -> Path:
    """A folder with the job's keys as authorized_keys."""
    made = folder / "jobs" / f"{job.uuid}.ssh"
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys = made / "authorized_keys"
    # The job may have had the folder before, and left a link.
    keys.unlink(missing_ok=True)
    with os.fdopen(os.open(keys, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(f"{key.strip()}\n" for key in job.submission.request.extra.ssh_pub_keys))
    return made
