"""How long one GPU needs for a training step, from published rates (devices.toml, each with its source)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from hvdctl.errors import UsageError

FILE = Path(__file__).with_name("devices.toml")


@dataclass(frozen=True)
class Source:
    """A document that rates were published in."""

    title: str
    publisher: str
    year: int
    url: str

    def __str__(self) -> str:
        return f"{self.title}; {self.publisher}, {self.year}; {self.url}"


@dataclass(frozen=True)
class Rates:
    """Images per second by batch, all of one document."""

    batches: Mapping[int, float]
    source: Source


@dataclass(frozen=True)
class Gpu:
    name: str
    about: str
    models: Mapping[str, Rates]


@dataclass(frozen=True)
class Step:
    """Seconds of a step on one GPU; `how` says published, interpolated or extrapolated, and from what."""

    seconds: float
    how: str
    source: Source


@functools.cache
def load() -> dict[str, Gpu]:
    """Every GPU by name."""
    told = tomllib.loads(FILE.read_text())
    sources = {name: Source(**entry) for name, entry in told["sources"].items()}
    return {
        name: Gpu(
            name,
            entry["about"],
            {
                row["model"]: Rates(
                    {int(batch): float(rate) for batch, rate in row["batches"].items()}, sources[row["source"]]
                )
                for row in entry["rates"]
            },
        )
        for name, entry in told["gpus"].items()
    }


def check(gpu: str) -> Gpu:
    """The GPU of this name; a UsageError names the known ones, the nearest first."""
    known = load()
    if gpu not in known:
        nearest = sorted(known, key=lambda name: SequenceMatcher(None, gpu.lower(), name).ratio(), reverse=True)
        raise UsageError(f"no GPU {gpu!r}: there are {', '.join(nearest)}", hint=f"did you mean {nearest[0]}?")
    return known[gpu]


def step_seconds(gpu: str, model: str, batch: int) -> Step:
    """How long this GPU needs for a step of the model with a batch of this size."""
    if batch < 1:
        raise UsageError(f"batch {batch}: a batch has at least one image")
    rates = check(gpu).models.get(model)
    if rates is None:
        others = [name for name, other in load().items() if model in other.models]
        raise UsageError(
            f"no published rate of {model} on {gpu}: there are {', '.join(load()[gpu].models)}",
            hint=(f"GPUs with {model}: {', '.join(others)}; or " if others else "") + "measure it: --device real",
        )
    seconds, how = interpolate({size: size / rate for size, rate in rates.batches.items()}, batch)
    return Step(seconds, how, rates.source)


def interpolate(known: Mapping[int, float], batch: int) -> tuple[float, str]:
    """Seconds of a step with this batch from those with others, and how they were found.

    The time is affine in the batch, through the two nearest known ones; with one known batch the rate is constant.
    """
    if batch in known:
        return known[batch], "published"
    if len(known) == 1:
        ((only, seconds),) = known.items()
        return seconds * batch / only, f"extrapolated at the rate of batch {only}, the only one known"
    sizes = sorted(known)
    inside = sizes[0] < batch < sizes[-1]
    upper = next((i for i, size in enumerate(sizes) if size > batch), len(sizes) - 1) if batch > sizes[0] else 1
    one, two = sizes[upper - 1], sizes[upper]
    slope = (known[two] - known[one]) / (two - one)
    seconds = known[one] + slope * (batch - one)
    # Measured lines may cross zero before the batch does.
    if slope <= 0 or seconds <= 0:
        seconds = known[one] * batch / one
    return seconds, f"{'interpolated' if inside else 'extrapolated'} from batches {one} and {two}"
