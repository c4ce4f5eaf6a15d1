"""How figures are drawn: matplotlib by its objects, at two widths, with nothing kept between two drawings."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdctl.bench.figures import sheet
from hvdctl.bench.figures.sheet import Axis, Head

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by people with any kind of colour vision. With it goes a marker each.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_PARTS = {
    "compute": "#0072B2",
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "exposed": "#E69F00",
    "waiting": "#999999",
}
_NAME_ROOM = {"narrow": 14, "several": 16, "one": 24}  # characters under a group of bars
_GREY = "#555555"
_TICK = 0.125  # inches that a name beside an axis takes


@dataclass(frozen=True)
class Series:
    """One line: values with half intervals, the ideal, the predicted band, and where points failed."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] = ()
    ideal: tuple[Sequence[float], Sequence[float]] | None = None
    band: tuple[Sequence[float], Sequence[float], Sequence[float]] | None = None
    failed: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    title: str
    series: Sequence[Series]
    level: tuple[float, str] | None = None  # a line across, with its name


@dataclass(frozen=True)
class Bars:
    """Bars in groups; a bar is stacked where it has several parts."""

    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]


@dataclass(frozen=True)
class Bar:
    label: str
    parts: dict[str, float]
    error: float = 0.0
    under: str = ""  # a word under the bar


