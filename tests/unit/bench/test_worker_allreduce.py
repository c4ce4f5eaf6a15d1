"""The worker's own loop over sizes, with a link whose times are given."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hvdctl import paths


class Link:
    size = 2

    def share(self, thing: Any) -> Any:
        return thing


@pytest.fixture
def allreduce(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """It imports torch, which is on nodes only."""
    torch = SimpleNamespace(zeros=lambda count: SimpleNamespace(numel=lambda: count), Tensor=object)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "comm", SimpleNamespace(Link=Link))
    path: Path = paths.library() / "hvdctl" / "bench" / "worker" / "allreduce.py"
    spec = importlib.util.spec_from_file_location("worker_allreduce", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("times", "sizes"),
    [
        ({}, [4, 8, 12]),
        # A single exchange that stalled, as on a busy machine.
        ({8: [20.0]}, [4, 8, 12]),
        ({8: [20.0, 20.0]}, [4]),
    ],
)
def test_a_size_is_left_out_only_if_it_takes_too_long_twice(
    allreduce: ModuleType, monkeypatch: pytest.MonkeyPatch, times: dict[int, list[float]], sizes: list[int]
) -> None:
    def timed(link: Link, tensor: Any, name: str, count: int) -> float:
        told = times.get(4 * tensor.numel(), [])
        return told.pop(0) if told else 0.1 * count

    monkeypatch.setattr(allreduce, "_timed", timed)
    request = {"sizes": [4, 8, 12], "seconds": 1.0, "limit": 15.0}
    found = allreduce.measure(Link(), request, lambda **told: None)
    assert [row["bytes"] for row in found["rows"]] == sizes
