"""The Docker engine: one way to reach it, and plain words where it can't be reached."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hvdctl.errors import HvdctlError, ToolMissing

if TYPE_CHECKING:
    from docker import DockerClient

DEFAULT_URL = "unix:///var/run/docker.sock"


def client(timeout: float = 60) -> DockerClient:
    """A client of the engine that answers now; `timeout` is how long one answer may take, in seconds."""
    import docker
    from docker.errors import DockerException

    try:
        # The engine at hand may be older than the SDK: agree on the version with it.
        found = docker.from_env(version="auto", timeout=int(timeout))
        found.ping()
    except (DockerException, OSError) as error:
        raise unreachable(error) from error
    return found


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
        hint="start one: `make engine`, or `sudo systemctl start docker`",
    )


def describe(error: BaseException) -> HvdctlError:
    """An error of the Docker SDK as one of ours: engine gone, disk full, or what the engine said."""
    from docker.errors import APIError

    said = str(getattr(error, "explanation", None) or error)
    if "no space left on device" in said.lower():
        return HvdctlError(
            "the disk is full",
            hint="docker system df shows what the engine holds; docker image prune frees space",
        )
    if isinstance(error, APIError) and error.response is not None:
        return HvdctlError(f"the Docker engine says: {said.strip().splitlines()[-1]}")
    return unreachable(error)


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind) or any(isinstance(arg, kind) for arg in error.args):
            return True
        error = error.__cause__ or error.__context__
    return False
