from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hvdctl import ssh
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.spec import Spec
from support import make_nodes


@pytest.fixture
def listener() -> socket.socket:
    made = socket.create_server(("127.0.0.1", 0))
    made.settimeout(30)
    return made


def test_a_command_arrives_as_it_was_written(cluster: Cluster, fake_nodes: Path) -> None:
    words = ["printf", "%s|", "a b", "$HOME", "'", "; false", "*", ""]
    assert ssh.run(cluster, "node1", words).stdout == "a b|$HOME|'|; false|*||"


def test_the_calls_never_ask_and_use_the_clusters_own_files(cluster: Cluster) -> None:
    argv = ssh.argv(cluster, "node1", ["true"])
    assert argv[1:3] == ["-F", str(cluster.ssh_config)]
    assert "BatchMode=yes" in argv


def test_a_node_is_picked_by_name(cluster: Cluster) -> None:
    assert ssh.pick(cluster).name == "node0"
    assert ssh.pick(cluster, "head").name == "node0"
    assert ssh.pick(cluster, "node1").name == "node1"
    with pytest.raises(UsageError, match="there is no node 'node9'; choose one of: node0, node1"):
        ssh.pick(cluster, "node9")


def test_a_cluster_without_nodes_and_one_that_never_was() -> None:
    with pytest.raises(UsageError, match="there is no cluster 'gone'"):
        ssh.pick(Cluster("gone"))
    Cluster("half").store_spec(Spec(name="half"))
    with pytest.raises(HvdctlError, match="cluster 'half' has no nodes"):
        ssh.pick(Cluster("half"))


def test_silence_is_told(cluster: Cluster, fake_nodes: Path) -> None:
    with pytest.raises(HvdctlError, match="node0 gave no answer within 0 s"):
        ssh.run(cluster, "node0", ["sleep", "600"], timeout=0.2)


def test_wait_returns_when_sshd_greets(listener: socket.socket) -> None:
    host, port = listener.getsockname()

    def greet() -> None:
        # The first visitor meets a program that is not an SSH server yet.
        for words in (b"", b"SSH-2.0-test\r\n"):
            link, _ = listener.accept()
            link.sendall(words)
            link.close()

    server = threading.Thread(target=greet)
    server.start()
    ssh.wait([replace(make_nodes(1)[0], address=host, ssh_port=port)])
    server.join(30)
    assert not server.is_alive()


def test_wait_names_the_nodes_that_stay_silent(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    listener.close()
    node = replace(make_nodes(1)[0], address=host, ssh_port=port)
    behind = replace(node, name="node1", ssh_proxy="gate")
    with pytest.raises(HvdctlError, match="no SSH server answers on node0 after 0 s"):
        ssh.wait([node, behind], seconds=0.1)


def test_a_machine_under_a_node_is_reached_by_name(cluster: Cluster) -> None:
    assert ssh.host(cluster) == "node0"
    assert ssh.host(cluster, "node1") == "node1"
    with pytest.raises(UsageError, match="node1 is a container with no machine of its own"):
        ssh.host(cluster, "node1.machine")
    cluster.store_nodes([replace(node, kind="machine") for node in cluster.nodes()])
    assert ssh.host(cluster, "node1.machine") == "node1.machine"
    with pytest.raises(UsageError, match="node1 is a container on"):
        ssh.host(cluster, "node1.lan")
