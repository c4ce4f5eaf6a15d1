"""Figures of the micro-benchmarks and of the timeline."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvdctl.bench import results, wording
from hvdctl.bench.figures import charts, figure
from hvdctl.bench.figures.charts import Panel, Series
from hvdctl.bench.figures.figure import Figure
from hvdctl.bench.figures.sheet import Axis, Head
from hvdctl.bench.results import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_MAX_SPANS = 1500


def build(records: Sequence[Record]) -> list[Figure]:
    return [*_allreduce(records), *_links(records), *_timelines(records)]


def _allreduce(records: Sequence[Record]) -> list[Figure]:
    last = {
        (one["net"], one["nodes"], one["slots"], one.get("launcher")): one
        for one in results.of_kind(records, "allreduce")
        if len(one["rows"]) > 1  # one size makes no curve
    }
    if not last:
        return []
    found = list(last.values())
    launchers = {one.get("launcher") for one in found}
    scale, unit = figure.bit_unit(max(row["bus_bits"] for one in found for row in one["rows"]))
    panels = []
    for (net,), at_net in results.series(found, ["net"]).items():
        series = [
            Series(
                wording.where(one) + (f", {one.get('launcher')}" if len(launchers) > 1 else ""),
                [row["bytes"] for row in one["rows"]],
                [row["bus_bits"] / scale for row in one["rows"]],
            )
            for one in at_net
        ]
        level = (net / scale, f"link: {wording.link(net)}") if net else None
        panels.append(Panel(wording.link(net), series, level))
    sizes = sorted({row["bytes"] for one in found for row in one["rows"]})
    ticks = sizes[:: max(1, math.ceil(len(sizes) / 5))]
    y = Axis(f"bus bandwidth ({unit})", show=wording.number)
    x = Axis("size", ticks, [wording.size(tick) for tick in ticks], log=True)
    told = "Bus bandwidth of an allreduce by its size, and the rate that links were limited to. "
    told += "Measured as it is: no GPU and no time dilation plays a part."

    def drawing(head: Head, narrow: bool) -> Drawing:
        return charts.lines(head, panels, x, y, narrow, sharey=False)

    title = "Allreduce: bus bandwidth by size"
    return [figure.make("allreduce", "allreduce", title, told, drawing, record={"all": found})]


def _links(records: Sequence[Record]) -> list[Figure]:
    last = {one["net"]: one for one in results.of_kind(records, "links") if one["pairs"]}
    found = []
    for net, one in last.items():
        scale, unit = figure.bit_unit(max(pair["bits"] for pair in one["pairs"]))
        values = {(pair["source"], pair["target"]): pair["bits"] / scale for pair in one["pairs"]}
        names = sorted({name for pair in values for name in pair}, key=_by_number)
        slowest = min(one["pairs"], key=lambda pair: pair["bits"])
        told = "What one connection reaches from each node to each other. "
        told += f"Slowest, framed: {slowest['source']} to {slowest['target']}, {wording.link(slowest['bits'])}"
        told += f", {wording.percent(slowest['bits'] / net)} of {wording.limited(one)}." if net else "."
        if one.get("together"):
            told += " Pairs without a common node were measured at the same time: they share what lies between them."
        if some := wording.sample(one):
            told += f" A sample: {some} were measured; the others are blank, and may be slower."
        title = f"Bandwidth between nodes ({unit}), {'links of ' if net else ''}{wording.link(net)}"
        name = f"links-{wording.link(net)}" if len(last) > 1 else "links"

        def drawing(
            head: Head, narrow: bool, names: list[str] = names, values: Any = values, unit: str = unit
        ) -> Drawing:
            return charts.matrix(head, names, values, unit, narrow)

        found.append(figure.make(name, "links", title, told, drawing, record=one))
    return found


def _timelines(records: Sequence[Record]) -> list[Figure]:
    found = [one for one in results.of_kind(records, "timeline") if any(rank["spans"] for rank in one["ranks"])]
    if not found:
        return []
    one = found[-1]
    starts = sorted(span[1] for rank in one["ranks"] for span in rank["spans"])
    end = starts[_MAX_SPANS] if len(starts) > _MAX_SPANS else math.inf
    rows = [
        (
            f"rank {rank['rank']}",
            [(name, start - starts[0], stop - starts[0]) for name, start, stop in rank["spans"] if start < end],
        )
        for rank in one["ranks"]
    ]
    told = "A row for each rank, over a few steps." if end == math.inf else "A row for each rank, over the first steps."
    told += f" The whole timeline is in {one['file']}." if one.get("file") else ""
    measured = results.points(records)
    points = [point for point in measured if point["key"] == one.get("point", point["key"]) and point["emulated"]]

    def drawing(head: Head, narrow: bool) -> Drawing:
        return charts.spans(head, rows, narrow)

    return [figure.make("timeline", "timeline", "What each rank did", told, drawing, points=points, record=one)]


def _by_number(name: str) -> list[Any]:
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part]
