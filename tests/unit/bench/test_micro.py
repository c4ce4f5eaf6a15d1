from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hvdctl import links
from hvdctl.bench import micro
from hvdctl.bench.plan import Layout
from hvdctl.cluster import Cluster
from hvdctl.links import Measured
from support import make_nodes

G = 10**9


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 11])
def test_rounds_hold_every_pair_once_and_no_node_twice(count: int) -> None:
    names = [f"node{i}" for i in range(count)]
    turns = micro.rounds(names)
    met = [pair for turn in turns for pair in turn]
    assert sorted(met) == sorted((a, b) for a in names for b in names if a != b)
    for turn in turns:
        busy = [name for pair in turn for name in pair]
        assert len(busy) == len(set(busy))
    assert len(turns) <= 2 * count, "as many pairs at once as there can be"


class Wires:
    """links.measure of nodes whose links carry what was told; counts who measures at once."""

    def __init__(self, bits: float = 0.95 * G, **slow: list[float]) -> None:
        self.bits, self.slow = bits, slow
        self.calls: list[tuple[str, str]] = []
        self.under_way: set[str] = set()
        self.lock = threading.Lock()

    def measure(self, cluster: Cluster, source: str, target: str, asked: int | None) -> Measured:
        with self.lock:
            assert not {source, target} & self.under_way
            self.under_way |= {source, target}
            self.calls.append((source, target))
            given = self.slow.get(f"{source}_{target}")
            bits = given.pop(0) if given else self.bits
        with self.lock:
            self.under_way -= {source, target}
        return Measured(source, target, bits, asked)


@pytest.fixture
def four(cluster: Cluster) -> Cluster:
    cluster.store_nodes(make_nodes(4))
    return cluster


def test_a_pair_that_falls_short_is_measured_again_alone(four: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(node0_node1=[0.5 * G, 0.94 * G], node3_node2=[0.1 * G, 0.2 * G])
    monkeypatch.setattr(links, "measure", wires.measure)
    said: list[str] = []
    record = micro.pairs(four, G, said.append)
    assert (record["kind"], record["net"], len(record["pairs"])) == ("links", G, 12)
    found = {(pair["source"], pair["target"]): pair["bits"] for pair in record["pairs"]}
    assert found[("node0", "node1")] == 0.94 * G
    assert found[("node3", "node2")] == 0.2 * G, "what is slow when alone is slow"
    assert found[("node1", "node0")] == 0.95 * G
    again = [pair for pair in wires.calls if wires.calls.count(pair) == 2]
    assert set(again) == {("node0", "node1"), ("node3", "node2")}
    assert list(found) == sorted(found)
    assert said[0] == "0 of 12 pairs of nodes"
    assert micro.slowest(record) == {"source": "node3", "target": "node2", "bits": 0.2 * G}


def test_open_links_are_measured_one_by_one(four: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    wires = Wires()
    monkeypatch.setattr(links, "measure", wires.measure)
    record = micro.pairs(four, None, lambda _: turns.append(len(wires.calls)))
    assert turns == list(range(12))
    assert len(record["pairs"]) == 12


def test_only_the_nodes_of_a_layout_are_measured(four: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "measure", Wires().measure)
    record = micro.pairs(four, G, lambda _: None, 2)
    assert [(pair["source"], pair["target"]) for pair in record["pairs"]] == [("node0", "node1"), ("node1", "node0")]


def test_no_pair_is_slowest_of_none() -> None:
    assert micro.slowest({"pairs": []}) is None


@pytest.mark.parametrize(
    ("size", "shown"),
    [(4, "4 B"), (4096, "4 KiB"), (65536, "64 KiB"), (25 << 20, "25 MiB"), (1536 << 10, "1.5 MiB")],
)
def test_sizes(size: int, shown: str) -> None:
    assert micro.shown_size(size) == shown


def test_an_allreduce_is_asked_of_the_ranks_and_told_while_it_runs() -> None:
    asked: list[dict[str, Any]] = []

    def ask(request: dict[str, Any], listen: Any) -> dict[str, Any]:
        asked.append(request)
        listen({"event": "progress", "bytes": 4096, "bus_bits": 2.5e8})
        return {"rows": [{"bytes": 4096, "time_s": 1.0, "alg_bits": 1.0, "bus_bits": 1.0, "iterations": 3}]}

    said: list[str] = []
    ranks: Any = SimpleNamespace(ask=ask, layout=Layout(3, 2))
    record = micro.allreduce(ranks, "torch-ddp", G, said.append)
    assert (asked[0]["op"], asked[0]["sizes"]) == ("allreduce", list(micro.SIZES))
    assert said == ["allreduce of 4 KiB: 250 Mbit/s"]
    axes = {axis: record[axis] for axis in ("kind", "nodes", "slots", "ranks", "net", "launcher")}
    assert axes == {"kind": "allreduce", "nodes": 3, "slots": 2, "ranks": 6, "net": G, "launcher": "torch-ddp"}
    assert record["rows"][0]["bytes"] == 4096
