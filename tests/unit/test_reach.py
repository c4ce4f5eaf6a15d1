"""Which nodes reach which: real conversations with the agent, on this machine in place of nodes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hvdctl import paths, reach
from hvdctl.agent import reach as agent_reach
from hvdctl.agent.reach import reach as call
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError


@pytest.fixture
def agents(tmp_path: Path, on_path: Callable[[Path], None]) -> Path:
    """An ssh that runs the agent here; a node in the file `silent` has none."""
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "ssh").write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do node=$1; shift; done\n'
        f"grep -qsx $node {folder}/older && {{ cat {folder}/refusal; exit 2; }}\n"
        f"grep -qsx $node {folder}/silent && {{ echo 'hvd-agent: not found' >&2; exit 127; }}\n"
        f"exec {sys.executable} -I {paths.agent()} reach\n"
    )
    (folder / "ssh").chmod(0o755)
    on_path(folder)
    return folder


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
        assert call({"node1": ("127.0.0.1", [port])})["node1"][str(port)] in {"no answer", "something else answers"}
    assert call({"node1": ("127.0.0.1", [port])}) == {"node1": {str(port): "connection refused"}}


def test_a_node_of_an_older_image_is_told(cluster: Cluster, agents: Path) -> None:
    lay(cluster, "127.0.0.1", "127.0.0.2")
    (agents / "older").write_text("node1\n")
    (agents / "refusal").write_text('{"error": "no verb \'reach\'"}\n')
    with pytest.raises(HvdctlError, match="node1 can't try its connections: its image is of an older hvdctl") as told:
        reach.probe(cluster, cluster.nodes())
    assert told.value.hint == "`hvdctl up` makes the nodes anew"
