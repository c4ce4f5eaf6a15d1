"""Measure how well bench measures and predicts, on a cluster of its own: a table, and bench-scaling.json.

All points use emulated GPUs on shaped links. The prediction is fitted to allreduces, single ranks and at most three
points; all other points judge it.

    make bench-scaling                    4 nodes
    make bench-scaling ARGS=--quick       2 nodes, few seconds per point: checks the script, not the figures
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdctl.bench import predict, results
from hvdctl.progress import Silent
from hvdctl.sites import local

NAME = "bench-scaling"
DEVICE = "emulated:p100"
LARGE = 25_000_000
LIMITS = {
    "prediction_median_error": 0.10,
    "prediction_max_error": 0.25,
    "allreduce_share": 0.85,
    "overhead_max": 0.02,
}


@dataclass(frozen=True)
class Plan:
    """A sweep. One of its rates is `shaped`; more than three of its points have several ranks."""

    name: str
    nodes: int
    shaped: int
    sweep: str


FULL = Plan("full", 4, 100_000_000, "--nodes 1,2,4 --batch 32,96 --net 100m,1g,10g --model resnet50 --max-seconds 20")
QUICK = Plan(
    "quick",
    2,
    400_000_000,
    "--nodes 1,2 --batch 32,48,64,96 --net 400m --model googlenet --max-seconds 2 --max-steps 2",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure a small plan on two nodes")
    parser.add_argument("--output", type=Path, default=Path("bench-scaling.json"))
    parser.add_argument("--keep", type=Path, help="folder for the bench's own results and report")
    args = parser.parse_args()
    plan = QUICK if args.quick else FULL
    with tempfile.TemporaryDirectory() as home:
        os.environ["HVDCTL_HOME"] = home
        kept = args.keep or Path(home) / "results"
        try:
            hvdctl("up", "--nodes", str(plan.nodes))
            hvdctl("bench", *plan.sweep.split(), "--device", DEVICE, "--output", str(kept))
        finally:
            local.sweep(NAME, keep_data=False, step=Silent())
        found = judge(results.read(kept), plan)
    show(found, plan)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    found |= {"plan": plan.name, "device": DEVICE, "limits": LIMITS, "machine": machine}
    args.output.write_text(json.dumps(found, indent=2) + "\n")
    print(f"\nwritten to {args.output}")


def judge(records: list[results.Record], plan: Plan) -> dict[str, Any]:
    """Return the figures that LIMITS bounds, and the values behind them."""
    checked = predict.validation(records)
    points = results.measured(results.points(records))
    rings = [
        one for one in results.of_kind(records, "allreduce") if (one["net"], one["nodes"]) == (plan.shaped, plan.nodes)
    ]
    shares = [row["bus_bits"] / plan.shaped for ring in rings for row in ring["rows"] if row["bytes"] >= LARGE]
    if not shares:
        sys.exit(f"no allreduce of {LARGE} bytes or more was measured: this machine is too busy")
    several = [point for point in points if point["ranks"] > 1]
    return {
        "prediction_median_error": checked.median,
        "prediction_max_error": checked.maximum,
        "prediction_points": len(checked.errors),
        "allreduce_share": min(shares),
        "overhead_max": max(point["overhead"] for point in several),
        "start_s_max": max(point["start_s"] for point in points),
        "start_s_least": min(point["start_s"] for point in points),
        "dilations": sorted({point["dilation"] for point in points}),
        "errors": {one.key: one.error for one in checked.errors},
    }


def show(found: dict[str, Any], plan: Plan) -> None:
    print(f"\n{plan.name} plan, {plan.nodes} nodes, {DEVICE}")
    for name, limit in LIMITS.items():
        good = found[name] >= limit if "share" in name else found[name] <= limit
        print(f"{name:26} {found[name]:8.4f}   limit {limit:<6} {'ok' if good else 'MISSED'}")
    print(f"{'start of a point, s':26} {found['start_s_least']:8.2f} to {found['start_s_max']:.2f}")
    print(f"{'time dilation':26} {', '.join(f'{one:g}' for one in found['dilations'])}")
    for key, error in found["errors"].items():
        print(f"  {error:+7.1%}  {key}")


def hvdctl(verb: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "hvdctl", verb, "--name", NAME, *words], check=True)


if __name__ == "__main__":
    main()
