"""The networks of bench as the nodes have them: what they are, and that they train, on images from files too."""

from __future__ import annotations

import subprocess

import pytest
from hvdctl import images
from hvdctl.bench import catalogue
from hvdctl.progress import Silent

pytestmark = pytest.mark.docker

WORKER = catalogue.FILE.parent / "worker"

TRAINS = """
import sys, torch, models
recipe = models.MODELS[sys.argv[1]]
model = models.build(sys.argv[1])
scores = model(torch.randn(2, *recipe.image))
assert scores.shape == (2, recipe.classes), scores.shape
torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1])).backward()
assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
print("trained", sum(p.numel() for p in model.parameters()))
"""

READS = """
import pathlib, tempfile, torch, data, models
from PIL import Image
base = pathlib.Path(tempfile.mkdtemp())
for name in ("airplane", "cat"):
    (base / name).mkdir()
    for number in range(3):
        Image.new("RGB", (40, 36), (90 * number, 20, 200)).save(base / name / f"{number}.png")
with data.batches(data.find(base), 4, models.MODELS["convnet_cifar10"].image, rank=0, ranks=2) as stream:
    for _ in range(3):
        pixels, labels = next(stream)
        assert (pixels.shape, pixels.dtype, labels.dtype) == ((4, 3, 32, 32), torch.float32, torch.int64)
        torch.nn.functional.cross_entropy(models.build("convnet_cifar10")(pixels), labels).backward()
print("read", len(stream.damaged))
"""


def python(*arguments: str) -> str:
    """What the image's Python says, with bench's worker folder as its working directory."""
    argv = ["docker", "run", "--rm", "--network", "none", "--user", "1000", "--entrypoint", "/opt/venv/bin/python3"]
    argv += ["--volume", f"{WORKER}:/worker:ro", "--workdir", "/worker", images.build("pytorch", Silent()).reference]
    done = subprocess.run(
        [*argv, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_catalogue_is_that_of_the_models() -> None:
    assert python("models.py") == catalogue.FILE.read_text()


@pytest.mark.parametrize("name", ["convnet_cifar10", "googlenet"])
def test_a_model_trains(name: str) -> None:
    assert python("-c", TRAINS, name) == f"trained {catalogue.get(name).parameters}\n"


def test_images_become_tensors() -> None:
    assert python("-c", READS) == "read 0\n"