def lines(head: Head, panels: Sequence[Panel], x: Axis, y: Axis, narrow: bool, sharey: bool = True) -> Figure:
    """Lines with error bars, a panel beside the other."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels = list(dict.fromkeys(series.label for panel in panels for series in panel.series))
    looks = {label: (_COLOURS[i % 7], _MARKERS[i % 7]) for i, label in enumerate(labels)}
    every = [series for panel in panels for series in panel.series]
    handles: list[Artist] = [
        Line2D([], [], color=colour, marker=marker, markersize=5, linewidth=1.6, label=label)
        for label, (colour, marker) in looks.items()
    ]
    if any(series.ideal for series in every):
        handles.append(Line2D([], [], color=_GREY, linestyle=":", linewidth=1.2, label="ideal"))
    if any(series.band for series in every):
        handles.append(Patch(color=_GREY, alpha=0.25, linewidth=0, label="predicted"))
    if any(series.failed for series in every):
        handles.append(Line2D([], [], color=sheet.ALERT, marker="x", linestyle="", markersize=6, label="failed"))
    height = 2.5 if narrow else 3.2
    figure, boxes = sheet.make(head, len(panels), narrow=narrow, height=height, handles=handles, sharey=sharey)
    for box, panel in zip(boxes, panels, strict=True):
        box.set_title(panel.title)
        for series in panel.series:
            _line(box, series, *looks[series.label])
        if panel.level:
            _level(box, *panel.level)
    sheet.label(boxes, x, y, narrow)
    for box, panel in zip(boxes, panels, strict=True):
        if not y.log:
            box.set_ylim(bottom=0)
        lost = sorted({x for series in panel.series for x in series.failed})
        if lost:
            floor = [box.get_ylim()[0]] * len(lost)
            box.plot(lost, floor, "x", color=sheet.ALERT, markersize=6, clip_on=False)
    return figure


def bars(head: Head, panels: Sequence[Bars], y: Axis, narrow: bool) -> Figure:
    """Bars in groups. Stacked ones are coloured by part, plain ones by their label."""
    from matplotlib.patches import Patch

    every = [bar for panel in panels for _, group in panel.groups for bar in group]
    stacked = any(len(bar.parts) > 1 for bar in every)
    names = list(dict.fromkeys(name for bar in every for name in (bar.parts if stacked else [bar.label])))
    colours = {name: _PARTS.get(name, _COLOURS[i % 7]) for i, name in enumerate(names)}
    handles = [Patch(color=colours[name], linewidth=0, label=_PART_NAMES.get(name, name)) for name in names]
    figure, boxes = sheet.make(
        head, len(panels), narrow=narrow, height=2.6 if narrow else 3.2, handles=handles, sharey=not stacked
    )
    for box, panel in zip(boxes, panels, strict=True):
        box.set_title(panel.title)
        at, ticks, under = 0.0, [], []
        for name, group in panel.groups:
            for i, bar in enumerate(group):
                _bar(box, at + i, bar, colours, stacked)
                if bar.under:
                    under.append((at + i, bar.under))
            ticks.append((at + (len(group) - 1) / 2, name))
            at += len(group) + 0.8
        spare = max(0.0, (5 if narrow else 8) - at) / 2  # few bars need not fill the panel
        box.set_xlim(-0.9 - spare, at - 0.9 + spare)
        box.xaxis.remove_overlapping_locs = False  # a bar's word may stand over its group's
        box.grid(axis="x", visible=False)
        box.tick_params(axis="x", length=0, pad=(20 if narrow and len(under) > 12 else 15) if under else 4)
        room = _NAME_ROOM["narrow" if narrow else "one" if len(panels) == 1 else "several"]
        tight = len(ticks) * max(len(name) for _, name in ticks) > (38 if narrow else 60)
        names = [name.replace("\u00a0", "\n") if tight else _folded(name, room) for _, name in ticks]
        box.set_xticks([x for x, _ in ticks], names)
        if under:
            box.set_xticks([x for x, _ in under], [word for _, word in under], minor=True, color=_GREY)
            turn = 90 if narrow and len(under) > 12 else 0
            box.tick_params(axis="x", which="minor", length=0, pad=3, labelrotation=turn)
    sheet.label(boxes, Axis(""), y, narrow)
    return figure


def matrix(head: Head, names: Sequence[str], values: dict[tuple[str, str], float], unit: str, narrow: bool) -> Figure:
    """A heat map from rows to columns, each cell with its number where that fits, the least one framed."""
    from matplotlib.patches import Rectangle
    from numpy import array, ma

    width = sheet.NARROW if narrow else min(6.0, max(4.2, 1.3 + 0.62 * len(names)))
    figure, (box,) = sheet.make(head, 1, narrow=narrow, height=width * 0.88, handles=[], width=width)
    box.set_anchor("NW")
    table = array([[values.get((source, target), math.nan) for target in names] for source in names])
    edges = [index - 0.5 for index in range(len(names) + 1)]
    # Names, and lines between cells, as many as there is room for.
    step = math.ceil(len(names) * _TICK / (width - 1.2))
    grid = "white" if step == 1 else "none"
    image = box.pcolormesh(edges, edges, ma.masked_invalid(table), cmap="cividis", vmin=0, edgecolors=grid)
    box.set_aspect("equal")
    box.invert_yaxis()
    box.grid(visible=False)
    box.spines[:].set_visible(False)
    turn = 90 if len(names) > (4 if narrow else 8) else 0
    ticks = range(0, len(names), step)
    box.set_xticks(ticks, list(names[::step]), rotation=turn)
    box.set_yticks(ticks, list(names[::step]))
    box.tick_params(length=0)
    box.set_xlabel("to")
    box.set_ylabel("from")
    least = min(values, key=lambda pair: values[pair])
    top = max(values.values())
    places = 0 if top >= 100 else 1 if top >= 10 else 2
    # A number of four signs takes a third of an inch. Where none fits, the colours need a scale.
    if len(names) * 0.42 > width - 1.2:
        bar = figure.colorbar(image, ax=box, shrink=0.8, aspect=24, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label(unit)
    else:
        for (source, target), value in values.items():
            dark = value < top * 0.6
            box.text(
                names.index(target),
                names.index(source),
                f"{value:.{places}f}",
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontweight="bold" if (source, target) == least else "normal",
            )
    corner = (names.index(least[1]) - 0.5, names.index(least[0]) - 0.5)
    box.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#E6004C", linewidth=2.5, clip_on=False, zorder=3))
    return figure


def spans(head: Head, rows: Sequence[tuple[str, Sequence[tuple[str, float, float]]]], narrow: bool) -> Figure:
    """What each rank did when: a row a rank, a colour for each kind of work."""
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(name for _, row in rows for name, _, _ in row))
    free = [colour for colour in _COLOURS if colour not in _PARTS.values()]
    others = [name for name in names if name not in _PARTS]
    colours = _PARTS | {name: free[i % len(free)] for i, name in enumerate(others)}
    handles = [Patch(color=colours[name], linewidth=0, label=_PART_NAMES.get(name, name)) for name in names]
    figure, (box,) = sheet.make(
        head,
        1,
        narrow=narrow,
        height=0.9 + 0.3 * len(rows),
        handles=handles,
        width=sheet.NARROW if narrow else sheet.WIDE,
    )
    for index, (_, row) in enumerate(rows):
        for name in names:
            parts = [(start * 1000, (end - start) * 1000) for kind, start, end in row if kind == name]
            box.broken_barh(parts, (index - 0.36, 0.72), facecolors=colours[name], linewidth=0)
    box.set_yticks(range(len(rows)), [name for name, _ in rows])
    box.set_ylim(len(rows) - 0.5, -0.5)
    box.grid(axis="y", visible=False)
    box.margins(x=0.01)
    box.set_xlabel("time (ms)")
    return figure


_PART_NAMES = {"exposed": "communication not hidden", "waiting": "waiting for other ranks"}


def _line(box: Axes, series: Series, colour: str, marker: str) -> None:
    if series.band:
        box.fill_between(*series.band, color=colour, alpha=0.2, linewidth=0)
    if series.ideal:
        box.plot(*series.ideal, color=colour, linestyle=":", linewidth=1.2, alpha=0.8)
    error = list(series.error) or None
    box.errorbar(
        list(series.x),
        list(series.y),
        yerr=error,
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.5,
        elinewidth=1.0,
        capsize=2.5,
    )


def _level(box: Axes, value: float, name: str) -> None:
    box.axhline(value, color=_GREY, linestyle="--", linewidth=1.0)
    box.annotate(name, (0.02, value), (0, 3), ("axes fraction", "data"), "offset points", color=_GREY)
    box.set_ylim(top=max(box.get_ylim()[1], value * 1.15))


def _bar(box: Axes, x: float, bar: Bar, colours: dict[str, str], stacked: bool) -> None:
    bottom = 0.0
    for name, value in bar.parts.items():
        colour = colours[name if stacked else bar.label]
        box.bar(x, value, 0.86, bottom=bottom, color=colour, linewidth=0)
        bottom += value
    if bar.error:
        box.errorbar(x, bottom, yerr=bar.error, color="black", elinewidth=1.0, capsize=2.5)


def _folded(text: str, room: int) -> str:
    return "\n".join(textwrap.wrap(text, room)) if len(text) > room else text
