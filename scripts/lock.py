#!/usr/bin/env python3
"""Adds to images/SHA256SUMS the hashes of all packages in images/versions.toml, and removes those that are not there.

They come from the package index that pip is set to use here, so run it on a machine whose settings you trust and read
the difference before you commit it. A hash that is in the file already stays: another index may have another build.

    make lock                                   some minutes
    make lock ARGS="--only toolchain"           asks for the packages of the compilers only
    make lock ARGS="--fresh --output FILE"      writes what the index has, and no line of images/SHA256SUMS
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "toolkit"))

from hvdctl import hashes, wheels  # noqa: E402 - found by the line above

SUMS = ROOT / "images" / "SHA256SUMS"
MACHINES = ("x86_64", "aarch64")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("toolchain", "lab", *wheels.FRAMEWORKS), help="ask the index for these only")
    parser.add_argument("--output", type=Path, default=SUMS, help="where to write (default: images/SHA256SUMS)")
    parser.add_argument("--fresh", action="store_true", help="start empty: keep no line of images/SHA256SUMS")
    args = parser.parse_args()
    if args.fresh and args.only and args.output.resolve() == SUMS:
        parser.error("--fresh with --only would lose all other lines of images/SHA256SUMS: add --output FILE")
    groups = {"toolchain": [wheels.toolchain()], "lab": [wheels.lab()]}
    for framework in wheels.FRAMEWORKS:
        groups[framework] = [wheels.pins(framework), wheels.pins(framework, wheels.cuda_version(framework))]
    houses = [house for group in groups.values() for house in group]
    asked = groups[args.only] if args.only else houses
    wanted = pins_of(houses)
    found: dict[str, str] = {}
    for house in asked:
        for machine in MACHINES:
            found |= wheels_of(house, machine)
        if house.source:
            found |= source_of(house.source)
    kept = [] if args.fresh else [line for line in lines() if hashes.pin_of(by_file(line)) in wanted]
    written = sorted({*kept, *(f"{hash_}  {file}" for file, hash_ in found.items())}, key=by_file)
    args.output.write_text("".join(f"{line}\n" for line in written))
    there = {hashes.pin_of(by_file(line)) for line in written}
    # A fresh file has only what was asked for.
    missing = sorted((pins_of(asked) if args.fresh else wanted) - there)
    for pin in missing:
        print(f"no hash for {pin}: the index of this machine does not have it", file=sys.stderr)
    return 1 if missing else 0


def pins_of(houses: Iterable[wheels.Pins]) -> set[str]:
    """All packages of these, those that are built from source included."""
    return {pin for house in houses for pin in (*house.build, *house.packages, *filter(None, [house.source]))}


def wheels_of(house: wheels.Pins, machine: str) -> dict[str, str]:
    """The files that pip would download for a processor, with the hashes that the index names."""
    left = [exact(pin) for pin in (*house.build, *house.packages)]
    with tempfile.TemporaryDirectory() as work:
        report = Path(work, "report.json")
        head = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check"]
        while left:
            argv = [*head, "--report", str(report), "--target", work, *wheels.download_arguments(house, machine)]
            done = subprocess.run([*argv, *left], capture_output=True, text=True)
            if done.returncode == 0:
                return dict(map(file_of, json.loads(report.read_text())["install"]))
            lost = [pin for pin in left if f"No matching distribution found for {pin}" in done.stderr]
            if not lost:
                sys.exit(done.stderr)
            print(f"{machine}: no wheel of {lost[0]}", file=sys.stderr)
            left.remove(lost[0])
    return {}


def exact(pin: str) -> str:
    """For pip `==2.13.0` means 2.13.0+cpu too, and another package."""
    return pin if "+" in pin else pin.replace("==", "===")


def file_of(item: dict[str, Any]) -> tuple[str, str]:
    told = item["download_info"]
    return unquote(told["url"].rpartition("/")[2]), told["archive_info"]["hashes"]["sha256"]


def source_of(pin: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as work:
        tail = wheels.source(pin, Path(work), print, checked=False)
        if tail:
            sys.exit("\n".join(tail))
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(work).iterdir()}


def lines() -> list[str]:
    return SUMS.read_text().splitlines() if SUMS.exists() else []


def by_file(line: str) -> str:
    return line.partition("  ")[2]


if __name__ == "__main__":
    sys.exit(main())
