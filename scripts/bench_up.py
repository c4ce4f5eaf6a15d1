"""Measure up, down and run as ratios of times taken in the same run: a table, and bench-up.json.

make bench-up                                     10 and 20 nodes, the median of three rounds
make bench-up ARGS="--rounds 1 --nodes 2"         2 and 4 nodes once, about a minute
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hvdctl import engine, images, keys, owner, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.progress import Silent
from hvdctl.sites import local

NAME = "bench-up"
LIMITS = {
    "up_over_floor": 4.0,
    "reup_over_up": 0.25,
    "down_over_up": 0.5,
    "growth_on_doubling": 2.2,
    "help_over_typer": 3.0,
    "run_added_s": 3.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; each time is their median (default 3)")
    parser.add_argument("--nodes", type=int, default=10, help="measure this many nodes and twice as many (default 10)")
    parser.add_argument("--output", type=Path, default=Path("bench-up.json"))
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: must be at least 1")
    if args.nodes < 2:
        parser.error(f"--nodes {args.nodes}: must be at least 2 (the job runs on two nodes)")
    image = images.build("pytorch", Silent()).reference
    with tempfile.TemporaryDirectory() as home:
        os.environ["HVDCTL_HOME"] = home
        try:
            seconds = measure(args.rounds, args.nodes, image)
        finally:
            local.sweep(NAME, keep_data=False, step=Silent())
    ratios = {
        "up_over_floor": seconds["up"] / seconds["floor"],
        "reup_over_up": seconds["reup"] / seconds["up"],
        "down_over_up": seconds["down"] / seconds["up"],
        "growth_on_doubling": seconds["up_double"] / seconds["up"],
        "help_over_typer": seconds["help"] / seconds["typer"],
        "run_added_s": seconds["run"] - seconds["by_hand"],
    }
    show(seconds, ratios)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    result = {name: round(value, 3) for name, value in ratios.items()} | {"nodes": args.nodes, "rounds": args.rounds}
    result |= {"seconds": seconds, "limits": LIMITS, "machine": machine}
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwritten to {args.output}")


def measure(rounds: int, nodes: int, image: str) -> dict[str, float]:
    """Return medians. The steps of each round are interleaved, so a slow minute affects all of them."""
    times: dict[str, list[float]] = {}

    def note(name: str, act: Callable[[], object]) -> None:
        began = time.perf_counter()
        act()
        times.setdefault(name, []).append(time.perf_counter() - began)
        print(f"  {name:11} {times[name][-1]:6.2f} s", flush=True)

    for number in range(1, rounds + 1):
        print(f"round {number} of {rounds}")
        note("typer", lambda: call([sys.executable, "-c", "import typer"]))
        note("help", lambda: call([str(Path(sys.executable).with_name("hvdctl")), "--help"]))
        times.setdefault("floor", []).append(floor(nodes, image))
        print(f"  {'floor':11} {times['floor'][-1]:6.2f} s", flush=True)
        note("up", lambda: hvdctl("up", "--nodes", str(nodes)))
        note("reup", lambda: hvdctl("up", "--nodes", str(nodes)))
        note("by_hand", by_hand)
        note("run", lambda: hvdctl("run", "--np", "2", "--", "python", "-c", JOB))
        note("down", lambda: hvdctl("down", "-y"))
        note("up_double", lambda: hvdctl("up", "--nodes", str(2 * nodes)))
        note("down_double", lambda: hvdctl("down", "-y"))
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


JOB = "import horovod.torch as hvd; hvd.init(); print(hvd.rank())"


def floor(count: int, image: str) -> float:
    """Start containers of the same image in parallel; return the seconds until SSH answers on all of them."""
    client = engine.client()
    with tempfile.TemporaryDirectory() as folder:
        from hvdctl.tfprovider.node import SSH_FOLDER, ssh_files

        key = keys.ensure(Path(folder) / "key")
        files = ssh_files(
            {
                "ssh_host_private_key": str(key.private),
                "ssh_private_key": str(key.private),
                "ssh_host_public_key": key.public,
                "ssh_public_key": key.public,
            }
        )

        def start(number: int) -> Node:
            made = client.containers.create(image, labels={local.LABEL: NAME, **owner.this().labels})
            made.put_archive(SSH_FOLDER, files)
            made.start()
            made.reload()
            (network,) = made.attrs["NetworkSettings"]["Networks"].values()
            address = network["IPAddress"]
            return Node("", str(number), "", "", address, address, "hvd", 2222, None, 1, 0)

        began = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            ssh.wait(Cluster(NAME), list(pool.map(start, range(count))))
        took = time.perf_counter() - began
    local.sweep(NAME, keep_data=False, step=Silent())
    return took


def by_hand() -> None:
    """Start the same job as a user would on the head."""
    command = ["horovodrun", "-np", "2", "-H", "node0:1,node1:1", "python", "-c", f"'{JOB}'"]
    call(ssh.argv(Cluster(NAME), "node0", command))


def hvdctl(verb: str, *words: str) -> None:
    call([sys.executable, "-m", "hvdctl", verb, "--name", NAME, *words], cwd=Path(__file__).parent)


def call(argv: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argv} failed:\n{done.stdout}\n{done.stderr}")


def show(seconds: dict[str, float], ratios: dict[str, float]) -> None:
    print("\nMEDIAN SECONDS  " + "  ".join(f"{name} {value:.2f}" for name, value in seconds.items()))
    print(f"\n{'RATIO':18}{'MEASURED':>9}{'LIMIT':>8}")
    for name, value in ratios.items():
        print(f"{name:18}{value:9.2f}{LIMITS[name]:8.2f}  {'ok' if value <= LIMITS[name] else 'OVER'}")


if __name__ == "__main__":
    main()
