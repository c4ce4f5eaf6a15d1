"""Results of a bench that never ran: published rates, a simple model of communication, and noise of a fixed seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]

G = 10**9
RATES = {
    "resnet50": {16: 182.0, 32: 195.0, 64: 219.0, 96: 228.0},
    "vgg16": {32: 144.0, 64: 154.0, 96: 158.0},
}
BYTES = {"resnet50": 102_228_128, "vgg16": 553_430_176}
DILATION = {G: 3.0, 10 * G: 30.0}
CREATED = 1_794_885_300


def records(seed: int = 7) -> list[Record]:
    """A whole bench of emulated P100s: two models, 1 to 10 nodes, three batches, two link rates."""
    chance = random.Random(seed)
    swept = [
        point(model, batch, nodes, net, chance)
        for model in RATES
        for net in (G, 10 * G)
        for batch in (32, 64, 96)
        for nodes in (1, 2, 4, 8, 10)
    ]
    lost = "rank 7 on node7 ended with exit code 137; its memory limit of 2g was reached"
    swept = [failed(one, lost) if one["key"].startswith("vgg16 b96 10x1 1g") else one for one in swept]
    first_try = failed(swept[8], "no answer from node5 within 60 s")
    beside = [
        *(point("resnet50", 64, 1, 10 * G, chance, slots=slots) for slots in (2, 4)),
        *(point("resnet50", 64, nodes, 10 * G, chance, launcher="horovod-mpi") for nodes in (1, 4)),
        point("resnet50", 64, 4, 10 * G, chance, launcher="torch-ddp"),
        *(point("resnet50", 64 // nodes, nodes, 10 * G, chance, scaling="strong") for nodes in (1, 2, 4)),
    ]
    return [
        bench(),
        links(chance),
        *(allreduce(nodes, chance) for nodes in (2, 4)),
        first_try,
        *swept,
        *beside,
        fit(),
        *(predicted(one, chance) for one in swept if one["nodes"] > 1),
        timeline(chance),
        {"kind": "end", "state": "complete", "seconds": 1834.2, "reason": None},
    ]


def cpu_records() -> list[Record]:
    """A bench of real CPUs: a search for the number of threads, data from a folder, nothing emulated or predicted."""
    chance = random.Random(3)
    found = [bench(device="real")]
    for nodes in (1, 2):
        for threads, speed in ((1, 0.011), (2, 0.016), (4, 0.012)):
            found.append(point("resnet50", 32, nodes, G, chance, device="real", threads=threads, speed=speed))
    for data, speed in (("/shared/flowers", 0.012), ("staged:/shared/flowers", 0.015)):
        found.append(point("resnet50", 32, 2, G, chance, device="real", threads=2, speed=speed, data=data))
    return [*found, {"kind": "end", "state": "interrupted", "seconds": 310.0, "reason": "Ctrl-C"}]


def write(folder: Path, lines: Iterable[Record]) -> Path:
    """The records as a bench's folder holds them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def bench(device: str = "emulated:p100") -> Record:
    return {
        "kind": "bench",
        "version": 1,
        "id": "20261117-031500",
        "created": CREATED,
        "command": f"hvdctl bench --nodes 1,2,4,8,10 --batch 32,64,96 --net 1g,10g --device {device}",
        "plan": {"nodes": [1, 2, 4, 8, 10], "batch": [32, 64, 96], "net": ["1g", "10g"], "device": device},
        "digest": "5a1bb1d7c0ffee00",
        "cluster": {
            "name": "demo",
            "spec": {"name": "demo", "nodes": 10, "net": "10g", "provider": "local", "env": {"TOKEN": "s3cret"}},
            "nodes": [{"name": f"node{i}", "kind": "container", "address": f"10.99.0.{i + 2}"} for i in range(10)],
        },
        "image": {"reference": "hvdctl/horovod:pytorch-1a2b3c4d5e6f", "id": "sha256:" + "ab" * 32},
        "versions": {"hvdctl": "0.2.0", "horovod": "0.28.1", "torch": "2.9.1", "python": "3.11.2", "mpi": "4.1.4"},
        "machine": {
            "cpu": "AMD EPYC 7B13",
            "cores": 2,
            "memory_bytes": 25_200_000_000,
            "kernel": "6.1.0-28-amd64",
            "engine": "Docker 20.10.24",
        },
    }


