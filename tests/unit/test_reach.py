"""Which nodes reach which: real conversations with the agent, on this machine in place of nodes."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hvdctl import paths, process, reach, ssh
from hvdctl.agent import reach as agent_reach
from hvdctl.agent.reach import reach as call
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError
from support import started_with, wait_for


@pytest.fixture
def agents(tmp_path: Path, on_path: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh that runs the agent here; a node in the file `silent` has none.

    Not more than `door` logins may be at their start at the same moment, others are cut. `most` tells how many were
    there at once in all.
    """
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "ssh").write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do node=$1; shift; done\n'
        f"cd {folder}; mkdir -p at-work; ulimit -n 1024\n"
        "shift; eval set -- $*; shift\n"
        'touch "at-work/$node.$2"; trap \'rm "at-work/$node.$2"\' EXIT\n'
        "ls at-work | wc -l >>most\n"
        'if [ -e door ] && [ ! -e "tried.$node.$2" ] && [ "$(ls at-work | wc -l)" -gt "$(cat door)" ]; then\n'
        '    touch "tried.$node.$2"\n'
        '    echo "kex_exchange_identification: Connection closed by remote host" >&2; exit 255\n'
        "fi\n"
        f"grep -qsx $node {folder}/older && {{ cat {folder}/refusal; exit 2; }}\n"
        f"grep -qsx $node {folder}/silent && {{ echo 'hvd-agent: not found' >&2; exit 127; }}\n"
        f'{sys.executable} -I {paths.agent()} "$@"\n'
    )
    (folder / "ssh").chmod(0o755)
    on_path(folder)
    monkeypatch.setenv("HVD_REACH_TEST", str(folder))
    yield folder
    # Nodes that were not called by all listen on for a while.
    for pid in started_with(f"HVD_REACH_TEST={folder}"):
        os.kill(pid, signal.SIGKILL)


def lay(cluster: Cluster, *addresses: str) -> None:
    first = cluster.nodes()[0]
    nodes = [
        replace(first, id=f"id{i}", name=f"node{i}", private_address=address) for i, address in enumerate(addresses)
    ]
    cluster.store_nodes(nodes)


def test_nodes_that_reach_each_other(cluster: Cluster, agents: Path) -> None:
    lay(cluster, "127.0.0.1", "127.0.0.2", "127.0.0.3")
    found = reach.probe(cluster, cluster.nodes())
    assert len(found.pairs) == 6
    assert found.blocked == {}
    reach.require(found, "")


def test_blocked_pairs_are_a_matrix_with_the_way_out(cluster: Cluster, agents: Path) -> None:
    # Nobody can connect to this address, and the kernel says so at once.
    lay(cluster, "127.0.0.1", "127.0.0.2", "255.255.255.255")
    found = reach.probe(cluster, cluster.nodes())
    assert set(found.blocked) == {("node0", "node2"), ("node1", "node2")}
    with pytest.raises(HvdctlError, match="2 of 6 connections that Horovod needs are blocked") as told:
        reach.require(found, "use one job")
    assert told.value.hint == "use one job"
    rows = [line.split() for line in told.value.message.splitlines()[1:]]
    assert rows == [
        ["node0", "node1", "node2"],
        ["node0", "-", "ok", "blocked"],
        ["node1", "ok", "-", "blocked"],
        ["node2", "ok", "ok", "-"],
    ]


def test_listeners_end_when_all_have_called(cluster: Cluster, agents: Path) -> None:
    lay(cluster, "127.0.0.1", "127.0.0.2", "127.0.0.3")
    reach.probe(cluster, cluster.nodes())
    wait_for(lambda: not started_with(f"HVD_REACH_TEST={agents}"), seconds=10)


def test_many_nodes_are_asked_a_few_at_a_time_and_again_if_a_bastion_is_busy(
    cluster: Cluster, agents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "AT_ONCE", 6)
    monkeypatch.setattr(ssh, "PAUSES", (0.05, 0.1, 0.2, 0.4))
    (agents / "door").write_text("3")
    lay(cluster, *(f"127.0.0.{number}" for number in range(1, 25)))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 50, limits[1]))
    try:
        found = reach.probe(cluster, cluster.nodes())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (len(found.pairs), found.blocked) == (24 * 23, {})
    assert list(agents.glob("tried.*")), "the door was never crowded"
    assert max(map(int, (agents / "most").read_text().split())) <= 6


def test_a_process_with_many_files_can_try_connections(cluster: Cluster, agents: Path) -> None:
    lay(cluster, "127.0.0.1", "127.0.0.2")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert reach.probe(cluster, cluster.nodes()).blocked == {}
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_one_node_has_nobody_to_reach(cluster: Cluster) -> None:
    lay(cluster, "127.0.0.1")
    assert reach.probe(cluster, cluster.nodes()).pairs == {}


def test_a_node_that_can_not_be_asked_is_named(cluster: Cluster, agents: Path) -> None:
    lay(cluster, "127.0.0.1", "127.0.0.2")
    (agents / "silent").write_text("node1\n")
    with pytest.raises(HvdctlError, match="node1 can't try its connections: hvd-agent: not found"):
        reach.probe(cluster, cluster.nodes())


def test_another_program_on_the_port_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_reach, "_PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert call("node0", {"node1": ("127.0.0.1", [port])})["node1"][str(port)] in {
            "no answer",
            "something else answers",
        }
    assert call("node0", {"node1": ("127.0.0.1", [port])}) == {"node1": {str(port): "connection refused"}}


@pytest.mark.parametrize("error", ["no verb 'reach'", "usage: reach, then a line of JSON on stdin"])
def test_a_node_of_an_older_image_is_told(error: str, cluster: Cluster, agents: Path) -> None:
    lay(cluster, "127.0.0.1", "127.0.0.2")
    (agents / "older").write_text("node1\n")
    (agents / "refusal").write_text(json.dumps({"error": error}) + "\n")
    with pytest.raises(HvdctlError, match="node1 can't try its connections: its image is of an older hvdctl") as told:
        reach.probe(cluster, cluster.nodes())
    assert told.value.hint == "`hvdctl up` makes the nodes anew"
