"""The tunnel and what keeps it, with an ssh that forwards to sockets of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hvdctl import tunnel
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError
from support import runs, started_with, wait_for


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A socket that says hello."""
    monkeypatch.chdir(tmp_path)
    path = f"/tmp/hvd-far-{os.getpid()}.sock"  # short, as sockets' paths must be
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                with link, contextlib.suppress(BrokenPipeError):  # who only looks leaves
                    link.sendall(b"hello")

        threading.Thread(target=serve, daemon=True).start()
        yield path
        server.shutdown(socket.SHUT_RDWR)
    Path(path).unlink()


@pytest.fixture
def ours(cluster: Cluster, fake_nodes: Path) -> Iterator[Cluster]:
    yield cluster
    tunnel.close(cluster)


def heard(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        return link.recv(5)


def ssh_of(nodes: Path, port: int) -> int:
    """The process that forwards."""
    for pid in started_with(f"FAKE_NODES={nodes}"):
        with contextlib.suppress(OSError):
            if f"127.0.0.1:{port}:".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


def somewhere() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_is_open_when_open_returns_and_gone_after_close(ours: Cluster, far: str, fake_nodes: Path) -> None:
    wanted = somewhere()
    port, moved = tunnel.open_(ours, "node0", far, wanted)
    assert (port, moved) == (wanted, None)
    assert heard(port) == b"hello"
    state = tunnel.state(ours)
    assert (state["open"], state["port"], state["rebuilt"]) == (True, port, 0)
    assert tunnel.close(ours)
    assert not tunnel.close(ours)
    assert not ssh_of(fake_nodes, port), "its port is free when close returns"
    assert not runs(state["pid"])
    assert tunnel.state(ours) == {"running": False, "open": False, "port": port}


def test_one_that_is_there_is_kept_and_its_port_is_taken_again_later(ours: Cluster, far: str) -> None:
    port, _ = tunnel.open_(ours, "node0", far, somewhere())
    keeper = tunnel.state(ours)["pid"]
    assert tunnel.open_(ours, "node0", far, None) == (port, None)
    assert tunnel.state(ours)["pid"] == keeper
    tunnel.close(ours)
    assert tunnel.open_(ours, "node0", far, None) == (port, None)


def test_another_port_on_request(ours: Cluster, far: str, fake_nodes: Path) -> None:
    first, _ = tunnel.open_(ours, "node0", far, somewhere())
    second, _ = tunnel.open_(ours, "node0", far, somewhere())
    assert second != first
    assert heard(second) == b"hello"
    wait_for(lambda: not ssh_of(fake_nodes, first))


def test_a_port_that_is_taken_is_told_and_the_next_one_chosen(ours: Cluster, far: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        wanted = other.getsockname()[1]
        port, moved = tunnel.open_(ours, "node0", far, wanted)
        assert moved == wanted
        assert port != wanted
        assert heard(port) == b"hello"


def test_one_that_stands_is_kept_where_another_port_is_asked_for_and_taken(ours: Cluster, far: str) -> None:
    port, _ = tunnel.open_(ours, "node0", far, somewhere())
    keeper = tunnel.state(ours)["pid"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        wanted = other.getsockname()[1]
        assert tunnel.open_(ours, "node0", far, wanted) == (port, wanted)
    assert tunnel.state(ours)["pid"] == keeper
    assert heard(port) == b"hello"


def test_a_dead_ssh_is_started_again_on_the_same_port(ours: Cluster, far: str, fake_nodes: Path) -> None:
    port, _ = tunnel.open_(ours, "node0", far, somewhere())
    first = ssh_of(fake_nodes, port)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: ssh_of(fake_nodes, port) not in (0, first) and tunnel.state(ours)["open"])
    assert heard(port) == b"hello"
    assert tunnel.state(ours)["rebuilt"] == 1


def test_while_the_head_is_away_the_reason_is_told_and_it_comes_back_by_itself(
    ours: Cluster, far: str, fake_nodes: Path
) -> None:
    port, _ = tunnel.open_(ours, "node0", far, somewhere())
    (fake_nodes / "down").write_text("node0\n")
    os.kill(ssh_of(fake_nodes, port), signal.SIGKILL)
    wait_for(lambda: "Connection refused" in tunnel.state(ours).get("problem", ""))
    assert not tunnel.state(ours)["open"]
    (fake_nodes / "down").unlink()
    wait_for(lambda: tunnel.state(ours)["open"])
    assert heard(port) == b"hello"


def test_a_killed_keeper_leaves_no_ssh_and_is_replaced(ours: Cluster, far: str, fake_nodes: Path) -> None:
    port, _ = tunnel.open_(ours, "node0", far, somewhere())
    os.kill(tunnel.state(ours)["pid"], signal.SIGKILL)
    wait_for(lambda: not ssh_of(fake_nodes, port) and tunnel.free(port) == port)
    assert not tunnel.state(ours)["running"]
    assert tunnel.open_(ours, "node0", far, None) == (port, None)
    assert heard(port) == b"hello"


def test_a_head_that_refuses_is_named_and_nothing_stays(
    ours: Cluster, far: str, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        """It is too late as soon as the reason is known."""

        sleep = staticmethod(time.sleep)

        @staticmethod
        def monotonic() -> float:
            known = "Connection refused" in tunnel.state(ours).get("problem", "")
            return time.monotonic() + (tunnel._OPEN_S if known else 0)

    monkeypatch.setattr(tunnel, "time", Clock)
    (fake_nodes / "down").write_text("node0\n")
    with pytest.raises(HvdctlError, match="Connection refused"):
        tunnel.open_(ours, "node0", far, somewhere())
    assert not tunnel.state(ours)["running"]


def test_a_port_that_is_lost_while_the_head_is_away_is_replaced(ours: Cluster, far: str, fake_nodes: Path) -> None:
    port, _ = tunnel.open_(ours, "node0", far, somewhere())
    (fake_nodes / "down").write_text("node0\n")
    os.kill(ssh_of(fake_nodes, port), signal.SIGKILL)
    wait_for(lambda: "Connection refused" in tunnel.state(ours).get("problem", ""))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        (fake_nodes / "down").unlink()
        wait_for(lambda: tunnel.state(ours).get("problem") == tunnel._TAKEN)
        assert not tunnel.state(ours)["open"], "who listens there is not our ssh"
        again, moved = tunnel.open_(ours, "node0", far, None)
        assert again != port
        assert moved == port
        assert heard(again) == b"hello"


def test_two_at_once_open_one_tunnel(ours: Cluster, far: str) -> None:
    wanted = somewhere()
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: tunnel.open_(ours, "node0", far, wanted), range(4)))
    assert told == [(wanted, None)] * 4


def test_a_number_that_is_another_process_is_left_alone(ours: Cluster, far: str) -> None:
    """A keeper that was killed leaves its number in the file; by now it may be somebody else's."""
    other = subprocess.Popen(["sleep", "600"])
    try:
        (ours.folder / "jupyter").mkdir(mode=0o700)
        (ours.folder / "jupyter" / "tunnel.lock").write_text(f"{other.pid}\n")
        assert not tunnel.state(ours)["running"]
        port, _ = tunnel.open_(ours, "node0", far, somewhere())
        assert heard(port) == b"hello"
        assert tunnel.close(ours)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_it_ends_with_its_cluster(ours: Cluster, far: str, fake_nodes: Path) -> None:
    port, _ = tunnel.open_(ours, "node0", far, somewhere())
    keeper = tunnel.state(ours)["pid"]
    ours.remove()
    began = time.monotonic()
    wait_for(lambda: not runs(keeper) and not ssh_of(fake_nodes, port))
    assert time.monotonic() - began < 10
