"""Known parameters come back from results that were made with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hvdctl.bench.costmodel import DEFAULTS, Layout, allreduce_seconds
from hvdctl.bench.fit import cases, few, fit
from synthetic_bench import SIZES, TRUTH, G, allreduce, bench, head, point


def test_all_parameters_come_back_from_exact_results() -> None:
    found = fit(bench())
    assert found.fitted and "bench b1" in found.source and "48 points" in found.source
    assert found.eta == pytest.approx(0.85, rel=1e-3)
    assert found.alpha == pytest.approx(120e-6, rel=1e-2)
    assert found.start_s == pytest.approx(0.0015, rel=1e-2)
    assert found.cpu_bits == pytest.approx(6e9, rel=1e-2)
    assert found.eps == pytest.approx(0.03, abs=0.005)
    assert found.phi == pytest.approx(0.7, abs=0.01)
    assert found.max_ranks == 10


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_with_noise_they_come_back_within_their_errors(seed: int) -> None:
    found = fit(bench(noise=0.03, seed=seed))
    assert found.eta == pytest.approx(0.85, abs=4 * found.errors["eta"])
    assert found.eps == pytest.approx(0.03, abs=4 * found.errors["eps"])
    assert found.phi == pytest.approx(0.7, abs=4 * found.errors["phi"])
    assert 0 < found.errors["eta"] < 0.05 and 0.01 < found.spread < 0.06


def test_an_allreduce_that_was_disturbed_does_not_spoil_the_rest() -> None:
    records = bench()
    records[1]["rows"][-1]["time_s"] *= 5
    assert fit(records).eta == pytest.approx(0.85, rel=0.05)


def test_without_any_point_eps_and_phi_are_the_defaults_and_that_is_said() -> None:
    found = fit([one for one in bench() if one["kind"] != "point"])
    assert (found.eps, found.phi) == (DEFAULTS.eps, DEFAULTS.phi)
    assert found.fitted and any("eps and phi are defaults" in note for note in found.notes)


def test_without_anything_nothing_was_fitted() -> None:
    found = fit([head()])
    assert not found.fitted and found.source == DEFAULTS.source
    assert found.eta == DEFAULTS.eta


@pytest.mark.parametrize("count", [1, 2])
def test_few_points_move_the_parameters_towards_the_truth(count: int) -> None:
    records = bench()
    keys = ["vgg16 b32 10x1 10g", "resnet50 b96 10x1 10g"][:count]
    found = fit(records, points=keys)
    assert found.points == tuple(sorted(keys))
    assert sum((one.seconds(found) / one.measured - 1) ** 2 for one in cases(records) if one.key in keys) < 1e-3


def test_parameters_stay_within_their_bounds() -> None:
    for factor in (0.3, 5.0):
        records = [
            {**one, "images_per_s": one["images_per_s"] / factor}
            if one["kind"] == "point" and one["ranks"] > 1
            else one
            for one in bench()
        ]
        found = fit(records)
        assert -0.05 <= found.eps <= 0.5 and 0 <= found.phi <= 1


def test_links_beyond_what_the_cpus_carry_say_nothing_of_eta() -> None:
    layout = Layout(4, 1, 100 * G, True)
    beyond = allreduce(4, 100 * G, [(size, allreduce_seconds(size, layout, TRUTH)) for size in SIZES])
    found = fit([*bench(), beyond])
    assert found.eta == pytest.approx(0.85, rel=0.01)
    assert any("left out" in note for note in found.notes)


def test_one_number_of_ranks_does_not_blame_the_cycle_on_the_ring() -> None:
    slow_start = replace(TRUTH, start_s=0.001, alpha=50e-6)
    rows = [(size, allreduce_seconds(size, Layout(4, 1, G // 10), slow_start)) for size in SIZES]
    found = fit([head(), allreduce(4, G // 10, rows)])
    assert found.alpha == pytest.approx(50e-6, rel=0.1)


def test_an_allreduce_within_one_node_tells_of_the_machine_and_not_of_the_link() -> None:
    bus = replace(TRUTH, local_bits=2.0 * G, cpu_bits=None)
    rows = [(size, allreduce_seconds(size, Layout(1, 4, None), bus)) for size in SIZES]
    found = fit([head(), allreduce(4, None, rows, nodes=1)])
    assert found.local_bits == pytest.approx(2 * G, rel=0.05)
    assert found.eta == DEFAULTS.eta and any("eta is the default" in note for note in found.notes)


def test_a_measured_single_rank_is_preferred_to_the_published_rate() -> None:
    records = [point("resnet50", 32, nodes, G, TRUTH) for nodes in (1, 2)]
    records[0]["images_per_s"] = 100.0
    assert [case.t1 for case in cases([head(), *records])] == [0.32, 0.32]
    assert cases([head(), records[1]])[0].t1 == pytest.approx(32 / 195)


def test_a_real_device_needs_a_measured_single_rank() -> None:
    alone, pair = (
        {**point("resnet50", 32, nodes, G, TRUTH), "device": "real", "dilation": 1.0, "threads": 2} for nodes in (1, 2)
    )
    assert cases([head(), pair]) == []
    found = cases([head(), alone, pair])[1]
    assert found.crowd == 2, "two ranks of two threads share two cores"
    other = {**head(), "cluster": {"spec": {"provider": "static"}}}
    assert cases([other, alone, pair])[1].crowd == 1


def test_the_last_record_of_a_key_counts_and_failed_or_torn_ones_do_not() -> None:
    first, again = point("resnet50", 32, 2, G, TRUTH), point("resnet50", 32, 2, G, TRUTH)
    again["images_per_s"] = 8.0
    assert [one.measured for one in cases([head(), first, again])] == [8.0]
    assert cases([head(), {**first, "status": "failed"}]) == []
    assert cases([head(), {"kind": "point", "status": "ok", "key": "x"}, {"kind": "odd"}]) == []
    assert not fit([head(), {"kind": "allreduce", "ranks": 2, "rows": []}]).fitted


def test_at_most_three_points_are_chosen_and_they_span_the_sweep() -> None:
    records = bench()
    assert few(records)[:2] == ["vgg16 b32 10x1 1g", "resnet50 b96 10x1 10g"]
    assert len(few(records)) == 3 and " 2x1 " in few(records)[2]
    assert few([head()]) == []
