"""The hashes of all files that images are made of: images/SHA256SUMS, in the format of `sha256sum`.

A release has one line for each file that counts as it: wheels for other processors, or another index's build.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from hvdctl import paths
from hvdctl.errors import HvdctlError


def known() -> dict[str, tuple[str, ...]]:
    """The accepted SHA-256 hashes of each pin, such as numpy==2.4.6."""
    return parse(paths.asset("images", "SHA256SUMS").read_text())


@cache
def parse(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for line in filter(None, text.splitlines()):
        hash_, _, file = line.partition("  ")
        found.setdefault(pin_of(file), []).append(hash_)
    return {pin: tuple(sorted(hashes)) for pin, hashes in found.items()}


def pin_of(file: str) -> str:
    """The requirement that a file fulfils: numpy==2.4.6 for numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl."""
    if file.endswith(".whl"):
        name, version = file.split("-")[:2]
    else:
        name, _, version = file.removesuffix(".tar.gz").rpartition("-")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"


def requirements(pins: Iterable[str]) -> list[str]:
    """The lines of a requirements file that lets pip take no other file."""
    have = known()
    lines = []
    for pin in pins:
        if pin not in have:
            raise HvdctlError(
                f"images/SHA256SUMS has no hash for {pin}",
                hint="in a clone, `make lock` adds those of the index that pip is set to use",
            )
        lines.append(" ".join([pin, *(f"--hash=sha256:{one}" for one in have[pin])]))
    return lines


def mismatch(said: Iterable[str]) -> str | None:
    """The requirement whose file has another hash, from what pip said; None if that was not the failure."""
    blamed = None
    for line in said:
        if found := re.match(r"\s*([A-Za-z0-9._-]+==\S+)", line):
            blamed = found[1]
        if line.strip().startswith("Got") and blamed:
            return blamed
    return None
