"""Curves in the cell, drawn anew while the ranks report."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Any

from hvd_cluster.errors import WrongType

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EVERY_S = 1.0
# Drawing takes at most this share of a core that the head's own rank needs too.
_SHARE = 0.2
_MOST_NAMED = 8
_COLOURS = ("#2a6fdb", "#d9622b", "#2f9e60", "#8a56c2", "#c23b6b", "#5f7a86", "#b08a1e", "#3aa6b9")


class LivePlot:
    """Curves of what ranks `report`, one panel for each name, redrawn about once a second in the cell.

        hc.run(train, live=hc.LivePlot("loss", "images_per_s", x="step"))

    Each rank that reports has a curve of its own. `x` is the name of what goes along the axis; without reports of that
    name it is the seconds since the rank began to report. Afterwards `records` holds all that was reported and
    `figure()` the drawing.
    """

    def __init__(self, *names: str, x: str = "step", title: str = "") -> None:
        if not names or not all(isinstance(name, str) for name in names):
            raise WrongType('LivePlot takes the names of what is reported: LivePlot("loss", "images_per_s")')
        self.names = names
        self.x = x
        self.title = title
        self.records: list[dict[str, Any]] = []
        self._handle: Any = None
        self._next = 0.0
        self._stale = False

    def __call__(self, record: dict[str, Any]) -> None:
        """Take a record, and draw where the last drawing is old enough."""
        self.records.append(record)
        self._stale = True
        if time.monotonic() >= self._next:
            self._draw()

    def close(self) -> None:
        """Draw what came last, and tell of names that nobody reported."""
        if self._stale:
            self._draw()
        known = {name for record in self.records for name in record} - {"rank", "seconds"}
        for name in self.names:
            if name not in known:
                there = f"reported: {', '.join(sorted(known))}" if known else "nothing was reported"
                sys.stderr.write(f"no rank reported {name!r}; {there}\n")

    def figure(self) -> Figure:
        """The drawing as it stands now."""
        from matplotlib.figure import Figure

        figure = Figure(
            figsize=(5.2 * min(2, len(self.names)), 3.2 * ((len(self.names) + 1) // 2)), layout="constrained"
        )
        panels = figure.subplots((len(self.names) + 1) // 2, min(2, len(self.names)), squeeze=False).flatten()
        for panel, name in zip(panels, self.names, strict=False):
            self._panel(panel, name)
        for panel in panels[len(self.names) :]:
            panel.set_axis_off()
        if self.title:
            figure.suptitle(self.title, fontsize=11)
        return figure

    def _panel(self, panel: Any, name: str) -> None:
        curves: dict[int, list[tuple[float, float]]] = {}
        for record in self.records:
            if name in record:
                x = record.get(self.x, record["seconds"])
                curves.setdefault(record["rank"], []).append((x, record[name]))
        for rank, points in sorted(curves.items()):
            colour = _COLOURS[rank % len(_COLOURS)]
            # A single point makes no line.
            marker = "o" if len(points) == 1 else ""
            panel.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, marker=marker, label=f"rank {rank}")
        panel.set_title(name, loc="left", fontsize=10)
        along = self.x if any(self.x in record for record in self.records) else "seconds"
        panel.set_xlabel(along, fontsize=9)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        if 1 < len(curves) <= _MOST_NAMED:
            panel.legend(fontsize=8, frameon=False)

    def _draw(self) -> None:
        self._stale = False
        began = time.monotonic()
        shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
        if not shell:
            return
        from IPython.display import Image, display  # type: ignore[import-not-found, unused-ignore]

        picture = io.BytesIO()
        self.figure().savefig(picture, format="png", dpi=100)
        image = Image(data=picture.getvalue(), format="png")  # type: ignore[no-untyped-call, unused-ignore]
        if self._handle is None:
            self._handle = display(image, display_id=True)  # type: ignore[no-untyped-call, unused-ignore]
        else:
            self._handle.update(image)
        took = time.monotonic() - began
        self._next = time.monotonic() + max(_EVERY_S, took / _SHARE)
