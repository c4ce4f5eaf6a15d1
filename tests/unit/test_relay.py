"""The relays of a line as machines run them: real processes on the loopback, a docker that stores what it is given."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest
from hvdctl import relay

SECRET = b"secret of a transfer"
DATA = [bytes([index]) * 50_000 for index in range(20)]
DOCKER = {
    "good": "exec cat >loaded",
    "full": "echo no space left on device >&2; exit 1",
    "takes nothing": "exec sleep 20",
    "never ends": "cat >loaded; exec sleep 20",
}


class Machine:
    """One relay, told line by line what to do; limits are short unless a test gives its own."""

    def __init__(self, folder: Path, *, first: bool = False, docker: str = "good", **limits: float) -> None:
        folder.mkdir()
        program = folder / "docker"
        program.write_text(f"#!/bin/sh\n[ \"$*\" = 'load --quiet' ] || exit 3\n{DOCKER[docker]}\n")
        program.chmod(0o755)
        self.folder = folder
        self.sent = 0
        self.child = subprocess.Popen(
            [sys.executable, relay.__file__],
            cwd=folder,
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.tell(
            {
                "listen": None if first else "127.0.0.1",
                "secret": SECRET.hex(),
                "limits": {"line": 10, "piece": 5, "proof": 1, "load": 5, **limits},
            }
        )
        self.port = int(cast(IO[bytes], self.child.stdout).readline().split()[1])

    @property
    def place(self) -> dict[str, Any]:
        return {"address": "127.0.0.1", "port": self.port}

    def tell(self, what: dict[str, Any] | None) -> None:
        self.give(json.dumps(what).encode() + b"\n")

    def give(self, data: bytes) -> None:
        pipe = cast(IO[bytes], self.child.stdin)
        pipe.write(data)
        pipe.flush()

    def send(self, pieces: list[bytes], *, whole: bool = True) -> None:
        try:
            for piece in [*pieces, b""] if whole else pieces:
                self.give(relay.sealed(SECRET, self.sent, piece))
                self.sent += 1
        except BrokenPipeError:
            pass  # its exit code tells

    def ended(self) -> tuple[int, str]:
        """Exit code and words; it is not fed any more."""
        _, said = self.child.communicate(timeout=15)
        return self.child.returncode, said.decode().strip()

    @property
    def loaded(self) -> bytes:
        return (self.folder / "loaded").read_bytes()


def stream(*pieces: bytes) -> bytes:
    """Pieces as they go from one machine to the next."""
    return b"".join(relay.sealed(SECRET, number, piece) for number, piece in enumerate([*pieces, b""]))


def prove(link: socket.socket, secret: bytes = SECRET) -> None:
    """What a machine says first to the one after it."""
    link.settimeout(5)
    link.sendall(relay.proof(secret, link.recv(16, socket.MSG_WAITALL)))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """Makes machines; none outlives the test."""
    machines: list[Machine] = []

    def make(**how: Any) -> Machine:
        machines.append(Machine(tmp_path / f"m{len(machines)}", **how))
        return machines[-1]

    yield make
    for machine in machines:
        machine.child.kill()
        machine.child.communicate()


def joined(*line: Machine) -> None:
    for machine, after in zip(line, [*line[1:], None], strict=True):
        machine.tell(after.place if after else None)


def test_every_machine_of_a_line_loads_the_same(made: Any) -> None:
    line = [made(first=index == 0) for index in range(3)]
    joined(*line)
    line[0].send(DATA)
    assert [machine.ended() for machine in line] == [(0, "")] * 3
    assert [machine.loaded for machine in line] == [b"".join(DATA)] * 3


def test_the_time_until_all_of_the_line_listen_counts_for_no_other_limit(made: Any) -> None:
    line = [made(first=index == 0, piece=1) for index in range(3)]
    time.sleep(1.1)
    joined(*line)
    line[0].send(DATA)
    assert [machine.ended() for machine in line] == [(0, "")] * 3


def test_a_machine_connects_onward_before_it_is_connected_to(made: Any) -> None:
    middle = made()
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(5)
        middle.tell({"address": "127.0.0.1", "port": door.getsockname()[1]})
        link, _ = door.accept()
        with link:
            link.settimeout(5)
            link.sendall(b"n" * 16)
            assert link.recv(32) == relay.proof(SECRET, b"n" * 16)


def test_a_broken_middle_ends_the_line_and_is_the_only_one_at_fault(made: Any) -> None:
    line = [made(first=True), made(docker="full"), made()]
    joined(*line)
    # More than fits between two machines.
    line[0].send([bytes(250_000)] * 60)
    ends = [machine.ended() for machine in line]
    assert [code for code, _ in ends] == [relay.AFTER, 1, relay.BEFORE]
    assert ends[1][1] == "no space left on device"
    assert ends[2][1] == "the machine before this one broke off"


def test_a_stream_that_breaks_off_is_not_loaded_as_a_whole_one(made: Any) -> None:
    line = [made(first=True), made()]
    joined(*line)
    line[0].send(DATA, whole=False)
    assert [machine.ended()[0] for machine in line] == [relay.BEFORE] * 2


def test_strangers_are_refused_and_the_right_one_is_still_taken(made: Any) -> None:
    machine = made(proof=0.5)
    machine.tell(None)
    place = ("127.0.0.1", machine.port)
    with (
        socket.create_connection(place) as wrong,
        socket.create_connection(place) as silent,
        socket.create_connection(place) as right,
    ):
        prove(wrong, b"another secret")
        wrong.sendall(stream(b"not ours"))
        # It is heard when the silent one has had its time.
        prove(right)
        right.sendall(stream(b"ours"))
        assert machine.ended() == (0, "")
        for stranger in (wrong, silent):
            stranger.settimeout(5)
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                for _ in range(100):
                    stranger.sendall(b"x")
                    time.sleep(0.01)
    assert machine.loaded == b"ours"


def cut(data: bytes) -> bytes:
    return data[: -len(relay.sealed(SECRET, 2, b""))]


FORGED = {
    "changed": stream(b"ours", b"more").replace(b"ours", b"evil"),
    "swapped": relay.sealed(SECRET, 1, b"more") + relay.sealed(SECRET, 0, b"ours") + relay.sealed(SECRET, 2, b""),
    "added": cut(stream(b"ours", b"more")) + relay.sealed(b"guessed", 2, b"evil") + relay.sealed(SECRET, 3, b""),
    "left out": relay.sealed(SECRET, 0, b"ours") + relay.sealed(SECRET, 2, b""),
    "sent again": relay.sealed(SECRET, 0, b"ours") * 2 + relay.sealed(SECRET, 1, b""),
    "ended early": relay.sealed(SECRET, 0, b"ours") + bytes(36),
    "huge": b"\xff\xff\xff\xff" + bytes(100),
}


@pytest.mark.parametrize("how", FORGED)
def test_what_somebody_on_the_way_has_changed_is_not_loaded(made: Any, how: str) -> None:
    line = [made(), made()]
    joined(*line)
    with socket.create_connection(("127.0.0.1", line[0].port)) as middle:
        # Somebody between two machines can let them prove to each other who they are.
        prove(middle)
        middle.sendall(FORGED[how])
        codes = [machine.ended() for machine in line]
    told = "what came from the machine before this one is not what hvdctl has sent"
    assert codes[0] == (relay.BEFORE, told)
    assert codes[1][0] == relay.BEFORE
    loaded = [file.read_bytes() for machine in line for file in machine.folder.glob("loaded")]
    assert b"evil" not in b"".join(loaded)


def test_the_secret_is_not_said(made: Any) -> None:
    line = [made(first=True), made()]
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(("127.0.0.1", line[1].port)) as far:
        line[0].tell({"address": "127.0.0.1", "port": door.getsockname()[1]})
        line[1].tell(None)
        near, _ = door.accept()
        heard = far.recv(16, socket.MSG_WAITALL)
        near.sendall(heard)
        line[0].send([b"ours"])
        while piece := near.recv(1 << 16):
            heard += piece
            far.sendall(piece)
        far.close()
        assert [machine.ended() for machine in line] == [(0, "")] * 2
    assert b"ours" in heard
    assert SECRET not in heard
    assert SECRET.hex().encode() not in heard


def test_a_slow_stranger_can_not_keep_the_door(made: Any) -> None:
    machine = made(piece=3, proof=0.5)
    machine.tell(None)
    place = ("127.0.0.1", machine.port)
    with socket.create_connection(place) as slow, socket.create_connection(place) as right:
        # At this pace the whole proof would take longer than the right one may wait.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(32):
                slow.sendall(b"x")
                time.sleep(0.3)
        prove(right)
        right.sendall(stream(b"ours"))
        assert machine.ended() == (0, "")


@pytest.mark.parametrize("strangers", [0, 3])
def test_nobody_who_knows_the_secret_is_waited_for_no_longer_than_the_limit(made: Any, strangers: int) -> None:
    machine = made(piece=1, proof=0.2)
    machine.tell(None)
    links = [socket.create_connection(("127.0.0.1", machine.port)) for _ in range(strangers)]
    assert machine.ended() == (relay.BEFORE, "the machine before this one does not connect within 1 s")
    for link in links:
        link.close()


@pytest.mark.parametrize(
    ("docker", "said"),
    [("takes nothing", "docker load takes nothing within 1 s"), ("never ends", "docker load does not end within 1 s")],
)
def test_an_engine_that_hangs_is_given_up(made: Any, docker: str, said: str) -> None:
    machine = made(first=True, docker=docker, piece=1, load=1)
    joined(machine)
    machine.send(DATA)
    assert machine.ended() == (1, said)


def test_a_next_machine_that_hangs_is_given_up(made: Any) -> None:
    machine = made(first=True, piece=1)
    with socket.create_server(("127.0.0.1", 0)) as door:
        machine.tell({"address": "127.0.0.1", "port": door.getsockname()[1]})
        link, _ = door.accept()
        link.sendall(b"n" * 16)
        machine.send([bytes(250_000)] * 60)
        assert machine.ended() == (relay.AFTER, "the next machine takes nothing within 1 s")


def test_a_machine_before_that_hangs_is_given_up(made: Any) -> None:
    machine = made(piece=1)
    machine.tell(None)
    with socket.create_connection(("127.0.0.1", machine.port)) as before:
        prove(before)
        before.sendall(relay.sealed(SECRET, 0, b"some") + b"\0\0")
        assert machine.ended() == (relay.BEFORE, "the machine before this one sends nothing within 1 s")


def test_a_next_machine_that_is_not_there_is_told(made: Any) -> None:
    machine = made()
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    machine.tell({"address": "127.0.0.1", "port": port})
    assert machine.ended() == (
        relay.AFTER,
        f"the next machine does not answer at 127.0.0.1:{port}: Connection refused",
    )


def test_without_hvdctl_a_machine_does_not_wait(made: Any) -> None:
    machine = made()
    assert machine.ended() == (1, "hvdctl is gone")


def test_an_hvdctl_that_says_no_more_is_waited_for_with_a_limit(made: Any) -> None:
    machine = made(line=0.5)
    assert machine.child.wait(timeout=10) == 1
    assert "hvdctl does not say which machine is next within 0.5 s" in machine.ended()[1]
