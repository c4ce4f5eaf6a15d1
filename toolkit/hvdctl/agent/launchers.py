"""Request -> the commands that start its ranks. Pure: all these functions know is in their arguments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

CHOICES = ("horovod", "mpi", "torch")


class Request(NamedTuple):
    """What is to run, and where: the slots used on each host, in the order of the ranks."""

    id: int
    np: int
    launcher: str
    hosts: tuple[tuple[str, int], ...]
    interface: str | None = None
    threads: int | None = None

    @classmethod
    def of(cls, record: dict[str, Any]) -> Request:
        return cls(
            id=record["id"],
            np=record["np"],
            launcher=record["launcher"],
            hosts=tuple((host, slots) for host, slots in record["hosts"]),
            interface=record.get("interface"),
            threads=record.get("threads"),
        )

    def host_of(self, rank: int) -> str:
        """The host a rank runs on: all three launchers fill the hosts in order."""
        for host, slots in self.hosts:
            if rank < slots:
                return host
            rank -= slots
        raise IndexError(rank)


class Place(NamedTuple):
    """The node that launches: its name, how the agent is called on any node, what ranks need to be told."""

    here: str
    agent: tuple[str, ...]
    driver: str
    env: tuple[tuple[str, str], ...] = ()
    exported: tuple[str, ...] = ("PATH",)
    port: int = 29400


class Command(NamedTuple):
    """One process to start on the launching node; `node` is the host it works for, where it is one alone."""

    argv: list[str]
    node: str | None = None


def commands(request: Request, place: Place) -> list[Command]:
    """The processes that start all ranks of a run."""
    build = {"horovod": _horovod, "mpi": _mpi, "torch": _torch}[request.launcher]
    return build(request, place)


def ssh(host: str, argv: Sequence[str], *, stdin: bool = False) -> list[str]:
    """The command, run on another node; host keys, port and key come from ~/.ssh/config."""
    # The far shell splits the line again.
    return ["ssh", *([] if stdin else ["-n"]), "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, shlex.join(argv)]


def _wrapper(request: Request, place: Place) -> list[str]:
    """What every rank runs in. It takes the command from run.json, so that no shell gets to split it."""
    # In the environment from the start, where reap looks for it.
    return ["env", f"HVDCTL_RUN={request.id}", *_settings(place), *place.agent, "rank", str(request.id)]


def _settings(place: Place) -> list[str]:
    return [f"{name}={value}" for name, value in place.env]


def _layout(request: Request) -> str:
    return ",".join(f"{host}:{slots}" for host, slots in request.hosts)


def _horovod(request: Request, place: Place) -> list[Command]:
    argv = ["python3", place.driver, "--gloo", "-np", str(request.np), "-H", _layout(request)]
    # Where all ranks are local, horovodrun takes the loopback and refuses every other interface.
    if request.interface and [host for host, _ in request.hosts] != [place.here]:
        argv += ["--network-interfaces", request.interface]
    return [Command([*argv, "--start-timeout", "120", *_wrapper(request, place)])]


def _mpi(request: Request, place: Place) -> list[Command]:
    settings = {
        "plm": "rsh",
        "plm_rsh_agent": "ssh",
        # One hop to each node: a node then needs no other node to start its ranks.
        "plm_rsh_no_tree_spawn": "1",
        "plm_rsh_num_concurrent": str(max(len(request.hosts), 1)),
        # Marked for reap, as all that launches ranks is.
        "orte_launch_agent": f"env HVDCTL_LAUNCH={request.id} orted",
        "pml": "ob1",
        "btl": "tcp,self,vader",
        # Copies between processes need ptrace, which containers don't give.
        "btl_vader_single_copy_mechanism": "none",
        # Waiting ranks leave the core to others: nodes may share one.
        "mpi_yield_when_idle": "1",
        "orte_base_help_aggregate": "0",
    }
    if request.interface and len(request.hosts) > 1:
        settings |= {"btl_tcp_if_include": request.interface, "oob_tcp_if_include": request.interface}
    argv = ["mpirun", "-np", str(request.np), "-H", _layout(request), "--map-by", "slot", "--bind-to", "none"]
    for name, value in settings.items():
        argv += ["-mca", name, value]
    for name in place.exported:
        argv += ["-x", name]
    return [Command([*argv, *_wrapper(request, place)])]


def _torch(request: Request, place: Place) -> list[Command]:
    started = []
    for index, (host, slots) in enumerate(request.hosts):
        argv = ["torchrun", "--nnodes", str(len(request.hosts)), "--node-rank", str(index)]
        argv += ["--nproc-per-node", str(slots), "--master-addr", request.hosts[0][0]]
        argv += ["--master-port", str(place.port), "--no-python", *_wrapper(request, place)]
        if host != place.here:
            threads = f"OMP_NUM_THREADS={request.threads or 1}"  # as in supervise.py
            argv = ssh(host, ["env", f"HVDCTL_LAUNCH={request.id}", *_settings(place), threads, *argv])
        started.append(Command(argv, host))
    return started