def point(
    model: str,
    batch: int,
    nodes: int,
    net: int | None,
    chance: random.Random,
    *,
    slots: int = 1,
    launcher: str = "horovod-gloo",
    scaling: str = "weak",
    device: str = "emulated:p100",
    threads: int | None = None,
    data: str = "synthetic",
    speed: float = 1.0,
) -> Record:
    ranks = nodes * slots
    emulated = device.startswith("emulated:")
    compute = batch / (RATES[model][batch] * speed)
    # Ranks of one node share its memory, not its link.
    rate = (net or 20 * G) if nodes > 1 else 60 * G
    slower = {"horovod-gloo": 0.9, "horovod-mpi": 0.82, "torch-ddp": 0.93}[launcher]
    sent = 2 * (ranks - 1) / ranks * BYTES[model] * 8 / (slower * rate) if ranks > 1 else 0.0
    exposed = max(0.02 * sent, sent - 0.8 * 2 / 3 * compute)
    waiting = 0.012 * compute * (ranks - 1) ** 0.5
    step = (compute + exposed + waiting) * chance.gauss(1, 0.004)
    total = ranks * batch / step
    times = [step * chance.gauss(1, 0.012) for _ in range(12)]
    rate_name = "none" if net is None else f"{net // G}g"
    words = [model, f"b{batch}", f"{nodes}x{slots}", rate_name, device, launcher, scaling, data]
    dilation = DILATION.get(net or 0, 1.0) if emulated else 1.0
    return {
        "kind": "point",
        "key": " ".join([*words, *([f"t{threads}"] if threads else [])]),
        "model": model,
        "batch": batch,
        "global_batch": batch * ranks,
        "nodes": nodes,
        "slots": slots,
        "ranks": ranks,
        "net": net,
        "device": device,
        "emulated": emulated,
        "dilation": dilation,
        "link_bits": None if net is None else int(net / dilation),
        "launcher": launcher,
        "threads": threads,
        "scaling": scaling,
        "data": data,
        "fusion_mb": 128,
        "cycle_ms": 1,
        "status": "ok",
        "reason": None,
        "images_per_s": round(total, 2),
        "images_per_s_ci": round(total * chance.uniform(0.004, 0.018), 2),
        "step_s": round(step, 6),
        "steps": 12,
        "step_times_s": [round(one, 6) for one in times],
        "split_s": {"compute": round(compute, 6), "exposed": round(exposed, 6), "waiting": round(waiting, 6)},
        "overhead": 0.004,
        "start_s": 2.1,
        "converged": ranks < 10 or batch != 32,
        "measured_at": CREATED + 60,
    }


def failed(one: Record, reason: str) -> Record:
    measured = {"images_per_s", "images_per_s_ci", "step_s", "steps", "step_times_s", "split_s", "converged"}
    return {key: value for key, value in one.items() if key not in measured} | {"status": "failed", "reason": reason}


def predicted(one: Record, chance: random.Random) -> Record:
    axes = ("model", "batch", "global_batch", "nodes", "slots", "ranks", "net", "device", "scaling", "dilation")
    step = one.get("step_s", 4.9) * chance.gauss(1.0, 0.04)
    total = one["global_batch"] / step
    alone = RATES[one["model"]][one["batch"]] * one["ranks"]
    return {axis: one[axis] for axis in axes} | {
        "kind": "prediction",
        "images_per_s": total,
        "low": total * 0.92,
        "high": total * 1.07,
        "efficiency": total / alone,
        "efficiency_low": total * 0.92 / alone,
        "efficiency_high": min(1.0, total * 1.07 / alone),
        "limit": "link" if total / alone < 0.85 else "compute",
        "used_for_fit": one["nodes"] == 2 and one["batch"] == 64,
    }


def allreduce(nodes: int, chance: random.Random, net: int = G // 10) -> Record:
    rows = []
    for power in range(10, 28, 2):
        size = 2**power
        seconds = (2 * (nodes - 1) * 1.4e-4 + 2 * (nodes - 1) / nodes * size * 8 / (0.93 * net)) * chance.gauss(1, 0.02)
        alg = size * 8 / seconds
        bus = alg * 2 * (nodes - 1) / nodes
        rows.append({"bytes": size, "time_s": seconds, "alg_bits": alg, "bus_bits": bus, "iterations": 10})
    common = {"nodes": nodes, "slots": 1, "ranks": nodes, "net": net, "launcher": "horovod-gloo"}
    return {"kind": "allreduce", **common, "rows": rows}


def links(chance: random.Random, count: int = 4, net: int = G) -> Record:
    pairs = [
        {
            "source": f"node{a}",
            "target": f"node{b}",
            "bits": net * (0.61 if (a, b) == (2, 1) else chance.uniform(0.93, 0.96)),
        }
        for a in range(count)
        for b in range(count)
        if a != b
    ]
    return {"kind": "links", "net": net, "pairs": pairs}


def sampled_links(chance: random.Random, count: int) -> Record:
    """Of so many nodes, each measured with its two neighbours only."""
    record = links(chance, count)
    record["pairs"] = [
        one for one in record["pairs"] if (int(one["source"][4:]) - int(one["target"][4:])) % count in (1, count - 1)
    ]
    return record | {"of": count * (count - 1)}


def fit() -> Record:
    return {"kind": "fit", "eta": 0.91, "alpha_s": 1.4e-4, "phi": 0.82, "eps": 0.03, "points": 8}


def timeline(chance: random.Random, ranks: int = 4) -> Record:
    rows = []
    for rank in range(ranks):
        at, spans = 0.0, []
        for _ in range(3):
            for name, length in (("forward", 0.049), ("backward", 0.097), ("exposed", 0.031)):
                took = length * chance.uniform(0.94, 1.06)
                spans.append([name, round(at, 6), round(at + took, 6)])
                at += took
            late = 0.004 + 0.008 * chance.random()
            spans.append(["waiting", round(at, 6), round(at + late, 6)])
            at += late
        rows.append({"rank": rank, "node": f"node{rank}", "spans": spans})
    return {"kind": "timeline", "file": "timeline.json", "ranks": rows}
