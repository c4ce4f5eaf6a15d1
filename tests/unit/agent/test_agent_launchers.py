"""Golden cases: layout -> command lines."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hvdctl.agent.launchers import Place, Request, commands

PLACE = Place(here="node0", agent=("python3", "/agent"), driver="/agent/horovodrun.py", port=29555)
TWO = (("node0", 2), ("node1", 2))
RANK = "env HVDCTL_RUN=7 python3 /agent rank 7"
MCA = (
    "-mca plm rsh -mca plm_rsh_agent ssh -mca plm_rsh_no_tree_spawn 1 -mca plm_rsh_num_concurrent {hosts}"
    " -mca orte_launch_agent 'env HVDCTL_LAUNCH=7 orted'"
    " -mca pml ob1 -mca btl tcp,self,vader -mca btl_vader_single_copy_mechanism none"
    " -mca mpi_yield_when_idle 1 -mca orte_base_help_aggregate 0"
)
ETH0 = " -mca btl_tcp_if_include eth0 -mca oob_tcp_if_include eth0"


def lines(place: Place = PLACE, **fields: Any) -> list[str]:
    given: dict[str, Any] = {"id": 7, "np": 4, "launcher": "horovod", "hosts": TWO, "interface": "eth0"}
    request = Request(**given | fields)
    return [shlex.join(command.argv) for command in commands(request, place)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "-np 4 -H node0:2,node1:2 --network-interfaces eth0"),
        ({"interface": None}, "-np 4 -H node0:2,node1:2"),
        ({"np": 1, "hosts": (("node0", 1),)}, "-np 1 -H node0:1"),
        ({"np": 1, "hosts": (("node3", 1),)}, "-np 1 -H node3:1 --network-interfaces eth0"),
    ],
)
def test_horovod(fields: dict[str, Any], expected: str) -> None:
    assert lines(**fields) == [f"python3 /agent/horovodrun.py --gloo {expected} --start-timeout 120 {RANK}"]


@pytest.mark.parametrize(
    ("fields", "layout", "mca"),
    [
        ({}, "-np 4 -H node0:2,node1:2", MCA.format(hosts=2) + ETH0),
        ({"interface": None}, "-np 4 -H node0:2,node1:2", MCA.format(hosts=2)),
        ({"np": 3, "hosts": (("node0", 3),)}, "-np 3 -H node0:3", MCA.format(hosts=1)),
    ],
)
def test_mpi(fields: dict[str, Any], layout: str, mca: str) -> None:
    assert lines(launcher="mpi", **fields) == [f"mpirun {layout} --map-by slot --bind-to none {mca} -x PATH {RANK}"]


def test_torch_with_uneven_slots() -> None:
    local, far = lines(launcher="torch", np=3, hosts=(("node0", 2), ("node1", 1)), threads=2)
    common = "--master-addr node0 --master-port 29555 --no-python"
    assert local == f"torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 {common} {RANK}"
    *start, line = shlex.split(far)
    assert start == ["ssh", "-n", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "node1"]
    assert line == (
        f"env HVDCTL_LAUNCH=7 OMP_NUM_THREADS=2 torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 {common} {RANK}"
    )


def test_settings_reach_ranks_and_far_launchers() -> None:
    place = PLACE._replace(env=(("HVD_RUNS", "/a b"),))
    (line,) = lines(place)
    assert line.endswith("env HVDCTL_RUN=7 'HVD_RUNS=/a b' python3 /agent rank 7")
    far = shlex.split(lines(place, launcher="torch")[1])[-1]
    assert shlex.split(far)[:3] == ["env", "HVDCTL_LAUNCH=7", "HVD_RUNS=/a b"]


def test_ranks_fill_the_hosts_in_order() -> None:
    request = Request(1, 4, "mpi", (("a", 1), ("b", 2), ("c", 1)))
    assert [request.host_of(rank) for rank in range(4)] == ["a", "b", "b", "c"]
