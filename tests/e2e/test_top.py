"""`hvdctl top` on real nodes: a busy one shows busy, an idle one idle, and nothing stays behind."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from tests.e2e.conftest import Hvdctl, wait_for

pytestmark = pytest.mark.docker

BUSY = "timeout 30 sh -c 'while :; do :; done'"


def test_a_busy_node_is_told_from_an_idle_one(pair: Hvdctl) -> None:
    pair("exec", "node1", "--", "sh", "-c", f"{BUSY} >/dev/null 2>&1 &")
    top = subprocess.Popen(
        pair.argv("top", "--json", "--every", "0.5"), env=pair.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert top.stdout is not None
    try:
        documents = [json.loads(top.stdout.readline()) for _ in range(8)][2:]
        used = {node: [cores(document, node) for document in documents] for node in (0, 1)}
        # Others may be at work on this machine: the busy one gets what is left of a core.
        assert max(used[1]) > 0.3, used
        assert min(used[0]) < 0.2 and min(used[0]) < min(used[1]), used
        assert len(pair.processes("agent sample")) >= 2
    finally:
        top.send_signal(signal.SIGINT)
        said = top.communicate(timeout=30)[1]
        pair("exec", "node1", "--", "pkill", "-f", "while :", code=None)
    assert top.returncode == 0, said
    wait_for(lambda: not [line for line in pair.processes("hvdctl/agent") if " sample" in line or " top" in line], 15)


def cores(document: dict[str, list[dict[str, float]]], node: int) -> float:
    told = document["nodes"][node]
    return told["cpu"] * told["cpus"]


def test_one_look(pair: Hvdctl) -> None:
    told = pair("top", "--once", "--json").data
    assert [(node["node"], node["role"], node["scope"]) for node in told["nodes"]] == [
        ("node0", "head", "container"),
        ("node1", "worker", "container"),
    ]
    assert all(node["rx_bits"] is not None and 0 < node["memory"] < node["memory_limit"] for node in told["nodes"])
    assert pair("top", "--once").out.splitlines()[1].startswith("node0 ")
