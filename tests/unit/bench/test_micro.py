from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hvdctl import links
from hvdctl.bench import micro, probes, shapes
from hvdctl.bench.plan import Layout
from hvdctl.cluster import Cluster
from hvdctl.errors import Interrupted
from hvdctl.links import Measured
from hvdctl.spec import parse
from support import make_nodes

G = 10**9


class Wires:
    """links.measure of nodes whose links carry what was told; counts who measures at once."""

    def __init__(self, bits: float = 0.95 * G, **slow: list[float]) -> None:
        self.bits, self.slow = bits, slow
        self.calls: list[tuple[str, str]] = []
        self.under_way: set[str] = set()
        self.most = 0
        self.lock = threading.Lock()

    def measure(self, cluster: Cluster, source: str, target: str, asked: int | None) -> Measured:
        with self.lock:
            assert not {source, target} & self.under_way
            self.under_way |= {source, target}
            self.most = max(self.most, len(self.under_way) // 2)
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


def test_open_links_of_nodes_that_share_cores_are_measured_one_by_one(
    four: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    wires = Wires()
    monkeypatch.setattr(links, "measure", wires.measure)
    record = micro.pairs(four, None, lambda _: turns.append(len(wires.calls)))
    assert turns == list(range(12))
    assert (len(record["pairs"]), "of" in record, wires.most) == (12, False, 1)
    assert len(wires.calls) == 12, "all were measured alone: nothing is to be confirmed"


@pytest.fixture
def machines() -> Cluster:
    """Four nodes, each with cores of its own."""
    made = Cluster("demo")
    made.store_spec(parse({"name": "demo", "provider": "aws", "nodes": 4}, "x"))
    made.store_nodes(make_nodes(4))
    return made


def test_open_links_of_machines_are_measured_at_once_and_the_slowest_again_alone(
    machines: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wires = Wires(9 * G, node0_node1=[1 * G, 8 * G], node3_node2=[2 * G, 3 * G])
    turns: list[int] = []
    monkeypatch.setattr(links, "measure", wires.measure)
    record = micro.pairs(machines, None, lambda _: turns.append(len(wires.calls)))
    assert turns == [0, 2, 4, 6, 8, 10], "two disjoint pairs at a time"
    assert wires.calls[12:] == [("node0", "node1"), ("node3", "node2")], "what was slow because of others is not slow"
    found = {(pair["source"], pair["target"]): pair["bits"] for pair in record["pairs"]}
    assert (found["node0", "node1"], found["node3", "node2"]) == (8 * G, 3 * G)
    assert (len(found), "of" in record, record["together"]) == (12, False, True)


@pytest.mark.parametrize("provider", ["local", "aws"])
def test_of_many_nodes_a_sample_is_measured_and_the_slowest_confirmed(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("demo")
    cluster.store_spec(parse({"name": "demo", "provider": provider, "nodes": 100}, "x"))
    cluster.store_nodes(make_nodes(100))
    wires = Wires(9 * G, node0_node99=[1 * G, 2 * G])
    monkeypatch.setattr(links, "measure", wires.measure)
    said: list[str] = []
    record = micro.pairs(cluster, None, said.append)
    assert (len(record["pairs"]), record["of"]) == (200, 9900)
    assert said[0] == "0 of 200 pairs of nodes, a sample of 9900"
    assert len(said) == (200 if provider == "local" else 4)
    assert wires.calls[200:] == [("node0", "node99")]
    assert micro.slowest(record) == {"source": "node0", "target": "node99", "bits": 2 * G}
    assert shapes.wrong(record) is None


def test_ctrl_c_ends_also_what_is_measured_again(four: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(0.1 * G)
    monkeypatch.setattr(links, "measure", wires.measure)
    with pytest.raises(Interrupted):
        micro.pairs(four, G, lambda _: None, pressed=lambda: len(wires.calls) >= 3)
    assert len(wires.calls) == 3, "two at once, one of them again"


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
    assert (asked[0]["op"], asked[0]["sizes"]) == ("allreduce", list(probes.SIZES))
    assert said == ["allreduce of 4 KiB: 250 Mbit/s"]
    axes = {axis: record[axis] for axis in ("kind", "nodes", "slots", "ranks", "net", "launcher")}
    assert axes == {"kind": "allreduce", "nodes": 3, "slots": 2, "ranks": 6, "net": G, "launcher": "torch-ddp"}
    assert record["rows"][0]["bytes"] == 4096
