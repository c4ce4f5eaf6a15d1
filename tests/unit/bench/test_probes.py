"""Which pairs of nodes are measured, and how long that takes."""

from __future__ import annotations

from collections import Counter

import pytest
from hvdctl import process
from hvdctl.bench import probes

G = 10**9


def names(count: int) -> list[str]:
    return [f"node{i}" for i in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 11])
def test_rounds_hold_every_pair_once_and_no_node_twice(count: int) -> None:
    turns = probes.rounds(names(count))
    met = [pair for turn in turns for pair in turn]
    assert sorted(met) == sorted((a, b) for a in names(count) for b in names(count) if a != b)
    for turn in turns:
        busy = [name for pair in turn for name in pair]
        assert len(busy) == len(set(busy))
    assert len(turns) <= 2 * count, "as many pairs at once as there can be"


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16])
def test_of_few_nodes_all_pairs_are_chosen(count: int) -> None:
    chosen = probes.chosen(names(count))
    assert (chosen.count, chosen.of, chosen.sampled) == (count * (count - 1), count * (count - 1), False)


@pytest.mark.parametrize("count", [17, 18, 33, 64, 99, 100, 101, 200, 201, 1000])
def test_of_many_nodes_every_one_is_chosen_at_least_twice(count: int) -> None:
    chosen = probes.chosen(names(count))
    pairs = [pair for turn in chosen.rounds for pair in turn]
    assert (chosen.sampled, chosen.of, len(set(pairs))) == (True, count * (count - 1), chosen.count)
    assert chosen.count <= max(240, 2 * count)
    met = Counter(name for pair in pairs for name in pair)
    assert set(met) == set(names(count)) and min(met.values()) >= 2
    assert {(b, a) for a, b in pairs} == set(pairs), "both directions"
    for turn in chosen.rounds:
        assert len({name for pair in turn for name in pair}) == 2 * len(turn)


def test_a_node_meets_others_near_and_far() -> None:
    partners = {int(b[4:]) for turn in probes.chosen(names(64)).rounds for a, b in turn if a == "node10"}
    apart = sorted(min(abs(other - 10), 63 - abs(other - 10)) for other in partners)
    assert len(partners) == 3 and apart[-1] - apart[0] > 8


def test_only_unlimited_links_of_nodes_that_share_cores_are_measured_one_by_one() -> None:
    together = {
        (net, shared): probes.planned(names(4), net, shared=shared).together
        for net in (None, G)
        for shared in (True, False)
    }
    assert together == {(None, True): False, (None, False): True, (G, True): True, (G, False): True}


def test_the_time_for_pairs_follows_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(count: int, net: int | None, cores: int | None) -> float:
        return probes.seconds(probes.planned(names(count), net, shared=cores is not None), net, cores)

    assert seconds(16, None, None) == pytest.approx(30 * 1.7)
    assert seconds(100, None, None) == pytest.approx(4 * 2 * 1.7), "at most 32 at a time"
    monkeypatch.setattr(process, "AT_ONCE", 64)
    assert seconds(100, None, None) == pytest.approx(4 * 1.7)
    assert seconds(100, None, 2) == pytest.approx(200 * 1.7), "not the 4.7 hours of all pairs"
    slow, fast = seconds(100, 10**7, 2), seconds(100, 10 * G, 2)
    assert fast - slow == pytest.approx(200 * 1.7), "where the cores are the limit, each is measured again alone"


def test_the_time_for_an_allreduce_follows_the_rate() -> None:
    assert 6 < probes.allreduce_seconds(10 * G) < 7
    slow = probes.allreduce_seconds(10**8)
    assert slow > 20
    assert probes.allreduce_seconds(10**6) < 6 * 4 * probes.LIMIT_S, "what would take too long is left out"
