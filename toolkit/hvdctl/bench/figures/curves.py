"""Figures of one model against the number of ranks: throughput, efficiency, the parts of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hvdctl.bench import results, wording
from hvdctl.bench.figures import figure
from hvdctl.bench.figures.charts import Bar, Bars, Panel, Series
from hvdctl.bench.figures.figure import Figure
from hvdctl.bench.figures.sheet import Axis, Head
from hvdctl.bench.results import Record
from hvdctl.bench.wording import model as model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# What tells one curve of a model from another, apart from batch, net and number of ranks.
GROUP = ("device", "slots", "launcher", "threads", "scaling", "data", "fusion_mb", "cycle_ms")
_PARTS = ("compute", "exposed", "waiting")
_PREDICTED = ("model", "batch", "nodes", "slots", "net", "device", "scaling", "launcher")

Predictions = dict[tuple[Any, ...], Record]


def build(model: str, points: list[Record], predictions: Predictions) -> list[Figure]:
    groups = sorted(results.series(points, GROUP).items(), key=lambda item: -len(item[1]))
    # Two or three points beside the sweep make no curve of their own: they are in the comparisons.
    curves = [(key, group) for i, (key, group) in enumerate(groups) if i == 0 or len(sizes(group)) >= 3]
    varying = [axis for i, axis in enumerate(GROUP) if len({key[i] for key, _ in curves}) > 1]
    found: list[Figure] = []
    for _, group in curves:
        words = [wording.axis(axis, group[0].get(axis)) for axis in varying]
        found += _curves(model, _with_single(group, points), points, predictions, words)
    return found


def _curves(
    model: str,
    group: list[Record],
    points: list[Record],
    predictions: Predictions,
    words: list[str],
) -> list[Figure]:
    if not results.measured(group):
        return []
    suffix = "".join(f", {word}" for word in words)
    name = "-".join([model, *words])
    x = ranks_axis(group)
    found = []

    def add(kind: str, title: str, caption: str, drawing: Callable[[Head, bool], Drawing]) -> None:
        found.append(
            figure.make(f"{kind}-{name}", kind, f"{model_name(model)}: {title}{suffix}", caption, drawing, model, group)
        )

    rates = [
        Panel(wording.link(net), [_rates(lines, points, predictions) for lines in by_batch(at_net)])
        for (net,), at_net in results.series(group, ["net"]).items()
    ]
    whole = Axis("images/s", log=x.log, show=wording.number)
    add(
        "throughput",
        "throughput",
        _about(rates, "Images per second of all ranks together."),
        partial(figure.lines, rates, x, whole),
    )
    shares = [
        Panel(wording.link(net), [_shares(lines, points, predictions) for lines in by_batch(at_net)])
        for (net,), at_net in results.series(group, ["net"]).items()
    ]
    if any(series.y for panel in shares for series in panel.series):
        told = _about(shares, "Images per second as a share of the single rank's, times ranks.")
        add(
            "efficiency",
            "scaling efficiency",
            told,
            partial(figure.lines, shares, x, Axis("share of ideal", show=share)),
        )
    split = [
        panel for panel in (_split(net, at_net) for (net,), at_net in results.series(group, ["net"]).items()) if panel
    ]
    if split:
        told = (
            "Mean time of a step: computing, communication that computing does not hide, and waiting for other ranks. "
        )
        told += f"Under each bar its {'global batch' if group[0]['scaling'] == 'strong' else 'batch a rank'}."
        add(
            "split",
            "where the time of a step goes",
            told,
            partial(figure.bars, split, Axis("ms a step", show=wording.number)),
        )
    return found


def _rates(lines: list[Record], points: list[Record], predictions: Predictions) -> Series:
    ok = results.measured(lines)
    singles = [results.baseline(point, points) for point in ok]
    ideal = next((single["images_per_s"] for single in singles if single), None)
    counts = sizes(lines)
    known = _predicted(lines, predictions)
    return Series(
        label=wording.batch(lines[0]),
        x=[point["ranks"] for point in ok],
        y=[point["images_per_s"] for point in ok],
        error=[point.get("images_per_s_ci") or 0.0 for point in ok],
        ideal=(counts, [count * ideal for count in counts]) if ideal and len(counts) > 1 else None,
        band=_band(known, "low", "high"),
        failed=[point["ranks"] for point in lines if point["status"] != "ok"],
    )


def _shares(lines: list[Record], points: list[Record], predictions: Predictions) -> Series:
    shares = [(point, results.efficiency(point, points)) for point in lines]
    known = [(point, share) for point, share in shares if share is not None]
    counts = sizes(lines)
    predicted = [one for one in _predicted(lines, predictions) if one.get("efficiency_low") is not None]
    return Series(
        label=wording.batch(lines[0]),
        x=[point["ranks"] for point, _ in known],
        y=[share for _, share in known],
        error=[efficiency_ci(point, points) or 0.0 for point, _ in known],
        ideal=(counts, [1.0 for _ in counts]) if len(counts) > 1 else None,
        band=_band(predicted, "efficiency_low", "efficiency_high"),
        failed=[point["ranks"] for point in lines if point["status"] != "ok"],
    )


def efficiency_ci(point: Record, points: Sequence[Record]) -> float | None:
    """Half the interval of an efficiency, from those of both rates; None where there is no baseline."""
    share, single = results.efficiency(point, points), results.baseline(point, points)
    if share is None or single is None:
        return None
    if single["key"] == point["key"]:
        return 0.0
    parts = [(one.get("images_per_s_ci") or 0.0) / one["images_per_s"] for one in (point, single)]
    return share * math.hypot(*parts)


def _split(net: float | None, points: list[Record]) -> Bars | None:
    timed = [point for point in results.measured(points) if point.get("split_s")]
    groups = []
    for (count,), at_size in results.series(timed, ["ranks"]).items():
        swept = sorted(at_size, key=_batch_of)
        cells = [
            Bar("", {part: point["split_s"].get(part, 0.0) * 1000 for part in _PARTS}, under=str(_batch_of(point)))
            for point in swept
        ]
        groups.append((_size_name(at_size[0], count), cells))
    return Bars(wording.link(net), groups) if groups else None


def latest_predictions(records: Iterable[Record]) -> Predictions:
    """The predictions, by the point that they are of, else by their axes; the last of each."""
    return {_of_what(record): record for record in results.of_kind(records, "prediction")}


def prediction_of(point: Record, predictions: Predictions) -> Record | None:
    """What was predicted for this very point, else for its launcher, else for any."""
    axes = _axes(point)
    return predictions.get((point["key"],)) or predictions.get(axes) or predictions.get((*axes[:-1], None))


def _of_what(record: Record) -> tuple[Any, ...]:
    return (record["key"],) if record.get("key") else _axes(record)


def _axes(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(axis) for axis in _PREDICTED)


def _about(panels: list[Panel], first: str) -> str:
    every = [series for panel in panels for series in panel.series]
    told = [first, "Error bars: 95 % confidence."]
    told += ["Dotted: ideal."] if any(series.ideal for series in every) else []
    told += ["Bands: predicted by the cost model."] if any(series.band for series in every) else []
    told += ["Crosses: failed."] if any(series.failed for series in every) else []
    return " ".join(told)


def _with_single(group: list[Record], points: list[Record]) -> list[Record]:
    """A curve of several ranks a node starts at the single rank too."""
    if group[0]["slots"] == 1:
        return group
    axes = [axis for axis in GROUP if axis != "slots"]
    same = [one for one in points if one["ranks"] == 1 and all(one.get(axis) == group[0].get(axis) for axis in axes)]
    return [*same, *group]


def by_batch(points: list[Record]) -> list[list[Record]]:
    return list(results.series(points, ["global_batch" if points[0]["scaling"] == "strong" else "batch"]).values())


def _batch_of(point: Record) -> int:
    return int(point["global_batch" if point["scaling"] == "strong" else "batch"])


def _predicted(lines: list[Record], predictions: Predictions) -> list[Record]:
    """The predictions along a line of points, up to twice its length."""
    one = lines[-1]
    same = ("model", "slots", "net", "device", "scaling")
    most = 2 * max(point["ranks"] for point in lines)
    keys = {None, *(point["key"] for point in lines)}
    found = [
        known
        for known in predictions.values()
        if known.get("key") in keys
        and all(known.get(axis) == one.get(axis) for axis in same)
        and known.get("launcher") in {None, one["launcher"]}
        and _batch_matches(known, one)
        and known["ranks"] <= most
    ]
    by_size = {known["ranks"]: known for known in sorted(found, key=lambda known: bool(known.get("launcher")))}
    return [by_size[count] for count in sorted(by_size)]


def _batch_matches(prediction: Record, point: Record) -> bool:
    if point["scaling"] == "weak":
        return bool(prediction["batch"] == point["batch"])
    return bool(prediction["batch"] * prediction["ranks"] == point["global_batch"])


def _band(known: list[Record], low: str, high: str) -> tuple[list[float], list[float], list[float]] | None:
    if len(known) < 2:
        return None
    return [one["ranks"] for one in known], [one[low] for one in known], [one[high] for one in known]


def ranks_axis(points: list[Record]) -> Axis:
    counts = sizes(points)
    slots = {point["slots"] for point in points}
    name = "nodes (one rank each)" if slots == {1} else "ranks"
    return Axis(name, counts, log=bool(counts) and counts[-1] > 20)


def sizes(points: Iterable[Record]) -> list[int]:
    return sorted({point["ranks"] for point in points})


def _size_name(point: Record, count: int) -> str:
    return wording.nodes(count) if point["slots"] == 1 else wording.ranks(count)


def share(value: float) -> str:
    return f"{value * 100:.0f} %"
