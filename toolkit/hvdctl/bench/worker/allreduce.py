"""Allreduce by size, as nccl-tests measures it: time, algorithm bandwidth, bus bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import comm
import torch

_LEAST, _MOST = 3, 50


def measure(link: comm.Link, request: dict[str, Any], progress: Callable[..., None]) -> dict[str, Any]:
    """A row for each size; sizes that would take longer than the limit are left out."""
    rows: list[dict[str, Any]] = []
    for size in request["sizes"]:
        tensor = torch.zeros(max(1, size // 4))  # sums of sums of ones soon are no numbers any more
        name = f"allreduce{size}"
        once = _timed(link, tensor, name, 1)
        if rows and link.share(once > request["limit"]):
            # A single exchange may have stalled on a busy machine.
            once = _timed(link, tensor, name, 1)
            if link.share(once > request["limit"]):
                break
        count = link.share(min(_MOST, max(_LEAST, round(request["seconds"] / max(once, 1e-6)))))
        took = _timed(link, tensor, name, count) / count
        rows.append(row(4 * tensor.numel(), took, link.size, count))
        progress(bytes=size, bus_bits=rows[-1]["bus_bits"])
    return {"rows": rows}


def row(size: int, seconds: float, ranks: int, count: int) -> dict[str, Any]:
    """Bus bandwidth is what each link carries: a ring sends 2 (n - 1) / n of the data over every one."""
    alg = 8 * size / seconds
    return {
        "bytes": size,
        "time_s": seconds,
        "alg_bits": alg,
        "bus_bits": alg * 2 * (ranks - 1) / ranks,
        "iterations": count,
    }


def _timed(link: comm.Link, tensor: torch.Tensor, name: str, count: int) -> float:
    """Seconds for so many exchanges, by the rank that took longest."""
    link.gather(None)
    began = time.perf_counter()
    for _ in range(count):
        link.reduce(tensor, name)
    took = time.perf_counter() - began
    return float(max(link.gather(took)))
