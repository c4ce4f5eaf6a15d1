"""Figures of one model in which all is the same but one axis: layout, launcher, data, threads, scaling."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hvdctl.bench import results, wording
from hvdctl.bench.figures import curves, figure
from hvdctl.bench.figures.charts import Bar, Bars, Panel, Series
from hvdctl.bench.figures.figure import Figure
from hvdctl.bench.figures.sheet import Axis
from hvdctl.bench.results import Record
from hvdctl.bench.wording import model as model_name

if TYPE_CHECKING:
    pass

_MAX_GROUPS = 6


def build(model: str, points: list[Record]) -> list[Figure]:
    """What the points of a model allow to compare."""
    bars = [found for axis in ("layout", "launcher", "data") for found in _comparison(model, points, axis)]
    return [*bars, *_threads(model, points), *_weak_and_strong(model, points)]


def _comparison(model: str, points: list[Record], axis: str) -> list[Figure]:
    fixed = ["net", "batch", "global_batch", *(one for one in curves.GROUP if one not in {axis, "slots"})]
    fixed += ["ranks"] if axis == "layout" else ["nodes", "slots"]
    value = wording.layout if axis == "layout" else partial(_value, axis)
    groups = [
        group
        for group in results.series(results.measured(points), fixed).values()
        if len({value(point) for point in group}) > 1
    ]
    if not groups:
        return []
    most = max(group[0]["ranks"] for group in groups)
    shown = [group for group in groups if axis == "layout" or group[0]["ranks"] == most][-_MAX_GROUPS:]
    panels = []
    for (net,), at_net in results.series([point for group in shown for point in group], ["net"]).items():
        sets = [group for group in shown if group[0] in at_net]
        panels.append(Bars(wording.link(net), [(_set_name(group, axis), _set(group, axis)) for group in sets]))
    every = [point for group in groups for point in group]
    title = {"layout": "layout of the ranks", "launcher": "launchers", "data": "source of the data"}[axis]
    told = {
        "layout": "The same number of ranks on few nodes and on many (nodes x ranks a node).",
        "launcher": "The same job started by different launchers.",
        "data": "The same job with data made in memory, read from the share, or staged to the nodes' disks first.",
    }[axis]
    told += " All else is the same. Error bars: 95 % confidence."
    drawing = partial(figure.bars, panels, Axis("images/s", show=wording.number))
    return [figure.make(f"{axis}-{model}", axis, f"{model_name(model)}: {title}", told, drawing, model, every)]


def _threads(model: str, points: list[Record]) -> list[Figure]:
    swept = [point for point in results.measured(points) if point.get("threads")]
    fixed = ["net", "nodes", "batch", "global_batch", *(one for one in curves.GROUP if one != "threads")]
    groups = {key: group for key, group in results.series(swept, fixed).items() if len(group) > 1}
    if not groups:
        return []
    every = [point for group in groups.values() for point in group]
    ticks = sorted({point["threads"] for point in every})
    panels = []
    for (net,), _ in results.series(every, ["net"]).items():
        lines = [sorted(group, key=lambda point: point["threads"]) for key, group in groups.items() if key[0] == net]
        panels.append(
            Panel(
                wording.link(net),
                [
                    Series(
                        f"{wording.where(line[0])}, {wording.batch(line[0])}",
                        [ticks.index(point["threads"]) for point in line],
                        [point["images_per_s"] for point in line],
                        [point.get("images_per_s_ci") or 0.0 for point in line],
                    )
                    for line in lines[:7]
                ],
            )
        )
    x = Axis("threads a rank", list(range(len(ticks))), [str(tick) for tick in ticks])
    told = "Images per second by the number of threads of a rank (OMP_NUM_THREADS). Error bars: 95 % confidence."
    drawing = partial(figure.lines, panels, x, Axis("images/s", show=wording.number))
    return [figure.make(f"threads-{model}", "threads", f"{model_name(model)}: threads", told, drawing, model, every)]


def _weak_and_strong(model: str, points: list[Record]) -> list[Figure]:
    usual = [point for point in points if point["status"] == "ok" and results.baseline(point, points)]
    strong = [point for point in usual if point["scaling"] == "strong"]
    totals = {point["global_batch"] for point in strong}
    weak = [point for point in usual if point["scaling"] == "weak" and point["batch"] in totals]
    fixed = [axis for axis in ("net", *curves.GROUP) if axis != "scaling"]
    pairs = results.series(weak + strong, fixed)
    every = [point for group in pairs.values() if len({one["scaling"] for one in group}) > 1 for point in group]
    if len(curves.sizes(every)) < 2:
        return []
    panels = [
        Panel(
            wording.link(net),
            [
                Series(
                    f"{line[0]['scaling']}, {wording.batch(line[0])}"
                    + (" a rank" if line[0]["scaling"] == "weak" else ""),
                    [point["ranks"] for point in line],
                    [results.efficiency(point, points) or 0.0 for point in line],
                    [curves.efficiency_ci(point, points) or 0.0 for point in line],
                    ideal=(curves.sizes(every), [1.0 for _ in curves.sizes(every)]),
                )
                for (scaling,), of_kind in sorted(results.series(at_net, ["scaling"]).items(), reverse=True)
                for line in curves.by_batch(of_kind)
            ],
        )
        for (net,), at_net in results.series(every, ["net"]).items()
    ]
    told = "Share of ideal as ranks are added: weak, each rank keeps its batch; strong, all ranks share one batch."
    drawing = partial(figure.lines, panels, curves.ranks_axis(every), Axis("share of ideal", show=curves.share))
    title = f"{model_name(model)}: weak and strong scaling"
    return [figure.make(f"scaling-{model}", "scaling", title, told, drawing, model, every)]


def _value(axis: str, point: Record) -> str:
    return wording.data(str(point.get(axis))) if axis == "data" else str(point.get(axis))


def _set_name(group: list[Record], axis: str) -> str:
    one = group[0]
    return f"{wording.ranks(one['ranks']) if axis == 'layout' else wording.where(one)}, {wording.batch(one)}"


def _set(group: list[Record], axis: str) -> list[Bar]:
    if axis != "layout":
        return [Bar(_value(axis, one), {"": one["images_per_s"]}, one.get("images_per_s_ci") or 0.0) for one in group]
    ways = {1: "all ranks on one node", group[0]["ranks"]: "one rank a node"}
    return [
        Bar(
            ways.get(one["nodes"], "several nodes of several ranks"),
            {"": one["images_per_s"]},
            one.get("images_per_s_ci") or 0.0,
            under=wording.layout(one),
        )
        for one in group
    ]
