"""Results that the cost model itself would give with parameters that are known, and noise of a fixed seed."""

from __future__ import annotations

import random
from typing import Any

from hvdctl.bench import catalogue, devices
from hvdctl.bench.costmodel import Layout, Parameters, allreduce_seconds, simulate

G = 10**9
SIZES = (1024, 65536, 2**20, 2**24, 2**26)
DILATION = {G: 4.0, 10 * G: 30.0}
TRUTH = Parameters(eta=0.85, alpha=120e-6, start_s=0.0015, eps=0.03, phi=0.7, cpu_bits=6e9)


def bench(truth: Parameters = TRUTH, noise: float = 0.0, seed: int = 1, **kept: Any) -> list[dict[str, Any]]:
    """Allreduces at 100 Mbit/s and over open links, and emulated P100s at 1 and 10 Gbit/s."""
    chance = random.Random(seed)

    def noisy(seconds: float) -> float:
        return seconds * (1 + chance.gauss(0, noise))

    found = [head()]
    for net in (G // 10, None):
        for ranks in (2, 4):
            rows = [(size, noisy(allreduce_seconds(size, Layout(ranks, 1, net, True), truth))) for size in SIZES]
            found.append(allreduce(ranks, net, rows))
    for model in kept.get("models", ("resnet50", "vgg16")):
        for net in kept.get("nets", (G, 10 * G)):
            for batch in kept.get("batches", (32, 64, 96)):
                for nodes in kept.get("nodes", (1, 2, 4, 8, 10)):
                    found.append(point(model, batch, nodes, net, truth, noisy))
    return found


def head() -> dict[str, Any]:
    """The record of the bench itself, of nodes that share a machine of two cores."""
    where = {"cluster": {"name": "demo", "spec": {"provider": "local"}}, "machine": {"cores": 2}}
    return {"kind": "bench", "version": 1, "id": "b1", "created": 1, **where}


def allreduce(ranks: int, net: int | None, rows: list[tuple[int, float]], nodes: int | None = None) -> dict[str, Any]:
    told = [{"bytes": size, "time_s": seconds, "alg_bits": 0, "bus_bits": 0} for size, seconds in rows]
    axes = {"nodes": nodes or ranks, "slots": ranks // (nodes or ranks), "ranks": ranks, "net": net}
    return {"kind": "allreduce", **axes, "launcher": "horovod-gloo", "rows": told}


def point(model: str, batch: int, nodes: int, net: int, truth: Parameters, noisy: Any = float) -> dict[str, Any]:
    k = DILATION[net]
    t1 = devices.step_seconds("p100", model, batch).seconds
    layout = Layout(nodes, 1, net, True)
    seconds = noisy(simulate(catalogue.get(model).schedule(), t1, layout, truth.dilated(k)).seconds)
    return {
        "kind": "point",
        "status": "ok",
        "key": f"{model} b{batch} {nodes}x1 {net // G}g",
        "model": model,
        "batch": batch,
        "global_batch": nodes * batch,
        "nodes": nodes,
        "slots": 1,
        "ranks": nodes,
        "net": net,
        "link_bits": net / k,
        "dilation": k,
        "device": "emulated:p100",
        "emulated": True,
        "launcher": "horovod-gloo",
        "threads": None,
        "data": "synthetic",
        "scaling": "weak",
        "images_per_s": nodes * batch / seconds,
    }
