"""The tables of the report: what the figures show, as numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hvdctl.bench import results, wording
from hvdctl.bench.figures import Figure, curves
from hvdctl.bench.results import Record

_LONG = 14
_PARTS = ("compute", "exposed", "waiting")


@dataclass(frozen=True)
class Table:
    """Texts in rows; the first `left` columns are words, the others numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    free: bool = False  # cells are prose, which may be folded

    @property
    def folded(self) -> bool:
        return len(self.rows) > _LONG and not self.free


def of_figure(figure: Figure, points: Sequence[Record]) -> list[Table]:
    """The numbers behind a figure. `points` are those of the whole bench, baselines among them."""
    made: dict[str, Callable[[Figure, Sequence[Record]], list[Table]]] = {
        "throughput": _throughput,
        "efficiency": _efficiency,
        "split": _split,
        "links": _links,
        "timeline": _timeline,
        "allreduce": lambda _, __: [],  # it stands there as nccl-tests print it
    }
    return made.get(figure.kind, _comparison)(figure, points)


def every_point(points: Sequence[Record]) -> Table:
    columns = [
        "model",
        "batch",
        "nodes x ranks",
        "link",
        "device",
        "launcher",
        "threads",
        "scaling",
        "data",
        "images/s",
    ]
    columns += ["efficiency", "step ms", "steps", "dilation", "link shaped to", "start s"]
    rows = [
        [
            wording.model(one["model"]),
            str(one["batch"]),
            wording.layout(one),
            wording.link(one["net"]),
            wording.device(one["device"]),
            one["launcher"],
            str(one.get("threads") or "not set"),
            one["scaling"],
            wording.data(one.get("data") or "synthetic"),
            rate(one) + ("" if one.get("converged", True) else " *"),
            share(one, points),
            wording.milliseconds(one["step_s"]) if one.get("step_s") else "",
            str(one.get("steps") or ""),
            dilation(one),
            wording.link(one["link_bits"]) if one.get("link_bits") else "",
            f"{one['start_s']:.1f}" if one.get("start_s") is not None else "",
        ]
        for one in _sorted(points)
    ]
    return Table(_caption("Every point", points), columns, rows, left=9)


def predictions(records: Sequence[Record], points: Sequence[Record]) -> Table | None:
    """Measured beside predicted, for every point of several ranks that has both."""
    rows = [
        [
            wording.model(one["model"]),
            wording.link(one["net"]),
            wording.layout(one),
            wording.batch(one),
            "yes" if predicted.get("used_for_fit") else "no",
            rate(one),
            wording.number(predicted["images_per_s"]),
            f"{wording.number(predicted['low'])} to {wording.number(predicted['high'])}",
            f"{(predicted['images_per_s'] / one['images_per_s'] - 1) * 100:+.1f} %",
            predicted.get("limit") or "",
        ]
        for one, predicted in _predicted(records, points)
    ]
    columns = ["model", "link", "layout", "batch", "fitted", "measured", "predicted"]
    columns += ["interval", "error", "limit"]
    return Table(_caption("Predicted and measured images/s", points), columns, rows, left=5) if rows else None


def prediction_errors(records: Sequence[Record], points: Sequence[Record]) -> list[float]:
    """How far off predictions are, as shares of what was measured, on points that the fit did not use."""
    return [
        abs(predicted["images_per_s"] / one["images_per_s"] - 1)
        for one, predicted in _predicted(records, points)
        if not predicted.get("used_for_fit")
    ]


def failures(points: Iterable[Record]) -> Table | None:
    rows = [[one["key"], str(one.get("reason") or "no reason was recorded")] for one in points if one["status"] != "ok"]
    return Table("Points that failed", ["point", "reason"], rows, left=2, free=True) if rows else None


def nccl(record: Record) -> list[str]:
    """An allreduce's rows as nccl-tests print them, with the share of the link."""
    lines = [
        f"# {wording.where(record)}, {record.get('launcher') or ''}, {wording.link(record['net'])}, sum, out of place",
        f"#{'size':>11} {'count':>11} {'type':>7} {'redop':>6} {'time':>12} {'algbw':>9} {'busbw':>9} {'of link':>8}",
        f"#{'(B)':>11} {'(elements)':>11} {'':>7} {'':>6} {'(us)':>12} {'(GB/s)':>9} {'(GB/s)':>9} {'(%)':>8}",
    ]
    for row in record["rows"]:
        of_link = f"{row['bus_bits'] / record['net'] * 100:.1f}" if record["net"] else "-"
        lines.append(
            f" {row['bytes']:>11} {row['bytes'] // 4:>11} {'float':>7} {'sum':>6} {row['time_s'] * 1e6:>12.1f}"
            f" {row['alg_bits'] / 8e9:>9.4f} {row['bus_bits'] / 8e9:>9.4f} {of_link:>8}"
        )
    if record["rows"]:
        mean = statistics.fmean(row["bus_bits"] for row in record["rows"]) / 8e9
        lines.append(f"# Avg bus bandwidth    : {mean:.4f} GB/s")
    return [line.replace("\u00a0", " ") for line in lines]


def rate(point: Record) -> str:
    if point["status"] != "ok":
        return "failed"
    return wording.with_ci(point["images_per_s"], point.get("images_per_s_ci"))


def share(point: Record, points: Sequence[Record]) -> str:
    """The efficiency of a point in words: a number only where its baseline was measured."""
    if point["status"] != "ok":
        return "failed"
    found = results.efficiency(point, points)
    if found is None:
        return "no baseline"
    half = curves.efficiency_ci(point, points)
    return wording.percent(found) if not half else f"{wording.with_ci(found * 100, half * 100)} %"


