"""Two benches side by side: what became faster or slower, beyond what chance explains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdctl.bench import results, wording
from hvdctl.bench.results import Record
from hvdctl.errors import UsageError


@dataclass(frozen=True)
class Row:
    """One point in both benches. `verdict`: same, faster, slower, regression, or failed where only B failed."""

    key: str
    a: float
    a_ci: float | None
    b: float | None
    b_ci: float | None
    ratio: float | None
    verdict: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All that two benches have in common, what only one has, and what else tells them apart."""

    rows: Sequence[Row]
    only_a: Sequence[str]
    only_b: Sequence[str]
    notes: Sequence[str]
    limit: float | None

    @property
    def regressions(self) -> list[Row]:
        return [row for row in self.rows if row.verdict in {"regression", "failed"}] if self.limit is not None else []

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"regressions": [row.key for row in self.regressions]}


def compare(a: Path, b: Path, limit: float | None = None) -> Comparison:
    """Compare B with A. A regression is slower by more than `limit` (a share), with intervals that do not overlap.

    A point that B failed at and A did not is one too. Without a limit there are none.
    """
    first, second = results.read(a), results.read(b)
    before = {point["key"]: point for point in results.points(first)}
    after = {point["key"]: point for point in results.points(second)}
    common = [key for key in before if key in after and before[key]["status"] == "ok"]
    if not common:
        raise UsageError(
            f"{b} has no point that was measured in {a} too ({_devices(before)} against {_devices(after)})",
            hint="compare benches of the same plan",
        )
    return Comparison(
        rows=[_row(before[key], after[key], limit) for key in common],
        only_a=[key for key in before if key not in after],
        only_b=[key for key in after if key not in before or before[key]["status"] != "ok" == after[key]["status"]],
        notes=_notes(first, second, before, after),
        limit=limit,
    )


def parse_limit(text: str) -> float:
    """A share from 5%, 5 or 0.05: numbers below one are shares, others percentages."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    if match:
        value = float(match[1])
        share = value / 100 if match[2] or value >= 1 else value
        if share < 1:
            return share
    raise UsageError(f"--fail-under {text!r} is not a limit; write 5%, 5 or 0.05 (0 to less than 100 %)")


def _row(a: Record, b: Record, limit: float | None) -> Row:
    notes = []
    if a["emulated"] != b["emulated"]:
        notes.append(f"A is {_kind(a)}, B is {_kind(b)}")
    if _dilation(a) != _dilation(b):
        notes.append(f"time dilation {wording.factor(_dilation(a))} against {wording.factor(_dilation(b))}")
    if b["status"] != "ok":
        notes.append(f"failed in B: {b.get('reason') or 'no reason was recorded'}")
        return Row(a["key"], a["images_per_s"], a.get("images_per_s_ci"), None, None, None, "failed", tuple(notes))
    was, now = a["images_per_s"], b["images_per_s"]
    chance = (a.get("images_per_s_ci") or 0.0) + (b.get("images_per_s_ci") or 0.0)
    if abs(now - was) <= chance:
        verdict = "same"
    elif now > was:
        verdict = "faster"
    else:
        verdict = "regression" if limit is not None and now < was * (1 - limit) else "slower"
    return Row(a["key"], was, a.get("images_per_s_ci"), now, b.get("images_per_s_ci"), now / was, verdict, tuple(notes))


def _notes(
    first: Sequence[Record], second: Sequence[Record], before: dict[str, Record], after: dict[str, Record]
) -> list[str]:
    notes = []
    if _devices(before) != _devices(after):
        notes.append(f"devices differ: {_devices(before)} against {_devices(after)}; only the same points are compared")
    both = [key for key in before if key in after]
    if any(_dilation(before[key]) != _dilation(after[key]) for key in both):
        notes.append("time dilation differs: latency counts differently in A and B")
    one, other = results.bench(first), results.bench(second)
    for what, name in (("machine", "cpu"), ("machine", "cores"), ("image", "id")):
        left, right = ((bench.get(what) or {}).get(name) for bench in (one, other))
        if left != right:
            notes.append(f"{what} {name} differs: {left} against {right}")
    for name in sorted((one.get("versions") or {}).keys() & (other.get("versions") or {}).keys()):
        left, right = one["versions"][name], other["versions"][name]
        if left != right:
            notes.append(f"version of {name} differs: {left} against {right}")
    for label, records in (("A", first), ("B", second)):
        if results.state(records) != "complete":
            notes.append(f"{label} is {results.state(records)}")
    return notes


def _devices(points: dict[str, Record]) -> str:
    return ", ".join(dict.fromkeys(wording.device(point["device"]) for point in points.values())) or "no points"


def _kind(point: Record) -> str:
    return "emulated" if point["emulated"] else "real"


def _dilation(point: Record) -> float:
    return float(point.get("dilation") or 1.0)
