from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hvdctl.bench import plan
from hvdctl.bench.plan import Layout, Point, Sweep
from hvdctl.errors import UsageError
from hvdctl.spec import Spec
from support import make_nodes

G = 10**9
ONE, TWO, FOUR = Layout(1, 1), Layout(2, 1), Layout(4, 1)


def point(**keys: Any) -> Point:
    axes: dict[str, Any] = {"model": "resnet50", "batch": 32, "layout": FOUR, "net": 10 * G, "device": "emulated:p100"}
    axes |= {"launcher": "horovod-gloo", "threads": None, "scaling": "weak", "data": None, "staged": False}
    return Point(**axes | keys)


@pytest.mark.parametrize(
    ("words", "counts", "slots", "found"),
    [
        ([], [1, 2, 4], 1, ["1x1", "2x1", "4x1"]),
        ([], [1, 2], 2, ["1x1", "1x2", "2x2"]),
        ([], [2, 4], 2, ["2x2", "4x2"]),
        (["4x1"], [1, 2], 1, ["4x1"]),
        (["kx1", "1xk"], [1, 2, 4], 1, ["1x1", "1x2", "1x4", "2x1", "4x1"]),
        (["kx2"], [3], 1, ["3x2"]),
        (["2x2", "2x2"], [1], 1, ["2x2"]),
    ],
)
def test_layouts_of_words(words: list[str], counts: list[int], slots: int, found: list[str]) -> None:
    assert [str(layout) for layout in plan.layouts(words, counts, slots)] == found


@pytest.mark.parametrize("word", ["4", "x", "kxk", "4x", "-1x2", "2x2x2", "4 x 1", "KxK", "ax1"])
def test_a_layout_that_is_none_is_named_with_the_form(word: str) -> None:
    with pytest.raises(UsageError, match=f"--layout '{word}': write NODESxRANKS such as 4x1, or kx1 and 1xk"):
        plan.layouts([word], [1, 2], 1)


@pytest.mark.parametrize("word", ["0x1", "1x0", "0xk"])
def test_a_layout_without_ranks_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="at least one node and one rank"):
        plan.layouts([word], [1], 1)


@pytest.mark.parametrize(
    ("available", "found"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (10, [1, 2, 4, 8, 10])]
)
def test_counts_double_up_to_all_nodes(available: int, found: list[int]) -> None:
    assert plan.counts(available) == found


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("horovod", "horovod-gloo"),
        ("mpi", "horovod-mpi"),
        ("torch", "torch-ddp"),
        ("horovod-mpi", "horovod-mpi"),
        ("torch-ddp", "torch-ddp"),
    ],
)
def test_a_launcher_goes_by_two_names(word: str, name: str) -> None:
    assert plan.launcher(word) == name


def test_an_unknown_launcher_names_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="--launcher 'slurm' is not known; choose of: horovod-gloo, horovod-mpi, torch"
    ):
        plan.launcher("slurm")


def test_devices() -> None:
    assert plan.device("real") == "real"
    assert plan.device("emulated:p100") == "emulated:p100"
    for word in ("p100", "emulated", "emulated:", "", "real:p100"):
        with pytest.raises(UsageError, match=f"--device '{word}': write real, or emulated:<gpu>"):
            plan.device(word)
    with pytest.raises(UsageError, match="no GPU 'p101': there are p100"):
        plan.device("emulated:p101")


