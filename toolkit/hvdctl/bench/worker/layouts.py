"""Folders of images in the layouts that people have them in.

    [train/]<class>/*.JPEG                       ImageNet, its classes named by WordNet's numbers
    <class>/*.jpg                                Flowers, and any other
    [train/]<class>/*.png                        CIFAR-10 as images
    [cifar-10-batches-py/]data_batch_1 ... _5    CIFAR-10 as its makers give it to Python

A folder with nothing but one of these in it will do too.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FLOWERS = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
TRAIN = ("train", "ILSVRC/Data/CLS-LOC/train", "Data/CLS-LOC/train")


class DataError(Exception):
    """One sentence that says what is wrong with the images."""


class Sample(NamedTuple):
    """A file below the folder, and the number of the image within it where it holds several."""

    file: str
    label: int
    number: int = 0


@dataclass(frozen=True)
class Folder:
    """`kind` is imagenet, flowers, cifar10, cifar10-batches or images."""

    path: Path
    kind: str
    classes: tuple[str, ...]
    samples: list[Sample] = field(repr=False)
    # Of cifar10-batches only: the images of each file, as N x 3 x 32 x 32 bytes.
    arrays: dict[str, NDArray[numpy.uint8]] = field(repr=False, default_factory=dict)

    def check(self, model: str, outputs: int) -> None:
        """A DataError where the model has fewer outputs than there are classes here."""
        if len(self.classes) > outputs:
            raise DataError(f"{self.path} has {len(self.classes)} classes, and {model} tells {outputs} apart")


def find(path: Path | str) -> Folder:
    """The images below this folder, whichever of the known layouts it has."""
    root = Path(path)
    try:
        if not root.exists():
            raise DataError(f"there is no folder {root}")
        if not root.is_dir():
            raise DataError(f"{root} is a file, not a folder of images")
        return _cifar_batches(root) or _classes(root)
    except OSError as error:
        raise DataError(f"{error.filename or root} can't be read: {error.strerror or error}") from error


def _classes(root: Path) -> Folder:
    """One folder a class: in a folder of the known names, in this one, or in the only one in it."""
    for base in (*(root / name for name in TRAIN), root):
        names = _folders(base) if base.is_dir() else []
        images = {name: found for name in names if (found := _images_in(base / name))}
        if images:
            samples = [Sample(f"{name}/{file}", label) for label, name in enumerate(images) for file in images[name]]
            return Folder(base, _kind(images), tuple(images), samples)
    inner = _folders(root)
    if len(inner) == 1:
        return find(root / inner[0])
    raise DataError(f"no images in {root}: expected a folder for each class, or cifar-10-batches-py")


def _folders(base: Path) -> list[str]:
    with os.scandir(base) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _images_in(base: Path) -> list[str]:
    with os.scandir(base) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name.lower().endswith(ENDINGS) and not entry.name.startswith(".") and entry.is_file()
        )


def _kind(classes: Iterable[str]) -> str:
    names = set(classes)
    if all(re.fullmatch(r"n\d{8}", name) for name in names):
        return "imagenet"
    for kind, known in (("cifar10", CIFAR), ("flowers", FLOWERS)):
        if names <= set(known):
            return kind
    return "images"


def _cifar_batches(root: Path) -> Folder | None:
    """CIFAR-10 as its makers give it to Python: pickles with rows of 3072 bytes."""
    for base in (root / "cifar-10-batches-py", root):
        files = sorted(base.glob("data_batch_*"))
        if files:
            arrays, samples = {}, []
            for file in files:
                arrays[file.name], labels = _batch(file)
                samples += [Sample(file.name, label, number) for number, label in enumerate(labels)]
            return Folder(base, "cifar10-batches", CIFAR, samples, arrays)
    return None


def _batch(file: Path) -> tuple[NDArray[numpy.uint8], list[int]]:
    try:
        with file.open("rb") as stream:
            content = _Arrays(stream, encoding="bytes").load()
        images, labels = content[b"data"], content[b"labels"]
        if not labels or len(labels) != len(images) or not set(labels) <= set(range(len(CIFAR))):
            raise ValueError("its labels don't go with its images")
        return images.reshape(-1, 3, 32, 32).astype(numpy.uint8, copy=False), labels
    except OSError:
        raise
    except Exception as error:  # A damaged pickle can raise nearly everything.
        raise DataError(f"{file} is no batch of CIFAR-10: {error}") from error


class _Arrays(pickle.Unpickler):
    """Makes numpy arrays and plain values, and nothing else that a pickle may ask for."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")
        if f"{module}.{name}" in (
            "numpy.ndarray",
            "numpy.dtype",
            "numpy._core.multiarray._reconstruct",
            "numpy._core.numeric._frombuffer",
            "_codecs.encode",
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