def dilation(point: Record) -> str:
    return wording.factor(point.get("dilation") or 1.0) if point["emulated"] else "none"


def _predicted(records: Sequence[Record], points: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Points and their predictions. Single ranks are left out: theirs are what was measured."""
    known = curves.latest_predictions(records)
    pairs = [(one, curves.prediction_of(one, known)) for one in _sorted(results.measured(points)) if one["ranks"] > 1]
    return [(one, predicted) for one, predicted in pairs if predicted]


def _throughput(figure: Figure, points: Sequence[Record]) -> list[Table]:
    return [_pivot(figure, "images/s", rate)]


def _efficiency(figure: Figure, points: Sequence[Record]) -> list[Table]:
    return [_pivot(figure, "share of ideal", lambda point: share(point, points))]


def _pivot(figure: Figure, what: str, cell: Callable[[Record], str]) -> Table:
    """A row for each link and size, a column for each batch."""
    drawn = figure.points
    by_batch = {wording.batch(one): one for one in sorted(drawn, key=lambda one: (one["batch"], one["global_batch"]))}
    rows = []
    for (net, nodes, slots), group in results.series(drawn, ["net", "nodes", "slots"]).items():
        cells = {wording.batch(one): cell(one) for one in group}
        row = [wording.link(net), f"{nodes}x{slots}", *(cells.get(batch, "") for batch in by_batch)]
        factors = wording.factors(group)
        shown = " to ".join(dict.fromkeys(wording.factor(one) for one in factors))
        rows.append([*row, *([shown] if figure.emulated else [])])
    columns = ["link", "nodes x ranks", *by_batch, *(["dilation"] if figure.emulated else [])]
    return Table(_caption(f"{figure.title} ({what})", drawn), columns, rows, left=2)


def _split(figure: Figure, points: Sequence[Record]) -> list[Table]:
    rows = []
    for one in results.measured(_sorted(figure.points)):
        parts = one.get("split_s")
        if not parts:
            continue
        times = [parts.get(part, 0.0) for part in _PARTS]
        whole = one.get("step_s") or sum(times)
        rows.append(
            [
                wording.link(one["net"]),
                wording.layout(one),
                wording.batch(one),
                wording.milliseconds(whole),
                *(wording.milliseconds(time) for time in times),
                wording.percent(times[0] / whole),
                *([dilation(one)] if figure.emulated else []),
            ]
        )
    columns = ["link", "nodes x ranks", "batch", "step ms", "compute ms", "not hidden ms", "waiting ms"]
    columns += ["computing", *(["dilation"] if figure.emulated else [])]
    return [Table(_caption(figure.title, figure.points), columns, rows, left=3)]


def _comparison(figure: Figure, points: Sequence[Record]) -> list[Table]:
    rows = [
        [
            wording.link(one["net"]),
            wording.layout(one),
            wording.batch(one),
            one["launcher"],
            one["scaling"],
            wording.data(one.get("data") or "synthetic"),
            str(one.get("threads") or "not set"),
            rate(one),
            share(one, points),
            dilation(one),
        ]
        for one in figure.points
    ]
    columns = ["link", "nodes x ranks", "batch", "launcher", "scaling", "data", "threads", "images/s", "share of ideal"]
    columns += ["dilation"]
    # What is the same in all rows and not asked for says nothing.
    always = {"nodes x ranks", "batch", "images/s", "share of ideal", "dilation"}
    kept = [i for i, name in enumerate(columns) if name in always or len({row[i] for row in rows}) > 1]
    slim = [[row[i] for i in kept] for row in rows]
    left = sum(1 for i in kept if i < 7)
    return [Table(_caption(figure.title, figure.points), [columns[i] for i in kept], slim, left=left)]


def _links(figure: Figure, points: Sequence[Record]) -> list[Table]:
    record = figure.record or {}
    pairs = record["pairs"]
    if some := wording.sample(record):
        slowest = sorted(pairs, key=lambda pair: float(pair["bits"]))
        rows = [[pair["source"], pair["target"], f"{pair['bits'] / 1e6:.0f}"] for pair in slowest]
        return [Table(f"Bandwidth of a sample, {some}, slowest first", ["from", "to", "Mbit/s"], rows, left=2)]
    values = {(pair["source"], pair["target"]): pair["bits"] for pair in pairs}
    sources, targets = (list(dict.fromkeys(pair[end] for pair in pairs)) for end in ("source", "target"))
    targets = [name for name in sources if name in targets] + [name for name in targets if name not in sources]
    rows = [
        [source, *(f"{values[source, target] / 1e6:.0f}" if (source, target) in values else "" for target in targets)]
        for source in sources
    ]
    return [Table("Bandwidth from row to column (Mbit/s)", ["from", *targets], rows)]


def _timeline(figure: Figure, points: Sequence[Record]) -> list[Table]:
    ranks = (figure.record or {})["ranks"]
    names = list(dict.fromkeys(name for rank in ranks for name, _, _ in rank["spans"]))
    rows = []
    for rank in ranks:
        times = {name: sum(end - start for kind, start, end in rank["spans"] if kind == name) for name in names}
        total = sum(times.values()) or 1.0
        shares = [wording.percent(times[name] / total) for name in names]
        rows.append([str(rank["rank"]), str(rank.get("node") or ""), *shares])
    return [Table(_caption("Share of each rank's time", figure.points), ["rank", "node", *names], rows, left=2)]


def _sorted(points: Iterable[Record]) -> list[Record]:
    return sorted(points, key=lambda one: (one["model"], results.ordered(one["net"]), one["ranks"], one["batch"]))


def _caption(text: str, points: Sequence[Record]) -> str:
    emulation = wording.emulation(points)
    return f"{text}; {emulation}" if emulation else text
