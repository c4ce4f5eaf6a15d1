"""The environments of what the agent starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .launchers import Request
from .store import AgentError

# Each launcher's own variable first: an MPI job started from a torchrun shell still is an MPI job.
_RANK = {
    "horovod": ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "RANK"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "HOROVOD_RANK", "RANK"),
    "torch": ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK"),
}


def of_login(environ: Mapping[str, str], *without: str) -> dict[str, str]:
    """Ours without the traces of the login that started us, and without variables that begin in these ways."""
    return {key: value for key, value in environ.items() if not key.startswith(("SSH_", "XDG_", *without))}


def rank_of(launcher: str, environ: Mapping[str, str]) -> int:
    """The rank that the launcher gave this process."""
    for name in _RANK[launcher]:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    raise AgentError(f"no rank was given: none of {', '.join(_RANK[launcher])} is set")


def of_command(
    environ: Mapping[str, str], user: Mapping[str, str], request: Request, rank: int, cores: int
) -> dict[str, str]:
    """What the launcher set, our defaults over it, the user's own values over both, and the run's marks.

    A rank has as many threads as was asked for, else its share of the node's `cores`.
    """
    threads = request.threads or max(1, cores // dict(request.hosts)[request.host_of(rank)])
    return {**environ, **_defaults(environ, request, threads), **user, **_marks(request, rank)}


def _defaults(environ: Mapping[str, str], request: Request, threads: int) -> dict[str, str]:
    chosen = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    if request.interface and len(request.hosts) > 1:
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        chosen |= {name: request.interface for name in names if name not in environ}
    if request.launcher == "mpi":
        chosen |= {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    if request.launcher == "horovod" and "HOROVOD_GLOO_TIMEOUT_SECONDS" not in environ:
        # Many ranks that import a framework on few cores don't all arrive within the default of 30 s.
        chosen["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "120"
    return chosen


def _marks(request: Request, rank: int) -> dict[str, str]:
    return {"HVDCTL_RUN": str(request.id), "HVDCTL_RANK": str(rank)}
