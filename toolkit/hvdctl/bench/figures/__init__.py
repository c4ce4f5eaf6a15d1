"""The figures of a bench: all that its records allow, and their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hvdctl.bench import results
from hvdctl.bench.figures import comparisons, curves, probes
from hvdctl.bench.figures.figure import Figure, Pictures
from hvdctl.bench.results import Record

__all__ = ["Figure", "Pictures", "build", "save"]


def build(records: Sequence[Record]) -> list[Figure]:
    """Every figure that the records allow, those of each model first."""
    predictions = curves.latest_predictions(records)
    found: list[Figure] = []
    for (model,), points in results.series(_per_net(results.points(records)), ["model"]).items():
        found += curves.build(model, points, predictions)
        found += comparisons.build(model, points)
    return found + probes.build(records)


def save(figures: Iterable[Figure], folder: Path) -> dict[str, Pictures]:
    """Write NAME.png and NAME.svg of each figure; the pictures by name."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {figure.name: figure.pictures() for figure in figures}
    for name, pictures in drawn.items():
        (folder / f"{name}.svg").write_text(pictures.wide, encoding="utf-8")
        (folder / f"{name}.png").write_bytes(pictures.png)
    return drawn


def _per_net(points: Sequence[Record]) -> list[Record]:
    """The points, those of a single node at each link rate of their curve: no link tells the rates apart for them."""
    found = []
    axes = ("model", *(axis for axis in curves.GROUP if axis != "slots"))
    for curve in results.series(points, axes).values():
        nets = list(dict.fromkeys(point["net"] for point in curve if point["nodes"] > 1))
        alone = [point for point in curve if point["nodes"] == 1]
        found += [point for point in curve if point["nodes"] > 1 or not nets]
        for group in results.series(alone if nets else [], ["slots", "batch", "global_batch"]).values():
            own = {point["net"]: point for point in group}
            some = (results.measured(group) or group)[-1]
            found += [own.get(net) or some | {"net": net, "own_net": some["net"]} for net in nets]
    return found
