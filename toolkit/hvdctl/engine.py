"""The Docker engine: one way to reach it, and plain words where it can't be reached."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hvdctl.errors import HvdctlError, ToolMissing

if TYPE_CHECKING:
    from docker import DockerClient

START = "start it with `sudo systemctl start docker` (`make engine` in a clone)"
DEFAULT_URL = "unix:///var/run/docker.sock"
# What ails this machine or its disks, never a connection.
_OF_THIS_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS, errno.EIO}


def client(timeout: float = 60) -> DockerClient:
    """A client of the engine that answers now; `timeout` is how long one answer may take, in seconds."""
    import docker

    try:
        # The engine at hand may be older than the SDK: agree on the version with it.
        found = docker.from_env(version="auto", timeout=int(timeout))
        found.ping()
    except failures() as error:
        raise _here(error) or unreachable(error) from error
    return found


def failures() -> tuple[type[Exception], ...]:
    """Return what the Docker SDK raises if the engine refuses, does not answer, or ends in the middle of an answer."""
    from docker.errors import DockerException
    from urllib3.exceptions import HTTPError

    # Errors of requests are OSErrors. Those of urllib3 are not, and come through when an answer is read in parts.
    return (DockerException, HTTPError, OSError)


def url() -> str:
    """Where the engine is looked for."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_URL


def unreachable(error: BaseException) -> ToolMissing:
    """The error to raise for a failed connection, with the hint that fits its cause."""
    if _caused_by(error, PermissionError) or "Permission denied" in str(error):
        return ToolMissing(
            f"no permission to use the Docker engine at {url()}",
            hint="join the group docker (sudo usermod -aG docker $USER, then log in again) or use sudo",
        )
    return ToolMissing(
        f"no Docker engine answers at {url()}",
        hint=f"{START}, or set DOCKER_HOST",
    )


def describe(error: BaseException) -> HvdctlError:
    """An error of the Docker SDK as one of ours: engine gone, disk full, or what the engine or this machine said."""
    from docker.errors import APIError

    if told := _here(error):
        return told
    said = str(getattr(error, "explanation", None) or error)
    if "no space left on device" in said.lower():
        return HvdctlError(
            "the disk is full",
            hint="docker system df shows what the engine holds; docker image prune frees space",
        )
    if isinstance(error, APIError) and error.response is not None:
        return HvdctlError(f"the Docker engine says: {said.strip().splitlines()[-1]}")
    return unreachable(error)


def _here(error: BaseException) -> HvdctlError | None:
    """The error of a file or of this machine, which is none of the engine's connection, in its own words."""
    for cause in _causes(error):
        # The socket's path is in no error of its connection.
        if isinstance(cause, OSError) and (cause.errno in _OF_THIS_MACHINE or (cause is error and cause.filename)):
            place = f": {cause.filename}" if cause.filename else ""
            return HvdctlError(f"{cause.strerror or cause}{place}")
    return None


def _caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    return any(isinstance(cause, kind) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, those that it wraps and those that it came from."""
    while error is not None:
        yield error
        for wrapped in error.args:
            if isinstance(wrapped, BaseException):
                yield from _causes(wrapped)
        error = error.__cause__ or error.__context__
