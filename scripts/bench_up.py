"""How long up, down and run take, as ratios of things measured in one run: a table, and bench-up.json."""

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

from hvdctl import engine, images, keys, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.progress import Silent
from hvdctl.sites import local

NAME = "bench-up"
LIMITS = {
    "up_over_floor": 4.0,
    "reup_over_up": 0.25,
    "down_over_up": 0.5,
    "growth_10_to_20": 2.2,
    "help_over_typer": 3.0,
    "run_added_s": 3.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="every time is the median of so many")
    parser.add_argument("--output", type=Path, default=Path("bench-up.json"))
    args = parser.parse_args()
    image = images.build("pytorch", Silent()).reference
    with tempfile.TemporaryDirectory() as home:
        os.environ["HVDCTL_HOME"] = home
        try:
            seconds = measure(args.rounds, image)
        finally:
            local.sweep(NAME, keep_data=False, step=Silent())
    ratios = {
        "up_over_floor": seconds["up10"] / seconds["floor10"],
        "reup_over_up": seconds["reup10"] / seconds["up10"],
        "down_over_up": seconds["down10"] / seconds["up10"],
        "growth_10_to_20": seconds["up20"] / seconds["up10"],
        "help_over_typer": seconds["help"] / seconds["typer"],
        "run_added_s": seconds["run"] - seconds["by_hand"],
    }
    show(seconds, ratios)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    result = {**{k: round(v, 3) for k, v in ratios.items()}, "seconds": seconds, "limits": LIMITS, "machine": machine}
    args.output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nwritten to {args.output}")


def measure(rounds: int, image: str) -> dict[str, float]:
    """Medians; the rounds are interleaved, so that a slow minute of the machine meets all of them."""
    times: dict[str, list[float]] = {}

    def note(name: str, act: Callable[[], object]) -> None:
        began = time.perf_counter()
        act()
        times.setdefault(name, []).append(time.perf_counter() - began)
        print(f"  {name:8} {times[name][-1]:6.2f} s", flush=True)

    for number in range(1, rounds + 1):
        print(f"round {number} of {rounds}")
        note("typer", lambda: call([sys.executable, "-c", "import typer"]))
        note("help", lambda: call([str(Path(sys.executable).with_name("hvdctl")), "--help"]))
        times.setdefault("floor10", []).append(floor(10, image))
        print(f"  floor10  {times['floor10'][-1]:6.2f} s", flush=True)
        note("up10", lambda: hvdctl("up", "--nodes", "10"))
        note("reup10", lambda: hvdctl("up", "--nodes", "10"))
        note("by_hand", by_hand)
        note("run", lambda: hvdctl("run", "--np", "2", "--", "python", "-c", JOB))
        note("down10", lambda: hvdctl("down", "-y"))
        note("up20", lambda: hvdctl("up", "--nodes", "20"))
        note("down20", lambda: hvdctl("down", "-y"))
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


JOB = "import horovod.torch as hvd; hvd.init(); print(hvd.rank())"


def floor(count: int, image: str) -> float:
    """Ten containers of the same image, started in parallel, until SSH answers on all."""
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
            made = client.containers.create(image, labels={local.LABEL: NAME})
            made.put_archive(SSH_FOLDER, files)
            made.start()
            made.reload()
            address = made.attrs["NetworkSettings"]["IPAddress"]
            return Node("", str(number), "", "", address, address, "hvd", 2222, None, 1, 0)

        began = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            ssh.wait(list(pool.map(start, range(count))))
        took = time.perf_counter() - began
    local.sweep(NAME, keep_data=False, step=Silent())
    return took


def by_hand() -> None:
    """The same job as a user would start it on the head."""
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
