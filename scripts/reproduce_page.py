"""The page of the reproduction: measured, predicted and published figures side by side, computed from the results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hvdctl.bench import catalogue, costmodel, devices, fit, predict, results, tables, wording

Record = dict[str, Any]

# Horovod's documentation: 128 servers of 4 P100 at 25 Gbit/s.
HOROVOD = {"inception_v3": 0.90, "resnet101": 0.90, "vgg16": 0.68}
STRONG, WEAK = "about 50 % at 4 to 8 nodes", "about 80 % at 512 nodes"


def render(parts: dict[str, list[Record]], quick: bool = False) -> str:
    """Return the Markdown page of the measured parts."""
    text = [INTRO, *([SMALL] if quick else []), _machine(parts)]
    if "slices" in parts:
        text += [_slices(parts["slices"]), _layouts(parts["slices"])]
    if "scaling" in parts:
        text.append(_scaling(parts["scaling"], parts.get("slices", parts["scaling"])))
    if "threads" in parts:
        text.append(_threads(parts["threads"]))
    if "launchers" in parts:
        text.append(_launchers(parts["launchers"]))
    if "slices" in parts:
        text += [_published(), _errors(parts)]
    return "\n".join([*text, WHY])


INTRO = """\
# The published experiments, reproduced on emulated GPUs

`make reproduce` measures all of this and writes this page. Every rate and efficiency below is of **emulated**
P100s, unless it says real or published: each step waits as long as the GPU was published to need
([devices.toml](../../toolkit/hvdctl/bench/devices.toml)), while gradients of the real model's sizes go through
Horovod over shaped links. Where time dilation is given, links and steps were slowed by that factor, and the figures
are undone.
"""

SMALL = """\
**This is the small plan** (`--quick`): two points with two steps each. It checks the script; its figures are rough.
"""

WHY = """\
## Where they differ, and why

- **Measured against predicted.** The model is fitted to the cluster's own allreduces, its single ranks and at most
  three points. What it does not know: that ranks of one machine take turns on its cores, and that an allreduce of
  few bytes waits for them.
- **Measured against the first formula.** It lets 0 to 90 % of two thirds of the step hide communication, whatever
  the model. In ResNet-50 most bytes belong to the last layers, whose gradients are ready first, so nearly all of
  the backward pass can hide communication.
- **Against the SLICES deck.** Its figures were pictures without numbers; only their plan could be reproduced. Real
  clusters lose more than these: reading images, stragglers, and compute that is itself slower when it is
  distributed are not emulated.
- **Latency is not dilated.** With a factor k, a message takes as long as ever while a step takes k times as long,
  so latencies count 1/k. Emulated clusters of many small messages look better than they would be.
- **One node of k ranks.** Its ranks exchange through this machine's memory, which is not slowed down: with a
  factor k it counts k times as fast as it is. What PCIe or NVLink would give is not emulated.
