"""What GPULab could never give, told before anything is submitted: it would let such jobs wait for ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hvdctl.errors import UsageError
from hvdctl.gpulab.options import Options

MOST_JOBS = 10
"""Jobs of one user that GPULab runs at once."""

_WORDS = {"cluster": "cluster", "worker": "worker", "gpu_model": "GPU of the kind"}


def nodes(asked: int, gpus: int) -> None:
    """Raise where more jobs are asked for than may run."""
    if asked > MOST_JOBS:
        raise UsageError(
            f"nodes: {asked} jobs asked, but GPULab runs {MOST_JOBS} jobs of a user at once",
            hint=f"use fewer jobs with more GPUs each, such as --layout {layout(asked, gpus)}",
        )


def workers(options: Options, gpus: int, found: list[dict[str, Any]]) -> None:
    """Raise where no worker could ever do: the service would let the jobs wait for ever."""
    for key, names in (
        ("cluster", lambda one: [str(one.get("clusterId"))]),
        ("worker", lambda one: [str(name) for name in (one.get("name"), one.get("host"), *(one.get("aliases") or ()))]),
        ("gpu_model", lambda one: [str(model.get("name", "")) for model in one.get("gpuModel") or ()]),
    ):
        found = _those(found, key, getattr(options, key), names)
    most = max((_total(one) for one in found), default=0)
    if found and gpus > most:
        raise UsageError(f"gpus: {gpus} asked for one job, but no worker that would do has more than {most}")


def layout(nodes: int, gpus: int) -> str:
    """A layout of as many GPUs, in no more jobs than run at once."""
    total = nodes * max(gpus, 1)
    each = math.ceil(total / MOST_JOBS)
    return f"{math.ceil(total / each)}x{each}"


def _those(
    workers: list[dict[str, Any]], key: str, wanted: Any, names: Callable[[dict[str, Any]], list[str]]
) -> list[dict[str, Any]]:
    """The workers that have one of what is wanted, all where nothing is; an error that lists what there is."""
    given = [str(one).lower() for one in (wanted if isinstance(wanted, list) else [wanted]) if one is not None]
    if not given or not workers:
        return workers
    exact = key != "gpu_model"
    left = [
        one
        for one in workers
        if any(word == name.lower() if exact else word in name.lower() for word in given for name in names(one))
    ]
    if not left:
        known = sorted({names(one)[0] for one in workers if names(one)})
        shown = " or ".join(map(str, wanted if isinstance(wanted, list) else [wanted]))
        raise UsageError(f"options.{key}: GPULab has no {_WORDS[key]} {shown}; there are: {', '.join(known)}")
    return left


def _total(worker: dict[str, Any]) -> int:
    found = (worker.get("gpu") or {}).get("acquired")
    return found if isinstance(found, int) else 0
