"""The sheet that a figure is drawn on: size, head, legend, panels, axes, and the look of all of it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 9.0, 3.8  # inches
ALERT = "#B33A00"
_ONE_PANEL = 6.6
_FONT = 9.0
_TITLE = 11.0
_LINE = 0.19  # inches of a line of text
_SETTINGS: dict[str, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": _FONT,
    "axes.titlesize": _FONT + 1,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": _FONT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.8,
    "axes.unicode_minus": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "xtick.labelsize": _FONT,
    "ytick.labelsize": _FONT,
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "legend.fontsize": _FONT,
    "svg.fonttype": "none",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Head:
    """What stands over a figure: its title and, for emulated points, that they are."""

    title: str
    emulation: str = ""


@dataclass(frozen=True)
class Axis:
    name: str
    ticks: Sequence[float] = ()
    labels: Sequence[str] = ()
    log: bool = False
    show: Callable[[float], str] | None = field(default=None, compare=False)


@contextmanager
def style(salt: str) -> Iterator[None]:
    """The look of all figures; the same salt makes the same ids."""
    import matplotlib

    settings: Any = _SETTINGS | {"svg.hashsalt": salt}
    with matplotlib.rc_context(settings):
        yield


def make(
    head: Head,
    panels: int,
    *,
    narrow: bool,
    height: float,
    handles: Sequence[Artist],
    width: float = 0.0,
    sharey: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure with its head and legend, and boxes for the panels under them."""
    from matplotlib.figure import Figure

    width = width or (NARROW if narrow else WIDE if panels > 1 else _ONE_PANEL)
    columns = 1 if narrow else min(panels, 2 if panels in {2, 4} else 3)
    rows = math.ceil(panels / columns)
    title = textwrap.wrap(head.title, int(width * 10.2)) or [""]
    under = textwrap.wrap(head.emulation, int(width * 12.5))
    side = _columns([len(str(handle.get_label())) for handle in handles], width)
    legend = math.ceil(len(handles) / side) * (_LINE + 0.01)
    text = len(title) * (_LINE + 0.03) + len(under) * _LINE
    top = 0.06 + text + legend + 0.1
    total = top + rows * height
    figure = Figure(figsize=(width, total))
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - top / total), w_pad=0.04, h_pad=0.04)
    figure.text(0.06 / width, 1 - 0.06 / total, "\n".join(title), va="top", size=_TITLE, weight="bold")
    if under:
        y = 1 - (0.06 + len(title) * (_LINE + 0.03)) / total
        figure.text(0.06 / width, y, "\n".join(under), va="top", color=ALERT)
    if handles:
        figure.legend(
            handles=list(handles),
            ncols=side,
            loc="upper left",
            bbox_to_anchor=(0.0, 1 - (0.08 + text) / total),
            frameon=False,
            borderpad=0.2,
            labelspacing=0.3,
            columnspacing=1.4,
            handlelength=1.8,
        )
    boxes = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for spare in boxes[panels:]:
        spare.set_visible(False)
    return figure, boxes[:panels]


def label(boxes: Sequence[Axes], x: Axis, y: Axis, narrow: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    for index, box in enumerate(boxes):
        if x.log:
            box.set_xscale("log", base=2)
        if y.log:
            box.set_yscale("log")
        if x.ticks:
            box.set_xticks(list(x.ticks), list(x.labels) or [f"{tick:g}" for tick in x.ticks])
            box.xaxis.set_minor_locator(NullLocator())
        if y.show:
            box.yaxis.set_major_formatter(FuncFormatter(partial(_shown, y.show)))
        if x.name and (not narrow or index == len(boxes) - 1):
            box.set_xlabel(x.name)
        if narrow or box.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            box.set_ylabel(y.name)


def _columns(lengths: Sequence[int], width: float) -> int:
    """How many entries of a legend stand side by side: all where they fit, else as many as the longest allows."""
    needed = [0.6 + length * 0.072 for length in lengths]
    if sum(needed) <= width:
        return max(1, len(lengths))
    return max(1, min(len(lengths), int(width / max(needed))))


def _shown(show: Callable[[float], str], value: float, _: object) -> str:
    return show(value)
