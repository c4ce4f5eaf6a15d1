"""Reproduce the experiments of the published decks on emulated GPUs: docs/results/ with figures, reports and a page.

    make reproduce                                all parts, about an hour on two cores
    make reproduce ARGS="--only launchers"        one part
    make reproduce ARGS="--page"                  only the page, from existing results
    make reproduce ARGS="--quick --output DIR"    two points on two nodes: checks the script, not the figures

Complete parts are not measured again; `--fresh` measures them again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import reproduce_page
from hvdctl.bench import results
from hvdctl.progress import Silent
from hvdctl.sites import local

NAME = "reproduce"
PUBLISHED = Path(__file__).parents[1] / "docs" / "results"
GPU = "--device emulated:p100 --model resnet50"
FULL = {
    # The SLICES deck: nodes, batch and link; ten jobs of one GPU against one job of ten.
    "slices": f"{GPU} --layout kx1,1x4,1x10 --nodes 1,2,4,8,10 --batch 32,64,96 --net 1g,10g"
    " --max-seconds 30 --timeline",
    # The Stampede2 deck: a mini-batch that stays, against one that grows.
    "scaling": f"{GPU} --layout kx1 --nodes 1,2,4,8 --batch 64 --net 10g --scaling weak,strong --max-seconds 30",
    # ... and its search for the best number of threads, on this machine's own cores.
    "threads": "--model convnet_cifar10 --layout 1x1 --batch 64 --threads 1,2,4",
    # Launchers on the same nodes.
    "launchers": f"{GPU} --layout kx1 --nodes 1,2,4 --batch 32 --net 1g --max-seconds 30"
    " --launcher horovod-gloo,horovod-mpi,torch-ddp",
}
# Two points: one node and two nodes, few steps.
QUICK = {"slices": f"{GPU} --layout kx1 --nodes 1,2 --batch 32 --net 1g --max-seconds 2 --max-steps 2 --no-micro"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for the results (default: docs/results)")
    parser.add_argument("--only", choices=FULL, action="append", help="measure this part; can be repeated")
    parser.add_argument("--fresh", action="store_true", help="measure complete parts again")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page from existing results")
    parser.add_argument("--quick", action="store_true", help="measure two points on two nodes; needs --output")
    args = parser.parse_args()
    if args.quick and not args.output:
        parser.error("--quick needs --output DIR: docs/results holds the full plan")
    output, parts = args.output or PUBLISHED, QUICK if args.quick else FULL
    if missing := [name for name in args.only or () if name not in parts]:
        parser.error(f"--only {missing[0]}: the small plan has only {', '.join(parts)}")
    todo = [name for name in args.only or parts if args.fresh or not complete(output / name)]
    if todo and not args.page:
        with tempfile.TemporaryDirectory() as home:
            os.environ["HVDCTL_HOME"] = home
            try:
                size = "2" if args.quick else "10"
                hvdctl(output, "up", "--nodes", size, "--slots", size)
                for name in todo:
                    measure(output / name, parts[name])
            finally:
                local.sweep(NAME, keep_data=False, step=Silent())
    there = {name: results.read(output / name) for name in parts if complete(output / name)}
    if not there:
        raise SystemExit(f"{output}: no complete part; run without --page to measure them")
    page = output / "README.md"
    page.write_text(reproduce_page.render(there, quick=args.quick))
    print(f"written: {page}")


def measure(folder: Path, words: str) -> None:
    if folder.exists():
        shutil.rmtree(folder)  # half a part is of nodes that are gone
    # The results hold the command: a path of this machine has no place in them.
    hvdctl(folder.parent, "bench", *words.split(), "--output", folder.name, "--yes")


def complete(folder: Path) -> bool:
    """Whether all of a part is there, and nothing of it failed."""
    return (folder / results.FILE).exists() and results.whole(results.read(folder))


def hvdctl(cwd: Path, verb: str, *words: str) -> None:
    print(f"\n$ hvdctl {verb} {' '.join(words)}", flush=True)
    cwd.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "hvdctl", verb, "--name", NAME, *words], cwd=cwd, check=True)


if __name__ == "__main__":
    main()
