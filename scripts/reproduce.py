"""The experiments of the published decks on emulated GPUs: docs/results/ with figures, pages and what differs.

    make reproduce                        all of it, about an hour on two cores
    scripts/reproduce.py --only launchers one part anew
    scripts/reproduce.py --page           only the page, from results that are there

Parts that are there and complete are not measured again; `--fresh` starts anew.
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
GPU = "--device emulated:p100 --model resnet50"
PARTS = {
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--fresh", action="store_true", help="measure again what is there")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    args = parser.parse_args()
    todo = [name for name in args.only or PARTS if args.fresh or not complete(args.output / name)]
    if todo and not args.page:
        with tempfile.TemporaryDirectory() as home:
            os.environ["HVDCTL_HOME"] = home
            try:
                hvdctl(args.output, "up", "--nodes", "10", "--slots", "10")
                for name in todo:
                    measure(args.output / name, PARTS[name])
            finally:
                local.sweep(NAME, keep_data=False, step=Silent())
    there = {name: results.read(args.output / name) for name in PARTS if complete(args.output / name)}
    page = args.output / "README.md"
    page.write_text(reproduce_page.render(there))
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
