"""`hvdctl top`: what the head tells, as a table, as lines, as JSON and live in a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from fake_engine import FakeEngine
from hvdctl import top
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError
from support import Hvdctl, stand, started_with, wait_for

GIB = 2**30


def sample(node: str, **more: Any) -> dict[str, Any]:
    return {
        "node": node,
        "role": "worker" if node[-1] != "0" else "head",
        "time": 1000.0,
        "scope": "container",
        "cpu": 0.97,
        "cpus": 2.0,
        "memory": 3 * GIB // 2,
        "memory_limit": 16 * GIB,
        "rx_bits": 123_400_000,
        "tx_bits": 1_500_000,
        "link": 10**9,
        "gpus": [],
        "ranks": 1,
        **more,
    }


LOST = {"node": "node1", "role": "worker", "lost": "ssh: connect to host node1: refused"}
GPU = {"name": "P100", "use": 0.5, "memory": 2 * GIB, "memory_limit": 16 * GIB}


@pytest.fixture
def head(tmp_path: Path, on_path: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh that says what the file `told` holds, again and again with `stays`, or fails as the file `fails` says."""
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "ssh").write_text(
        f'#!/bin/sh\necho "$*" >>{folder}/asked\n'
        f"[ -f {folder}/fails ] && {{ cat {folder}/fails >&2; exit 255; }}\n"
        f"cat {folder}/told\n"
        f"while [ -f {folder}/stays ]; do sleep 0.1; cat {folder}/told; done\n"
    )
    (folder / "ssh").chmod(0o755)
    on_path(folder)
    monkeypatch.setenv("FAKE_HEAD", str(folder))
    yield folder
    wait_for(lambda: not started_with(f"FAKE_HEAD={folder}"))


def tell(head: Path, *nodes: dict[str, Any]) -> None:
    (head / "told").write_text(json.dumps({"time": 1000.0, "nodes": nodes}) + "\n")


def test_one_look_is_a_table(hvdctl: Hvdctl, cluster: Cluster, head: Path) -> None:
    tell(head, sample("node0"), sample("node1", cpu=None, rx_bits=None))
    done = hvdctl("top", "--name", "demo", "--once")
    assert done.code == 0
    rows = [re.split(r"  +", line) for line in done.out.splitlines()]
    assert rows == [
        ["NODE", "CPU", "MEMORY", "IN", "OUT", "RANKS"],
        ["node0", "97 % of 2", "1.5 GiB of 16.0 GiB", "123 Mbit/s", "1.5 Mbit/s", "1"],
        ["node1", "? of 2", "1.5 GiB of 16.0 GiB", "? Mbit/s", "1.5 Mbit/s", "1"],
    ]
    assert "hvd-agent top --every 1 --count 1" in (head / "asked").read_text()


def test_gpus_and_lost_nodes_are_told(hvdctl: Hvdctl, cluster: Cluster, head: Path) -> None:
    tell(head, sample("node0", gpus=[GPU]), LOST)
    done = hvdctl("top", "--name", "demo", "--once")
    assert done.code == 0
    assert "P100 50 %, 2.0 GiB of 16.0 GiB" in done.out
    assert "lost: ssh: connect to host node1: refused" in done.out


def test_one_look_as_json_is_one_document(hvdctl: Hvdctl, cluster: Cluster, head: Path) -> None:
    tell(head, sample("node0"), LOST)
    done = hvdctl("top", "--name", "demo", "--once", "--json", "--every", "0.2")
    assert json.loads(done.out)["nodes"][1] == LOST


def test_without_a_terminal_there_are_lines_until_the_head_is_lost(
    hvdctl: Hvdctl, cluster: Cluster, head: Path
) -> None:
    tell(head, sample("node0"), LOST)
    done = hvdctl("top", "--name", "demo")
    assert done.code == 1
    first, second = done.out.splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d  node0  cpu 97 % of 2  memory .* in 123 Mbit/s  out 1.5 Mbit/s  ranks 1", first
    )
    assert second.endswith("node1  lost: ssh: connect to host node1: refused")
    assert "the head, node0, is lost: the connection was cut" in done.err
    assert "`hvdctl up --name demo` makes it anew" in done.err
    done = hvdctl("top", "--name", "demo", "--json")
    assert [json.loads(line)["time"] for line in done.out.splitlines()] == [1000.0]