def test_rates() -> None:
    assert plan.rates(["1g", "1000m", "none", "100m"]) == (G, None, G // 10)
    with pytest.raises(UsageError, match="--net 'fast' is not a link rate; write 100m, 1g, 10g"):
        plan.rates(["1g", "fast"])


def test_a_key_tells_points_apart() -> None:
    assert point().key == "resnet50 b32 4x1 10g emulated:p100 horovod-gloo weak synthetic"
    staged = point(device="real", net=None, threads=2, data="/shared/flowers", staged=True)
    assert staged.key == "resnet50 b32 4x1 none real horovod-gloo t2 weak staged:/shared/flowers"
    tuned = point(fusion_mb=0.5, cycle_ms=1.0)
    assert tuned.key == "resnet50 b32 4x1 10g emulated:p100 horovod-gloo fusion0.5 cycle1 weak synthetic"
    others = [
        point(**{axis: value})
        for axis, value in {
            "model": "vgg16",
            "batch": 64,
            "layout": Layout(2, 2),
            "net": None,
            "device": "real",
            "launcher": "torch-ddp",
            "threads": 4,
            "scaling": "strong",
            "data": "/shared/x",
            "fusion_mb": 0.0,
            "cycle_ms": 0.0,
        }.items()
    ]
    assert len({one.key for one in [point(), *others]}) == 12


def test_ranks_are_shared_by_points_that_differ_in_nothing_that_they_are_started_with() -> None:
    assert point().session == point(model="vgg16", batch=64, net=G, device="real", scaling="strong").session
    for change in (
        {"layout": TWO},
        {"launcher": "torch-ddp"},
        {"threads": 1},
        {"fusion_mb": 8.0},
        {"cycle_ms": 5.0},
    ):
        assert point().session != point(**change).session


def test_the_axes_of_a_record() -> None:
    data = point(layout=Layout(4, 2)).data_of()
    assert (data["nodes"], data["slots"], data["ranks"], data["global_batch"]) == (4, 2, 8, 256)
    assert (data["emulated"], data["data"], data["key"]) == (True, "synthetic", point(layout=Layout(4, 2)).key)
    assert point(device="real").data_of()["emulated"] is False


def test_points_are_in_the_order_that_starts_ranks_and_shapes_links_least_often() -> None:
    sweep = Sweep(
        layouts=(FOUR, ONE, Layout(1, 2), TWO),
        batches=(32, 64),
        nets=(G, 10 * G),
        models=("resnet50", "vgg16"),
        launchers=("horovod-gloo", "torch-ddp"),
    )
    points = sweep.points()
    assert len(points) == len({one.key for one in points}) == (2 * 1 + 2 * 2) * 2 * 2 * 2

    def changes(of: list[object]) -> int:
        return sum(a != b for a, b in itertools.pairwise(of))

    assert changes([one.session for one in points]) == 4 * 2 - 1
    assert changes([(one.session, one.net) for one in points]) == (2 * 1 + 2 * 2) * 2 - 1
    assert [one.layout.ranks for one in points] == sorted(one.layout.ranks for one in points)
    assert str(points[0].layout) == "1x1"


@pytest.mark.parametrize(
    ("nets", "alone"), [((G, 10 * G), 10 * G), ((10 * G, None, G), None), ((G,), G), ((None,), None)]
)
def test_ranks_of_one_node_use_no_link_and_are_measured_at_one_rate(
    nets: tuple[int | None, ...], alone: int | None
) -> None:
    points = Sweep(layouts=(ONE, Layout(1, 2), TWO), nets=nets).points()
    assert [(str(one.layout), one.net) for one in points] == [
        ("1x1", alone),
        ("1x2", alone),
        *(("2x1", net) for net in nets),
    ]


def test_strong_scaling_shares_the_batch() -> None:
    sweep = Sweep(layouts=(ONE, FOUR), batches=(64,), scalings=("weak", "strong"))
    found = {(str(one.layout), one.scaling): (one.batch, one.data_of()["global_batch"]) for one in sweep.points()}
    assert found == {
        ("1x1", "weak"): (64, 64),
        ("1x1", "strong"): (64, 64),
        ("4x1", "weak"): (64, 256),
        ("4x1", "strong"): (16, 64),
    }


def test_a_point_that_was_asked_for_twice_is_there_once() -> None:
    assert len(Sweep(layouts=(ONE, ONE), launchers=("horovod-gloo", "horovod-gloo")).points()) == 1


def test_the_digest_is_that_of_what_was_asked() -> None:
    sweep = Sweep(layouts=(ONE, TWO))
    assert sweep.digest == Sweep(layouts=(ONE, TWO)).digest
    for other in (replace(sweep, ci=0.01), replace(sweep, layouts=(ONE,)), replace(sweep, nets=(G,))):
        assert other.digest != sweep.digest


EMULATED = Sweep(layouts=(TWO,), device="emulated:p100")


@pytest.mark.parametrize(
    ("sweep", "message", "hint"),
    [
        (Sweep(layouts=(ONE,), models=("resnet",)), "no model 'resnet': there are resnet", "did you mean resnet"),
        (
            replace(EMULATED, models=("convnet_cifar10",)),
            "no published rate of convnet_cifar10 on p100",
            "--device real",
        ),
        (
            Sweep(layouts=(ONE, Layout(16, 1))),
            "layout 16x1 needs 16 nodes, 'demo' has 2",
            "`hvdctl scale --nodes 16 --name demo` makes them",
        ),
        (
            Sweep(layouts=(Layout(1, 4),)),
            "layout 1x4 needs 4 slots on a node, 'demo' has 2",
            "`hvdctl up --slots 4 --name demo` gives them",
        ),
        (
            Sweep(layouts=(ONE, TWO), batches=(32, 33), scalings=("strong",)),
            "strong scaling shares the batch: 2 ranks can't share 33 images evenly",
            "choose batches that every number of ranks divides",
        ),
        (replace(EMULATED, data="/shared/x"), "--data needs --device real", ""),
        (Sweep(layouts=(ONE,), staged=(False, True)), "--stage needs --data", ""),
        (Sweep(layouts=(ONE,), dilation=2.0), "--dilation needs an emulated device", ""),
    ],
)
def test_what_can_not_be_measured_is_refused(sweep: Sweep, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        plan.check(sweep, Spec(name="demo", slots=2), make_nodes(2, slots=2))
    assert hint in refused.value.hint
    assert "\n" not in refused.value.message


def test_bench_is_for_pytorch() -> None:
    with pytest.raises(UsageError, match="bench needs framework: pytorch; 'demo' has tensorflow"):
        plan.check(Sweep(layouts=(ONE,)), Spec(name="demo", framework="tensorflow"), make_nodes(1))


@pytest.mark.parametrize(
    "sweep",
    [
        Sweep(layouts=(ONE, TWO, Layout(2, 2)), scalings=("weak", "strong"), dilation=1.0),
        Sweep(layouts=(ONE,), data="/shared/x", staged=(False, True)),
        Sweep(layouts=(TWO,), device="emulated:p100", nets=(None, G), models=("resnet50", "vgg16"), dilation=30.0),
    ],
)
def test_what_can_be_measured_is_not(sweep: Sweep) -> None:
    plan.check(sweep, Spec(name="demo", slots=2), make_nodes(2, slots=2))


def test_a_guess_grows_with_what_takes_time() -> None:
    def guess(factor: float = 1.0, **keys: Any) -> list[float]:
        sweep = replace(EMULATED, nets=(10 * G,), micro=False, **keys)
        return plan.guess(sweep, sweep.points(), lambda _: factor, 2)

    first, second = guess(batches=(32, 33))
    assert first - second == pytest.approx(11, abs=1), "the first of a session waits for the ranks to start"
    (slow,), (fast,) = guess(60.0, max_seconds=1e9), guess(30.0, max_seconds=1e9)
    assert slow - 12 == pytest.approx(2 * (fast - 12)), "but for the start of the ranks, all takes twice as long"
    (few,), (capped,) = guess(60.0, max_seconds=1e9, max_steps=3), guess(60.0, max_seconds=10.0)
    assert few < slow
    assert capped < slow


def test_a_guess_for_cpus_counts_all_ranks_and_cores() -> None:
    def guess(layout: Layout, cores: int) -> float:
        sweep = Sweep(layouts=(layout,), max_seconds=1e9)
        return plan.guess(sweep, sweep.points(), lambda _: 1.0, cores)[0]

    assert guess(FOUR, 2) > guess(TWO, 2) > guess(TWO, 8)


def test_a_guess_counts_the_measurements_of_the_network_once_for_each_rate() -> None:
    def probes_of(sweep: Sweep, *, shared: bool = True) -> list[float]:
        """What the measurements of the network add to each point."""
        added = []
        for micro in (True, False):
            one = replace(sweep, micro=micro)
            added.append(plan.guess(one, one.points(), lambda _: 1.0, 2, shared=shared))
        return [round(a - b, 3) for a, b in zip(*added, strict=True)]

    many = Layout(100, 1)
    first, second = probes_of(Sweep(layouts=(many,), batches=(16, 32)))
    assert 200 * 1.7 < first < 200 * 1.7 + 60, "a sample, not 9900 pairs"
    assert second == 0
    assert probes_of(Sweep(layouts=(many,)), shared=False)[0] < 60
    assert probes_of(Sweep(layouts=(ONE,))) == [0]
    # The smallest layout has an allreduce, the largest one pairs too, what is between them nothing.
    one, small, middle, large = probes_of(Sweep(layouts=(ONE, TWO, FOUR, Layout(8, 1)), nets=(G,)))
    assert (one, middle) == (0, 0)
    assert 0 < small < large
