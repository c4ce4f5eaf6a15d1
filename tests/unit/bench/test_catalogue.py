"""What the catalogue says of the models, as bench, predict and the reports use it."""

from __future__ import annotations

import pytest
from hvdctl.bench import catalogue
from hvdctl.errors import UsageError

# Parameters as published for PyTorch's models without auxiliary heads; of cifar10_quick by hand.
PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "inception_v3": 23_834_568,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "googlenet": 6_624_904,
    "convnet_cifar10": 3 * 32 * 25 + 32 + 32 * 32 * 25 + 32 + 32 * 64 * 25 + 64 + 1024 * 64 + 64 + 64 * 10 + 10,
}
# Published multiply-adds of one image in units of 1e9, without batch norm.
GIGAMACS = {
    "resnet50": 4.09,
    "resnet101": 7.80,
    "inception_v3": 5.71,
    "vgg16": 15.47,
    "alexnet": 0.71,
    "googlenet": 1.50,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_model_has_its_published_size(name: str) -> None:
    model = catalogue.get(name)
    assert (model.name, model.parameters) == (name, PARAMETERS[name])
    assert model.gradient_bytes == 4 * model.parameters
    assert sum(sum(layer.tensors) for layer in model.layers) == model.gradient_bytes


@pytest.mark.parametrize("name", GIGAMACS)
def test_every_model_has_its_published_work(name: str) -> None:
    weighted = [layer for layer in catalogue.get(name).layers if not layer.name.endswith("norm")]
    assert sum(layer.macs for layer in weighted) / 1e9 == pytest.approx(GIGAMACS[name], rel=0.01)


def test_no_other_models_are_there() -> None:
    assert set(catalogue.load()) == set(PARAMETERS)
    assert catalogue.get("convnet_cifar10").image == (3, 32, 32)
    assert catalogue.get("inception_v3").image == (3, 299, 299)


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradients_are_ready_in_the_last_two_thirds(name: str) -> None:
    model = catalogue.get(name)
    schedule = model.schedule()
    fractions = [fraction for fraction, _ in schedule]
    assert 1 / 3 < fractions[0] < 1
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert sum(size for _, size in schedule) == model.gradient_bytes


def test_gradients_come_from_the_last_layer_to_the_first() -> None:
    model = catalogue.Model(
        name="two",
        parameters=5,
        gradient_bytes=20,
        image=(3, 1, 1),
        classes=2,
        layers=(catalogue.Layer("first", (12,), 300), catalogue.Layer("last", (4, 8), 100)),
    )
    half = pytest.approx(1 / 3 + 2 / 3 / 4)
    assert model.schedule() == [(half, 8), (half, 4), (1.0, 12)]


def test_vgg_has_most_of_its_bytes_ready_early() -> None:
    """Its linear layers hold 90 % of the parameters and come first in the backward pass: much can overlap."""
    early = sum(size for fraction, size in catalogue.get("vgg16").schedule() if fraction < 0.34)
    assert early / catalogue.get("vgg16").gradient_bytes == pytest.approx(0.893, abs=0.001)


@pytest.mark.parametrize(
    ("written", "nearest"),
    [("ResNet-50", "resnet50"), ("inception", "inception_v3"), ("vgg19", "vgg16"), ("GoogleNet", "googlenet")],
)
def test_an_unknown_model_names_the_known_ones(written: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalogue.get(written)
    named = caught.value.message.split(": there are ")[1].split(", ")
    assert repr(written) in caught.value.message
    assert named[0] == nearest and set(named) == set(PARAMETERS)
    assert nearest in caught.value.hint
