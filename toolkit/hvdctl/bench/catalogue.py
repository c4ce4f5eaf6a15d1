"""What a model asks of a cluster: bytes of its gradients and when they are ready, without torch on this machine.

catalogue.json beside it is written by `worker/models.py`, which has torch.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from hvdctl.errors import UsageError

FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class Layer:
    """Bytes of each parameter tensor, and the multiply-adds of one image's forward pass."""

    name: str
    tensors: tuple[int, ...]
    macs: int


@dataclass(frozen=True)
class Model:
    """Layers stand in forward order; those without parameters are left out."""

    name: str
    parameters: int
    gradient_bytes: int
    image: tuple[int, int, int]
    classes: int
    layers: tuple[Layer, ...]

    def schedule(self) -> list[tuple[float, int]]:
        """(fraction of a step's compute at which it is ready, bytes) of each gradient tensor, in order.

        The forward pass is the first third. The backward pass goes through the layers from the last to the first
        and spends on each its share of the multiply-adds.
        """
        total = sum(layer.macs for layer in self.layers)
        ready, done = [], 0
        for layer in reversed(self.layers):
            done += layer.macs
            ready += [((total + 2 * done) / (3 * total), size) for size in reversed(layer.tensors)]
        return ready


@functools.cache
def load() -> dict[str, Model]:
    """Every model by name."""
    return {
        name: Model(
            name=name,
            parameters=entry["parameters"],
            gradient_bytes=entry["gradient_bytes"],
            image=tuple(entry["image"]),
            classes=entry["classes"],
            layers=tuple(Layer(layer, tuple(tensors), macs) for layer, tensors, macs in entry["layers"]),
        )
        for name, entry in json.loads(FILE.read_text()).items()
    }


def get(name: str) -> Model:
    """The model of this name; a UsageError names the known ones, the nearest first."""
    known = load()
    if name not in known:
        nearest = sorted(known, key=lambda other: _likeness(name, other), reverse=True)
        raise UsageError(f"no model {name!r}: there are {', '.join(nearest)}", hint=f"did you mean {nearest[0]}?")
    return known[name]


def _likeness(written: str, known: str) -> float:
    """1 for names that differ in case and punctuation only, 0 for those without a common letter."""
    plain, other = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (written, known))
    return SequenceMatcher(None, plain, other).ratio()
