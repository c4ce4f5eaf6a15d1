"""Steps of single GPUs are published ones, or say how they were made of them."""

from __future__ import annotations

import pytest
from hvdctl.bench import catalogue, devices
from hvdctl.errors import UsageError


def test_every_gpu_model_and_source_is_whole() -> None:
    for gpu in devices.load().values():
        assert gpu.about and gpu.models
        for model, rates in gpu.models.items():
            assert model in catalogue.load()
            assert rates.source.url.startswith("http") and rates.source.title and 2010 < rates.source.year < 2030
            steps = [batch / rate for batch, rate in sorted(rates.batches.items())]
            assert steps == sorted(steps), f"{gpu.name} {model}: a larger batch takes longer"


@pytest.mark.parametrize(
    ("model", "batch", "rate"),
    [
        ("resnet50", 32, 195),
        ("resnet50", 64, 219),
        ("inception_v3", 64, 142),
        ("vgg16", 32, 144),
        ("alexnet", 512, 2987),
    ],
)
def test_a_published_rate_is_given_as_it_was_published(model: str, batch: int, rate: float) -> None:
    step = devices.step_seconds("p100", model, batch)
    assert batch / step.seconds == pytest.approx(rate)
    assert step.how == "published"
    assert "tensorflow.org" in str(step.source)


def test_between_and_beyond_published_batches_the_time_is_a_line() -> None:
    small, middle, large, beyond = (devices.step_seconds("p100", "resnet50", batch) for batch in (32, 48, 64, 96))
    assert middle.seconds == pytest.approx((small.seconds + large.seconds) / 2)
    assert beyond.seconds == pytest.approx(2 * large.seconds - small.seconds)
    assert middle.how == "interpolated from batches 32 and 64"
    assert beyond.how == "extrapolated from batches 32 and 64"
    assert devices.step_seconds("v100", "resnet50", 96).how == "interpolated from batches 64 and 128"
    assert 0 < devices.step_seconds("p100", "resnet50", 1).seconds < small.seconds


def test_with_one_published_batch_the_rate_is_constant_and_says_so() -> None:
    step = devices.step_seconds("p100", "resnet101", 32)
    assert 32 / step.seconds == pytest.approx(119.4)
    assert "only" in step.how and "64" in step.how


def test_a_line_that_falls_is_not_followed_below_zero() -> None:
    seconds, _ = devices.interpolate({32: 1.0, 64: 3.0}, 1)
    assert seconds == pytest.approx(1 / 32)


def test_an_unknown_gpu_names_the_nearest_first() -> None:
    with pytest.raises(UsageError) as told:
        devices.step_seconds("P10", "resnet50", 32)
    assert "'P10'" in told.value.message
    assert told.value.message.index("p100") < told.value.message.index("k80")


def test_a_model_without_a_rate_names_those_with_one_and_the_way_out() -> None:
    with pytest.raises(UsageError) as told:
        devices.step_seconds("v100", "vgg16", 32)
    assert "vgg16 on v100" in told.value.message and "resnet50" in told.value.message
    assert "p100" in told.value.hint and "--device real" in told.value.hint
    with pytest.raises(UsageError) as told:
        devices.step_seconds("p100", "convnet_cifar10", 32)
    assert told.value.hint == "measure it: --device real"


def test_a_batch_without_images_is_refused() -> None:
    with pytest.raises(UsageError, match="batch 0"):
        devices.step_seconds("p100", "resnet50", 0)
