"""Benches that are kept on the share: a table of them, and their figures."""

from __future__ import annotations

import html
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_cluster.errors import WrongValue
from hvd_cluster.facts import html_table, share, text_table
from hvd_cluster.sweeps import hvdctl_is_here

if TYPE_CHECKING:
    from hvdctl.bench.figures import Figure


def results() -> Results:
    """The benches in /shared/bench, the newest last.

    >>> hc.results()
    bench            date              state     points
    20260214-101500  2026-02-14 10:15  complete  2
    >>> hc.results()[-1].plot()
    """
    hvdctl_is_here()
    from hvdctl.bench.results import FILE

    return Results(Bench(file.parent) for file in sorted((share() / "bench").glob(f"*/{FILE}")))


def plot(bench: str | Path | Bench | None = None, kind: str = "throughput") -> Picture:
    """A figure of a bench, the newest by default: `throughput`, `efficiency`, `split` or another that it has.

    Points are measured, with error bars; the band is what the cost model predicts, and said to be that in the figure's
    legend and caption.

        hc.plot()
        hc.plot("20260214-101500", kind="efficiency")
    """
    hvdctl_is_here()
    from hvdctl.bench import figures

    found = _find(bench)
    drawn = {figure.kind: figure for figure in reversed(figures.build(found.records()))}
    if kind not in drawn:
        there = ", ".join(sorted(drawn)) or "none: no point was measured"
        raise WrongValue(f"bench {found.id} has no figure of kind {kind!r}; it has: {there}")
    return Picture(drawn[kind])


class Bench:
    """A bench that was measured: `folder` holds it, `records()` are its results, `plot()` draws it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name

    def records(self) -> list[dict[str, Any]]:
        """Everything that was measured and predicted, as `hvdctl report` reads it."""
        from hvdctl.bench.results import read

        return read(self.folder)

    def points(self) -> list[dict[str, Any]]:
        """A dictionary for each point: layout, images per second, its prediction and efficiency."""
        from hvdctl.bench import results
        from hvdctl.bench.figures import curves

        records = self.records()
        points, predictions = results.points(records), curves.latest_predictions(records)
        told = []
        for point in points:
            predicted = curves.prediction_of(point, predictions) or {}
            told.append(
                {key: point[key] for key in ("model", "batch", "nodes", "slots", "ranks", "net", "status")}
                | {key: point.get(key) for key in ("images_per_s", "images_per_s_ci", "reason")}
                | {"efficiency": results.efficiency(point, points)}
                | {f"predicted_{key}": predicted.get(name) for key, name in _PREDICTED.items()}
                | {"fitted_to": bool(predicted.get("used_for_fit"))}
            )
        return told

    def findings(self) -> list[str]:
        """What it says, in sentences computed from the results."""
        from hvdctl.bench import findings

        records = self.records()
        return [*findings.headlines(records), *findings.details(records)]

    def plot(self, kind: str = "throughput") -> Picture:
        """A figure of it; see `hvd_cluster.plot`."""
        return plot(self, kind)

    def _rows(self) -> list[list[str]]:
        rows = [["nodes", "ranks", "batch", "measured images/s", "predicted images/s", "share of ideal"]]
        for one in self.points():
            measured, predicted = f"failed: {one['reason']}", ""
            if one["status"] == "ok":
                measured = f"{one['images_per_s']:.4g} ± {one['images_per_s_ci'] or 0:.2g}"
            if one["ranks"] > 1 and one["predicted_images_per_s"]:
                low, high = one["predicted_low"], one["predicted_high"]
                predicted = f"{one['predicted_images_per_s']:.4g} ({low:.4g} to {high:.4g})"
                predicted += ", fitted to it" if one["fitted_to"] else ""
            share_of_ideal = f"{one['efficiency']:.0%}" if one["efficiency"] is not None else ""
            rows.append([str(one["nodes"]), str(one["ranks"]), str(one["batch"]), measured, predicted, share_of_ideal])
        return rows

    def __repr__(self) -> str:
        return f"bench {self.id}\n{text_table(self._rows())}"

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{html.escape(text)}</p>" for text in self.findings())
        return f"<p><b>bench {html.escape(self.id)}</b></p>{html_table(self._rows())}{said}"


_PREDICTED = {"images_per_s": "images_per_s", "low": "low", "high": "high", "efficiency": "efficiency"}


class Results(list[Bench]):
    """Benches, shown as a table."""

    def _rows(self) -> list[list[str]]:
        from hvdctl.bench.results import FILE, row

        rows = [["bench", "date", "state", "points"]]
        for bench in self:
            told = row(bench.folder / FILE)
            date = time.strftime("%Y-%m-%d %H:%M", time.gmtime(told["created"])) if told["created"] else ""
            failed = f", {told['failed']} failed" if told["failed"] else ""
            rows.append([bench.id, date, told["state"], f"{told['ok']}{failed}"])
        return rows

    def __repr__(self) -> str:
        return text_table(self._rows()) if self else "no bench yet: bench() measures one"

    def _repr_html_(self) -> str:
        return html_table(self._rows()) if self else f"<p>{self!r}</p>"


class Picture:
    """A figure as a notebook shows it; `save("x.png")` or `save("x.svg")` keeps it, `figure()` is matplotlib's own."""

    def __init__(self, drawn: Figure) -> None:
        self._drawn = drawn
        self._pictures = drawn.pictures()
        self.title = drawn.title
        self.caption = drawn.caption

    def figure(self) -> Any:
        """The drawing as a matplotlib Figure, to change it."""
        return self._drawn.draw(False)

    def save(self, path: str | Path) -> Path:
        """Write it as the file's name says: .png or .svg."""
        file = Path(path)
        if file.suffix == ".png":
            file.write_bytes(self._pictures.png)
        elif file.suffix == ".svg":
            file.write_text(self._pictures.wide, encoding="utf-8")
        else:
            raise WrongValue(f"{file}: a figure is saved as .png or .svg")
        return file

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = {"image/png": self._pictures.png, "text/plain": repr(self)}
        return bundle, {"image/png": {"width": 720}}

    def __repr__(self) -> str:
        return f"{self.title}. {self.caption}"


def _find(bench: str | Path | Bench | None) -> Bench:
    from hvdctl.bench.results import FILE

    if isinstance(bench, Bench):
        return bench
    if bench is None:
        known = results()
        if not known:
            raise WrongValue(f"there is no bench in {share() / 'bench'} yet; bench() measures one")
        return known[-1]
    folder = Path(bench) if "/" in str(bench) else share() / "bench" / str(bench)
    if not (folder / FILE).is_file():
        there = ", ".join(one.id for one in results()[-5:]) or "none yet"
        raise WrongValue(f"there is no bench {str(bench)!r}; there are: {there}")
    return Bench(folder)