def test_errors_say_what_and_how_to_go_on(hvdctl: Hvdctl, cluster: Cluster, head: Path) -> None:
    (head / "fails").write_text("ssh: connect to host 10.99.0.2 port 2222: Connection refused\n")
    done = hvdctl("top", "--name", "demo", "--once")
    assert (done.code, done.out) == (1, "")
    assert "the head, node0, is lost: ssh: connect to host 10.99.0.2 port 2222: Connection refused" in done.err
    assert "`hvdctl up --name demo` makes it anew" in done.err
    done = hvdctl("top", "--name", "other")
    assert done.code == 2
    assert "there is no cluster 'other'" in done.err


def test_a_head_that_does_not_run_is_told_without_a_login(
    hvdctl: Hvdctl, cluster: Cluster, head: Path, engine: FakeEngine
) -> None:
    stand(engine, "node1")
    tell(head, sample("node0"))
    done = hvdctl("top", "--name", "demo", "--once")
    assert (done.code, done.out) == (1, "")
    assert "the head, node0, is lost: it does not run" in done.err


@pytest.mark.parametrize("every", ["0", "0.1", "61", "-1", "nan"])
def test_a_bad_interval_is_refused(hvdctl: Hvdctl, cluster: Cluster, every: str) -> None:
    done = hvdctl("top", "--name", "demo", f"--every={every}")
    assert done.code == 2
    assert f"--every {float(every):g} is not an interval of 0.2 to 60 seconds" in done.err


def test_a_head_of_an_older_image_is_named(cluster: Cluster, head: Path) -> None:
    (head / "told").write_text('{"error": "no verb \'top\'"}\n')
    with pytest.raises(HvdctlError, match="node0 can't watch the nodes: its image is of an older hvdctl") as told:
        next(top.documents(cluster))
    assert "makes it anew" in told.value.hint
    (head / "told").write_text("Welcome!\n")
    with pytest.raises(HvdctlError, match="what is no sample: 'Welcome!'"):
        next(top.documents(cluster))


def test_the_connection_ends_with_the_reader(cluster: Cluster, head: Path) -> None:
    tell(head, sample("node0"))
    (head / "stays").touch()
    documents = top.documents(cluster, every=0.2)
    assert [next(documents)["time"] for _ in range(3)] == [1000.0] * 3
    documents.close()  # type: ignore[attr-defined]
    wait_for(lambda: not started_with(f"FAKE_HEAD={head}"))


@contextlib.contextmanager
def terminal(height: int, width: int) -> Iterator[Any]:
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(width), "LINES": str(height)}
    words = ["-m", "hvdctl", "top", "--name", "demo"]
    shown = pexpect.spawn(sys.executable, words, env=env, dimensions=(height, width), encoding="utf-8", timeout=20)
    try:
        yield shown
    finally:
        shown.close(force=True)


@pytest.mark.parametrize(("key", "width"), [("q", 80), ("\x03", 140)])
def test_live_in_a_terminal_and_away_again(cluster: Cluster, head: Path, key: str, width: int) -> None:
    tell(head, sample("node0", gpus=[GPU]), LOST)
    (head / "stays").touch()
    with terminal(24, width) as shown:
        for text in ("2 nodes, 1 lost", "IN, Mbit/s", "97 % of 2", "123", "node1 is lost: ssh: connect"):
            shown.expect_exact(text)
        shown.send(key)
        shown.expect(pexpect.EOF)
        assert "\x1b[?1049l" in shown.before, "the screen from before is back"
        shown.close()
        assert shown.exitstatus == 0


@pytest.mark.parametrize(("height", "count", "more"), [(12, 30, 23), (5, 3, 3)])
def test_more_nodes_than_lines_are_counted(cluster: Cluster, head: Path, height: int, count: int, more: int) -> None:
    tell(head, *(sample(f"node{i}") for i in range(count)))
    (head / "stays").touch()
    with terminal(height, 80) as shown:
        shown.expect_exact(f"... and {more} more")
        shown.send("q")
        shown.expect(pexpect.EOF)


def test_the_terminal_is_given_back_also_to_one_that_ends_it(cluster: Cluster, head: Path) -> None:
    tell(head, sample("node0"))
    (head / "stays").touch()
    with terminal(12, 80) as shown:
        shown.expect_exact("node0")
        shown.kill(signal.SIGTERM)
        shown.expect_exact("\x1b[?1049l")
        shown.expect(pexpect.EOF)
        shown.wait()
        assert shown.exitstatus == 143


def test_a_reader_that_goes_is_no_error(cluster: Cluster, head: Path) -> None:
    import subprocess

    tell(head, sample("node0"))
    (head / "stays").touch()
    child = subprocess.Popen(
        [sys.executable, "-m", "hvdctl", "top", "--name", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(20) == 0
    assert child.stderr.read() == ""
    child.stderr.close()
