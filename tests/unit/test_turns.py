"""Whoever waits for another process says for whom, and not for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hvdctl import images, paths, tunnel, turns
from hvdctl.cluster import Cluster
from hvdctl.errors import LockedError

HOLD = """
import sys
from pathlib import Path
from hvdctl import turns
with turns.alone(Path(sys.argv[1]), "it", limit=1):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has its turn until the block, or its input, ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        yield other
        if other.stdin and not other.stdin.closed:
            other.stdin.close()


class Shown:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.then: Callable[[], None] = lambda: None

    @contextmanager
    def phase(self, title: str) -> Iterator[Shown]:
        self.said.append(title)
        yield self
        self.said.append("over")

    def update(self, detail: str) -> None:
        self.said.append(detail)
        self.then()

    def note(self, text: str) -> None: ...

    def outlook(self, look: Callable[[], str] | None) -> None: ...


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "home"))


def test_a_turn_that_is_free_is_taken_in_silence(tmp_path: Path) -> None:
    shown = Shown()
    for _ in range(2):
        with images.turn(shown):
            pass
    assert shown.said == []


def test_who_builds_images_is_named_while_another_waits() -> None:
    shown = Shown()
    with held(paths.cache() / "images.lock") as other:
        assert other.stdin
        shown.then = other.stdin.close
        with images.turn(shown):
            shown.said.append("mine")
    waited = f"process {other.pid}"
    assert shown.said[:2] == ["Waiting for another hvdctl that builds images", waited]
    assert shown.said[-2:] == ["over", "mine"]


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_TURN_S", 0.3)
    with held(paths.cache() / "images.lock") as other, pytest.raises(LockedError) as caught, images.turn(Shown()):
        pass
    assert f"process {other.pid} has been busy with building images" in caught.value.message


def test_a_tunnel_that_another_process_opens_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "_TURN_S", 0.3)
    cluster = Cluster("demo")
    with (
        held(paths.private(cluster.folder / "jupyter") / "turn.lock") as other,
        pytest.raises(LockedError) as caught,
    ):
        tunnel.close(cluster)
    assert f"process {other.pid} has been busy with the tunnel to 'demo'" in caught.value.message
    assert tunnel.close(cluster) is False


def test_a_turn_ends_with_its_process(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with held(file) as other:
        other.kill()
        other.wait()
        with turns.alone(file, "it", limit=2):
            assert file.read_text() != f"{other.pid}\n"
