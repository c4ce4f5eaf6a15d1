"""Real trainings: the example with checkpoint and resume, and Keras on the TensorFlow image."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import Hvdctl

pytestmark = pytest.mark.docker

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_trains_checkpoints_and_resumes(pair: Hvdctl, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "train_cifar_convnet.py", tmp_path)
    here = Hvdctl(pair.home, pair.name, tmp_path)
    words = ["run", "--", "python", "train_cifar_convnet.py", "--images", "640"]
    first = here(*words, "--epochs", "2").out
    assert "2 ranks, 640 images" in first
    assert "epoch 1: loss" in first and "epoch 2: loss" in first
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in first.splitlines() if "loss" in line]
    assert losses[1] < losses[0]
    second = here(*words, "--epochs", "3").out
    assert "2 epochs done" in second
    assert "epoch 2:" not in second and "epoch 3: loss" in second


def test_keras_trains_on_the_tensorflow_image(hvdctl: Hvdctl) -> None:
    hvdctl("up", "--nodes", "2", "--framework", "tensorflow")
    done = hvdctl("run", "--", "python", "keras_train.py")
    assert done.out.count("keras on 2 ranks: same weights True, loss fell True") == 2
    assert "needs PyTorch" in hvdctl("run", "--launcher", "torch", "--", "true", code=2).err
    assert "0 left" in hvdctl("down", "-y").out
