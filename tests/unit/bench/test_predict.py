"""Predictions: intervals that hold, labels that say what they are, and one clear line for what can't be asked."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hvdctl.bench.costmodel import DEFAULTS
from hvdctl.bench.fit import few, fit
from hvdctl.bench.predict import Request, predict, series, validation
from hvdctl.cluster import Cluster
from hvdctl.errors import UsageError
from support import Hvdctl
from synthetic_bench import TRUTH, G, bench, head

VGG = Request("vgg16", 64, 128, 4, 25 * G)
AXES = {"model", "batch", "nodes", "slots", "ranks", "net", "device", "scaling", "dilation"}
TOLD = {"images_per_s", "low", "high", "efficiency", "efficiency_low", "efficiency_high", "limit", "used_for_fit"}


def test_the_example_of_the_design() -> None:
    found = predict(VGG, DEFAULTS)
    assert found.ranks == 512 and found.limit == "link" and found.device == "emulated:p100"
    assert found.efficiency == pytest.approx(0.674, abs=0.005)
    assert found.efficiency and found.efficiency_low and found.efficiency_high
    assert found.efficiency_low < 0.68 < found.efficiency_high, "what was published lies within"
    assert found.images_per_s == pytest.approx(found.efficiency * 512 * 154)


def test_one_rank_is_the_published_rate() -> None:
    found = predict(Request("resnet50", 64, 1), DEFAULTS)
    assert found.images_per_s == pytest.approx(219) and found.efficiency == pytest.approx(1)
    assert found.limit == "compute"


def test_intervals_are_never_narrower_than_five_percent_and_grow_beyond_what_was_measured() -> None:
    sure = replace(DEFAULTS, errors={}, fitted=True, max_ranks=16)
    widths = [
        one.images_per_s / one.low - 1
        for one in (predict(Request("resnet50", 64, nodes, net=G), sure) for nodes in (2, 16, 32, 64))
    ]
    assert widths == pytest.approx([0.05, 0.05, 0.0625, 0.075])


def test_more_than_ideal_is_not_promised() -> None:
    found = predict(Request("resnet50", 64, 2, net=100 * G), replace(DEFAULTS, eps=0.0))
    assert found.efficiency and found.efficiency_high
    assert found.efficiency <= found.efficiency_high <= 1


def test_strong_scaling_is_measured_against_the_whole_batch_on_one_rank() -> None:
    weak, strong = (
        predict(Request("resnet50", 32, 4, net=10 * G, scaling=kind), DEFAULTS) for kind in ("weak", "strong")
    )
    assert weak.images_per_s == strong.images_per_s
    assert strong.efficiency and weak.efficiency
    assert strong.efficiency < weak.efficiency, "128 images at once are faster on one GPU than 32"


def test_intervals_contain_what_the_truth_would_give() -> None:
    for seed in (1, 2, 3):
        records = bench(noise=0.02, seed=seed)
        parameters = fit(records, points=few(records))
        truth = {one["key"]: one["images_per_s"] for one in bench() if one["kind"] == "point"}
        told = series(records, parameters)
        inside = [one["low"] <= truth[one["key"]] <= one["high"] for one in told]
        assert len(told) == len(truth) and sum(inside) >= 0.95 * len(inside)


def test_the_latency_of_one_crowded_machine_is_not_that_of_a_cluster() -> None:
    slow = fit(bench(replace(TRUTH, alpha=0.001, start_s=0.02)))
    assert slow.shared and slow.alpha == pytest.approx(0.001, rel=0.05)
    asked = Request("resnet50", 64, 128, 4, 25 * G)
    found = predict(asked, slow)
    assert found.efficiency and found.efficiency > 0.8, (
        "with 1022 steps of a millisecond in each allreduce it would be nothing"
    )
    own = predict(asked, replace(slow, shared=False))
    assert own.limit == "latency" and own.efficiency and own.efficiency < 0.3


def test_a_series_has_a_record_for_each_point_and_tells_which_were_fitted_to() -> None:
    records = bench()
    parameters = fit(records, points=few(records))
    told = series(records, parameters)
    assert {one["key"] for one in told if one["used_for_fit"]} == set(few(records))
    assert all(one["kind"] == "prediction" and set(one) >= AXES | TOLD for one in told)
    json.dumps(told, allow_nan=False)
    assert {one["dilation"] for one in told} == {4.0, 30.0}


def test_points_of_another_launcher_get_parameters_of_their_own() -> None:
    slow = replace(TRUTH, eps=0.4)
    records = bench() + [
        {**one, "launcher": "torch-ddp", "key": f"{one['key']} ddp"} for one in bench(slow) if one["kind"] == "point"
    ]
    parameters = fit(records, launcher="horovod-gloo")
    by_key = {one["key"]: one["images_per_s"] for one in series(records, parameters)}
    assert by_key["resnet50 b96 2x1 10g ddp"] < 0.8 * by_key["resnet50 b96 2x1 10g"]


def test_validation_leaves_out_what_was_fitted_to_and_tells_the_errors() -> None:
    records = bench()
    found = validation(records)
    assert len(found.fitted_to) == 3 and len(found.errors) == 48 - 3
    assert not {one.key for one in found.errors} & set(found.fitted_to)
    assert found.median is not None and found.maximum is not None
    assert found.median < 0.01 and found.maximum < 0.05
    wrong = [
        {**one, "images_per_s": one["images_per_s"] * 2} if one.get("key") == "vgg16 b64 4x1 1g" else one
        for one in records
    ]
    assert validation(wrong).maximum == pytest.approx(0.5, abs=0.03)
    assert validation([head()]).median is None


def test_a_thousand_predictions_with_intervals_take_seconds() -> None:
    began = time.process_time()
    for nodes in range(2, 302):
        predict(Request("resnet50", 64, nodes, net=10 * G), DEFAULTS)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (replace(VGG, nodes=0), "--nodes 0"),
        (replace(VGG, batch=-1), "--batch -1"),
        (replace(VGG, slots=0), "--slots 0"),
        (replace(VGG, nodes=10**6), "1000000 nodes"),
        (replace(VGG, model="vgg61"), "vgg61"),
        (replace(VGG, gpu="p1000"), "no GPU 'p1000'"),
        (replace(VGG, scaling="odd"), "'odd'"),
    ],
)
def test_what_can_not_be_asked(asked: Request, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        predict(asked, DEFAULTS)


def store(folder: Path, records: list[dict[str, object]]) -> Path:
    folder.mkdir(parents=True)
    file = folder / "results.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    return file


def test_without_a_bench_the_command_says_that_nothing_was_fitted(hvdctl: Hvdctl) -> None:
    told = hvdctl("predict", "--model", "vgg16", "--nodes", "128", "--slots", "4", "--net", "25g", "--batch", "64")
    assert told.code == 0, told.err
    first, second = told.out.splitlines()[:2]
    assert first.startswith("Predicted, not measured; not fitted: defaults")
    assert "emulated" in second
    row = next(line for line in told.out.splitlines() if line.startswith("vgg16 "))
    assert row.split()[:5] == ["vgg16", "128", "512", "64", "25g"] and "67%" in row and row.endswith("link")
    assert "tensorflow.org" in told.out, "the source of the GPU's rate"


def test_lists_are_combined_and_json_holds_everything(hvdctl: Hvdctl) -> None:
    told = hvdctl(
        "predict", "--model", "resnet50,vgg16", "--nodes", "1,2", "--batch", "32,64", "--net", "1g,none", "--json"
    )
    document = json.loads(told.out)
    assert document["predicted"] and not document["parameters"]["fitted"]
    assert len(document["predictions"]) == 16
    assert {one["net"] for one in document["predictions"]} == {G, None}


def test_strong_scaling_shares_the_batch_and_a_launcher_is_fitted_to_its_own_points(
    hvdctl: Hvdctl, tmp_path: Path
) -> None:
    told = hvdctl("predict", "--scaling", "strong", "--nodes", "1,4", "--batch", "128", "--json")
    rows = json.loads(told.out)["predictions"]
    assert [(one["batch"], one["scaling"]) for one in rows] == [(128, "strong"), (32, "strong")]
    slow = [
        {**one, "launcher": "torch-ddp", "key": f"{one['key']} ddp", "images_per_s": one["images_per_s"] / 2}
        for one in bench()
        if one["kind"] == "point"
    ]
    file = store(tmp_path / "both", [*bench(), *slow])
    rates = {}
    for launcher in ("horovod-gloo", "torch-ddp"):
        out = json.loads(hvdctl("predict", "--fit", str(file), "--launcher", launcher, "--net", "1g", "--json").out)
        assert launcher in out["parameters"]["source"]
        rates[launcher] = out["predictions"][-1]["images_per_s"]
    assert rates["torch-ddp"] < rates["horovod-gloo"]


def test_a_stored_bench_is_used_by_file_by_folder_and_by_cluster(hvdctl: Hvdctl, tmp_path: Path) -> None:
    file = store(Cluster("demo").folder / "bench" / "20261117-031500", bench())
    outs = [
        hvdctl("predict", "--net", "1g", "--fit", str(file)).out,
        hvdctl("predict", "--net", "1g", "--fit", str(file.parent)).out,
        hvdctl("predict", "--net", "1g", "--name", "demo").out,
    ]
    for out in outs:
        assert "fitted to bench b1, horovod-gloo, 20 allreduces, 48 points" in out.splitlines()[0]
        assert "20261117-031500" in out.splitlines()[0] and "at most 10 ranks" in out.splitlines()[0]
        assert "Note: the nodes measured share a machine" in out
    assert len({out.split("\n\n")[1] for out in outs}) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "resnet"], ["no model 'resnet'", "resnet50"]),
        (["--gpu", "p10"], ["no GPU 'p10'", "p100"]),
        (["--gpu", "a100", "--model", "vgg16"], ["no published rate of vgg16 on a100", "resnet50"]),
        (["--model", "convnet_cifar10"], ["no published rate of convnet_cifar10", "--device real"]),
        (["--nodes", "two"], ["--nodes 'two' is not a whole number"]),
        (["--scaling", "odd"], ["scaling 'odd': write weak or strong"]),
        (["--scaling", "strong", "--nodes", "3"], ["3 ranks can't share 64 images evenly"]),
        (["--launcher", "slurm"], ["--launcher 'slurm' is not known", "torch-ddp"]),
        (["--nodes", "1,0"], ["--nodes 0: must be at least 1"]),
        (["--nodes", ","], ["--nodes ','"]),
        (["--slots", "x"], ["'x' is not a whole number"]),
        (["--batch", "6.5"], ["--batch '6.5' is not a whole number"]),
        (["--net", "fast"], ["--net 'fast' is not a link rate; write 100m, 1g"]),
        (["--fit", "gone.jsonl"], ["gone.jsonl"]),
        (["--name", "My Cluster"], ["'My Cluster' is not a cluster name"]),
        (["--nodes", ",".join(map(str, range(1, 10100)))], ["10099 predictions are more than 10000"]),
    ],
)
def test_a_bad_flag_is_told_in_one_line(hvdctl: Hvdctl, words: list[str], told: list[str]) -> None:
    result = hvdctl("predict", *words)
    assert result.code == 2, result.err
    for part in told:
        assert part in result.err
    assert "Traceback" not in result.err and not result.out


def test_a_bench_with_nothing_to_fit_to_is_refused_where_it_was_named(hvdctl: Hvdctl, tmp_path: Path) -> None:
    file = store(tmp_path / "empty", [head()])
    result = hvdctl("predict", "--fit", str(file))
    assert result.code == 2 and "neither an allreduce nor a point" in result.err and "hvdctl bench" in result.err
