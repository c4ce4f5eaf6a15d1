from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
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


def test_wait_returns_when_sshd_greets(cluster: Cluster, listener: socket.socket) -> None:
    host, port = listener.getsockname()

    def greet() -> None:
        # The first visitor meets a program that is not an SSH server yet.
        for words in (b"", b"SSH-2.0-test\r\n"):
            link, _ = listener.accept()
            link.sendall(words)
            link.close()

    server = threading.Thread(target=greet)
    server.start()
    ssh.wait(cluster, [replace(make_nodes(1)[0], address=host, ssh_port=port)])
    server.join(30)
    assert not server.is_alive()


def test_wait_names_the_nodes_that_stay_silent(cluster: Cluster, listener: socket.socket) -> None:
    host, port = listener.getsockname()
    listener.close()
    node = replace(make_nodes(1)[0], address=host, ssh_port=port)
    with pytest.raises(HvdctlError, match="no SSH server answers on node0 after 0 s"):
        ssh.wait(cluster, [node], seconds=0.1)


@pytest.mark.parametrize("refused", ["", "me@gate: Permission denied (publickey).", "Host key verification failed."])
def test_wait_logs_in_where_a_jump_host_is_on_the_way(
    cluster: Cluster, tmp_path: Path, on_path: Callable[[Path], None], refused: str
) -> None:
    (tmp_path / "words").write_text(f"{refused}\nkex_exchange_identification: Connection closed by remote host\n")
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\necho $* >>{tmp_path}/calls\n[ -z '{refused}' ] || {{ cat {tmp_path}/words >&2; exit 255; }}\n"
    )
    (tmp_path / "ssh").chmod(0o755)
    on_path(tmp_path)
    behind = replace(make_nodes(1)[0], ssh_proxy="me@gate:22")
    if refused:
        with pytest.raises(HvdctlError, match=f"node0 through me@gate:22 .{re.escape(refused)}") as told:
            ssh.wait(cluster, [behind], seconds=30)
        assert "is its host key known?" in told.value.hint
    else:
        ssh.wait(cluster, [behind], seconds=30)
    assert (tmp_path / "calls").read_text().count("node0 -- true") == 1


def test_a_machine_under_a_node_is_reached_by_name(cluster: Cluster) -> None:
    assert ssh.host(cluster) == "node0"
    assert ssh.host(cluster, "node1") == "node1"
    with pytest.raises(UsageError, match="node1 is a container with no machine of its own"):
        ssh.host(cluster, "node1.machine")
    cluster.store_nodes([replace(node, kind="machine") for node in cluster.nodes()])
    assert ssh.host(cluster, "node1.machine") == "node1.machine"
    with pytest.raises(UsageError, match="node1 is a container on"):
        ssh.host(cluster, "node1.lan")


CUT = """kex_exchange_identification: read: Connection reset by peer
Connection reset by 192.0.2.1 port 22"""
JUMP_CUT = f"""{CUT}
kex_exchange_identification: Connection closed by remote host
Connection closed by UNKNOWN port 65535"""


@pytest.fixture
def crowded(tmp_path: Path, on_path: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that says `words` and fails until a machine was tried `cuts` times; then it echoes its input."""
    folder = tmp_path / "crowded"
    folder.mkdir()
    (folder / "words").write_text(CUT)
    (folder / "cuts").write_text("1")
    (folder / "ssh").write_text(
        "#!/bin/sh\n"
        f'cd {folder}; echo tried >>"tries.$1"\n'
        '[ "$(wc -l <"tries.$1")" -gt "$(cat cuts)" ] || { cat words >&2; exit 255; }\n'
        'echo "$1 greets"; exec cat\n'
    )
    (folder / "ssh").chmod(0o755)
    on_path(folder)
    monkeypatch.setattr(ssh, "PAUSES", (0.02, 0.02, 0.02))
    return folder


def tries(folder: Path, name: str) -> int:
    return len((folder / f"tries.{name}").read_text().splitlines())


@pytest.mark.parametrize("words", [CUT, JUMP_CUT, "ssh: connect to host x port 22: Connection reset by peer"])
def test_logins_that_a_crowded_server_cuts_are_tried_again(crowded: Path, words: str) -> None:
    (crowded / "words").write_text(words)
    names = [f"m{index}" for index in range(5)]
    answers = ssh.gather([["ssh", name] for name in names], timeout=30)
    assert [done.stdout for done in answers] == [f"{name} greets\n" for name in names]
    assert [tries(crowded, name) for name in names] == [2] * 5


def test_what_a_command_reads_is_there_at_the_second_try(crowded: Path) -> None:
    assert ssh.capture(["ssh", "m"], stdin="given", timeout=30).stdout == "m greets\ngiven"


@pytest.mark.parametrize(
    "words",
    [
        "ssh: connect to host x port 22: Connection refused",
        "Permission denied (publickey).",
        # Through a jump host that refuses, is not there, or finds nobody behind it.
        f"me@gate: Permission denied (publickey).\n{CUT}",
        f"ssh: connect to host gate port 22: Connection refused\n{CUT}",
        f"channel 0: open failed: connect failed: Connection refused\nstdio forwarding failed\n{CUT}",
        # It may have run.
        "Connection to 192.0.2.1 closed by remote host.",
        "Connection reset by 192.0.2.1 port 22",
    ],
)
def test_other_failures_are_told_at_once(crowded: Path, words: str) -> None:
    (crowded / "words").write_text(words)
    (done,) = ssh.gather([["ssh", "m"]], timeout=30)
    assert (done.returncode, done.stderr) == (ssh.LOST, words)
    assert tries(crowded, "m") == 1


def test_a_server_that_always_cuts_is_told(crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (crowded / "cuts").write_text("99")
    (done,) = ssh.gather([["ssh", "m"]], timeout=30)
    assert (done.returncode, done.stderr) == (ssh.LOST, CUT)
    assert tries(crowded, "m") == 4
    monkeypatch.setattr(ssh, "PAUSES", (600.0,))
    started = time.monotonic()
    (done,) = ssh.gather([["ssh", "n"]], timeout=2)
    assert done.stderr == CUT
    assert time.monotonic() - started < 30, "no try and no pause beyond the timeout"
