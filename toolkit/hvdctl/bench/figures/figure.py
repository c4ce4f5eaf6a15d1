"""One figure: what it shows in words, the data behind it, and how it becomes SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hvdctl.bench import wording
from hvdctl.bench.figures import charts, sheet
from hvdctl.bench.figures.charts import Bars, Panel
from hvdctl.bench.figures.sheet import Axis, Head
from hvdctl.bench.results import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Figure:
    """One figure: what it shows in words, the points or the record behind it, and how it is drawn."""

    name: str
    kind: str
    title: str
    caption: str
    draw: Callable[[bool], Drawing]
    model: str | None = None
    points: Sequence[Record] = ()
    record: Record | None = None
    emulated: bool = False
    factors: tuple[float, float] = (1.0, 1.0)

    def pictures(self) -> Pictures:
        """The drawing at both widths; text stays text, and no other figure has the same ids."""
        with sheet.style(self.name):
            wide, narrow = _laid_out(self.draw(False)), _laid_out(self.draw(True))
            png = io.BytesIO()
            wide.savefig(png, format="png", dpi=150, metadata={"Software": None})
            return Pictures(_svg(wide, f"{self.name}-wide"), _svg(narrow, f"{self.name}-narrow"), png.getvalue())


@dataclass(frozen=True)
class Pictures:
    """SVG of the wide and of the narrow variant, PNG of the wide one."""

    wide: str
    narrow: str
    png: bytes


def make(
    name: str,
    kind: str,
    title: str,
    caption: str,
    drawing: Callable[[Head, bool], Drawing],
    model: str | None = None,
    points: Sequence[Record] = (),
    record: Record | None = None,
) -> Figure:
    head = Head(title, wording.emulation(points))
    emulated = any(point["emulated"] for point in points)
    return Figure(
        _slug(name),
        kind,
        title,
        caption,
        partial(drawing, head),
        model,
        points,
        record,
        emulated,
        wording.factors(points),
    )


def lines(panels: list[Panel], x: Axis, y: Axis, head: Head, narrow: bool) -> Drawing:
    return charts.lines(head, panels, x, y, narrow)


def bars(panels: list[Bars], y: Axis, head: Head, narrow: bool) -> Drawing:
    return charts.bars(head, panels, y, narrow)


def bit_unit(bits: float) -> tuple[float, str]:
    return (1e9, "Gbit/s") if bits >= 2e9 else (1e6, "Mbit/s")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _laid_out(drawing: Drawing) -> Drawing:
    """The drawing with every part in its place, which saving would otherwise find anew each time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(drawing)
    engine = drawing.get_layout_engine()
    if engine is not None:
        engine.execute(drawing)
        drawing.set_layout_engine(None)
    return drawing


def _svg(drawing: Drawing, prefix: str) -> str:
    target = io.StringIO()
    drawing.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return _own_ids(target.getvalue(), prefix)


def _own_ids(svg: str, prefix: str) -> str:
    """The drawing alone, its ids under a prefix: many stand in one page."""
    body = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)

    def rename(tag: re.Match[str]) -> str:
        text = re.sub(r'(\sid=")', rf"\g<1>{prefix}-", tag[0])
        return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", text)

    return re.sub(r"<[^>]+>", rename, body)