"""


STRONG_WHY = """\
With a mini-batch that stays, each rank's share becomes smaller: smaller batches are slower for each image, by the
published rates, and the exchange stays as large as ever.
"""


def _machine(parts: dict[str, list[Record]]) -> str:
    told = results.bench(list(parts.values())[-1])
    machine, versions = told["machine"], told["versions"]
    rows = [
        f"| machine | {machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']} |",
        f"| nodes | {len(told['cluster']['nodes'])} containers on that one machine |",
        f"| software | Horovod {versions['horovod']}, PyTorch {versions['torch']}, {versions['mpi']}, "
        f"Python {versions['python']}, hvdctl {versions['hvdctl']} |",
    ]
    links = ", ".join(f"[{name}]({name}/report.html)" for name in parts)
    took = sum(record["seconds"] for records in parts.values() for record in results.of_kind(records, "end"))
    return "\n".join(
        ["| | |", "|---|---|", *rows, f"| time | {took / 60:.0f} minutes in all |", "", f"Full reports: {links}.\n"]
    )


def _slices(records: Sequence[Record]) -> str:
    points = _points(records, slots=1)
    known = _predictions(records)
    lines = [
        "## Nodes, batch and link (SLICES deck)\n",
        "ResNet-50, weak scaling, one rank a node. Efficiency of ideal: measured (emulated), predicted by the fitted",
        "model, and the first formula without and with 90 % overlap. Published: nothing but pictures.\n",
        "| nodes | batch | link | dilation | images/s | measured | predicted | formula |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in sorted(points, key=lambda p: (p["net"] or 0, p["nodes"], p["batch"])):
        if point["ranks"] == 1:
            continue
        share = results.efficiency(point, points)
        rate = wording.with_ci(point["images_per_s"], point["images_per_s_ci"])
        lines.append(
            f"| {point['nodes']} | {point['batch']} | {wording.link(point['net'])} | {point['dilation']:g} | {rate} "
            f"| {_percent(share)} | {_band(known.get(point['key']))} | {_formula(point)} |"
        )
    pictures = ["throughput", "efficiency", "split"]
    lines += ["", *(f"![{name}](slices/figures/{name}-resnet50.png)\n" for name in pictures)]
    return "\n".join(lines)


def _layouts(records: Sequence[Record]) -> str:
    points = results.measured(results.points(records))
    top = max(point["net"] for point in points)
    lines = [
        "## Ten jobs of one GPU against one job of ten (SLICES deck, GPULab)\n",
        f"Efficiency of ideal at {wording.link(top)}, emulated: k nodes of one rank, and one node of k ranks.\n",
        "| ranks | batch | dilation | kx1 | 1xk |",
        "|---|---|---|---|---|",
    ]
    for ranks in sorted({point["ranks"] for point in points if point["ranks"] > 1}):
        for batch in sorted({point["batch"] for point in points}):
            pair = []
            for nodes, slots in ((ranks, 1), (1, ranks)):
                same = [
                    p for p in points if (p["nodes"], p["slots"], p["batch"], p["net"]) == (nodes, slots, batch, top)
                ]
                pair.append(_percent(results.efficiency(same[0], points)) if same else "")
            if all(pair):
                factor = max(p["dilation"] for p in points if p["net"] == top)
                lines.append(f"| {ranks} | {batch} | {factor:g} | {pair[0]} | {pair[1]} |")
    return "\n".join([*lines, ""])


def _scaling(records: Sequence[Record], fitted: Sequence[Record]) -> str:
    points = results.measured(results.points(records))
    lines = [
        "## Weak and strong scaling (Stampede2 deck)\n",
        f"ResNet-50, 10 Gbit/s, emulated, {_dilations(points)}. Weak: 64 images for each rank. Strong: 64 shared by",
        "all ranks.\n",
        "| nodes | weak | strong | published (Caffe on KNL) |",
        "|---|---|---|---|",
    ]
    for nodes in sorted({point["nodes"] for point in points}):
        shares = []
        for scaling in ("weak", "strong"):
            same = [point for point in points if point["nodes"] == nodes and point["scaling"] == scaling]
            shares.append(_percent(results.efficiency(same[0], points)) if same else "")
        published = f"strong: {STRONG}" if nodes in (4, 8) else ""
        lines.append(f"| {nodes} | {shares[0]} | {shares[1]} | {published} |")
    parameters = fit.fit(fitted, points=fit.few(fitted))
    far = predict.predict(predict.Request("resnet50", 64, 512, net=10**10), parameters)
    told = _band(far.data())
    lines.append(f"| 512 | {told} (predicted, not measured) | | weak: {WEAK} |")
    return "\n".join([*lines, "", STRONG_WHY])


def _threads(records: Sequence[Record]) -> str:
    points = sorted(results.measured(results.points(records)), key=lambda point: point["threads"])
    best = max(points, key=lambda point: point["images_per_s"])
    lines = [
        "## Threads (Stampede2 deck)\n",
        f"ConvNet/CIFAR-10, batch 64, one **real** rank on {results.bench(records)['machine']['cores']} cores. Best: "
        f"{best['threads']}. Published: 64, of 32, 64 and 128 on a KNL.\n",
        "| OMP_NUM_THREADS | images/s |",
        "|---|---|",
    ]
    lines += [f"| {p['threads']} | {wording.with_ci(p['images_per_s'], p['images_per_s_ci'])} |" for p in points]
    return "\n".join([*lines, ""])


def _launchers(records: Sequence[Record]) -> str:
    points = results.measured(results.points(records))
    names = sorted({point["launcher"] for point in points})
    lines = [
        "## Horovod and torch DDP on the same nodes\n",
        "ResNet-50, batch 32, emulated: images/s (efficiency).\n",
        f"| nodes | link | dilation | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for (nodes, net), same in results.series(points, ["nodes", "net"]).items():
        cells = []
        for name in names:
            own = [point for point in same if point["launcher"] == name]
            cells.append(
                f"{own[0]['images_per_s']:.0f} ({_percent(results.efficiency(own[0], points))})" if own else ""
            )
        lines.append(f"| {nodes} | {wording.link(net)} | {same[0]['dilation']:g} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _published() -> str:
    """The defaults of the model against what Horovod published; nothing of it was measured here."""
    lines = [
        "## Horovod's own figures\n",
        "128 servers of 4 P100 at 25 Gbit/s, batch 64: published by Horovod, and predicted by the model with its",
        "defaults (not measured: no such cluster is emulated here).\n",
        "| model | published | predicted |",
        "|---|---|---|",
    ]
    for model, share in HOROVOD.items():
        told = predict.predict(predict.Request(model, 64, 128, slots=4, net=25 * 10**9), costmodel.DEFAULTS)
        lines.append(f"| {model} | {share:.0%} | {_band(told.data())} |")
    return "\n".join([*lines, ""])


def _errors(parts: dict[str, list[Record]]) -> str:
    lines = ["## How good the predictions are\n", "On points that the model was not fitted to:\n"]
    lines += ["| part | points | median error | largest |", "|---|---|---|---|"]
    for name, records in parts.items():
        errors = tables.prediction_errors(records, results.points(records))
        if errors:
            lines.append(f"| {name} | {len(errors)} | {statistics.median(errors):.1%} | {max(errors):.1%} |")
    return "\n".join([*lines, ""])


def _points(records: Sequence[Record], slots: int) -> list[Record]:
    return [point for point in results.measured(results.points(records)) if point["slots"] == slots]


def _predictions(records: Iterable[Record]) -> dict[str, Record]:
    return {record["key"]: record for record in results.of_kind(records, "prediction")}


def _formula(point: Record) -> str:
    t1 = devices.step_seconds("p100", point["model"], point["batch"]).seconds
    layout = costmodel.Layout(point["nodes"], 1, point["net"])
    size = catalogue.get(point["model"]).gradient_bytes
    shares = []
    for phi in (0.0, 0.9):
        parameters = replace(costmodel.DEFAULTS, eps=0.0, alpha=0.0, phi=phi)
        shares.append(t1 / costmodel.closed_form(size, t1, layout, parameters))
    return f"{shares[0]:.0%} to {shares[1]:.0%}"


def _band(record: Record | None) -> str:
    if not record or record["efficiency"] is None:
        return ""
    return f"{record['efficiency']:.0%} ({record['efficiency_low']:.0%} to {record['efficiency_high']:.0%})"


def _dilations(points: Sequence[Record]) -> str:
    return wording.dilation(wording.factors(points))


def _percent(share: float | None) -> str:
    return "no baseline" if share is None else f"{share:.0%}"
