"""What a bench found, in sentences computed from its records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hvdctl.bench import results, tables, wording
from hvdctl.bench.figures import curves
from hvdctl.bench.results import Record

# From this share of a step on, what is not computing is worth a word.
_NOTABLE = 0.1
_LIMITS = {
    "compute": "computing limits",
    "link": "the link limits",
    "latency": "latency limits",
    "cpu": "the nodes' CPUs limit",
}


def headlines(records: Sequence[Record]) -> list[str]:
    """One sentence for each model: how fast its largest layout is, at each link rate, and what limits it."""
    points = results.points(records)
    known = curves.latest_predictions(records)
    found = []
    for (model, device), group in results.series(results.measured(points), ["model", "device"]).items():
        most = max(one["ranks"] for one in group)
        usual = [one for one in group if one["ranks"] == most and one["scaling"] == "weak"] or [
            one for one in group if one["ranks"] == most
        ]
        # The batch that was measured at most rates; of several the largest.
        batches = results.series(usual, ["batch", "slots", "launcher", "threads", "data"])
        best = max(batches.values(), key=lambda same: (len(same), same[0]["batch"], same[0]["images_per_s"]))
        best.sort(key=lambda one: results.ordered(one["net"]), reverse=True)
        one = best[0]
        on = f" on {wording.device(device)}s" if one["emulated"] else ""
        batch = wording.batch(one) + (" a rank" if one["scaling"] == "weak" else "")
        parts = "; ".join(_speed(one, points, known) for one in best)
        found.append(f"{wording.model(model)}{on}, {batch}, {wording.where(one)}: {parts}.")
    return found


def details(records: Sequence[Record]) -> list[str]:
    """What else is worth knowing: the effect of the batch, predictions, the slowest pair, what is missing."""
    points = results.points(records)
    found = _batches(points)
    errors = tables.prediction_errors(records, points)
    if errors:
        found.append(
            f"The cost model's predictions are off by {_tenths(statistics.median(errors))} in the median and "
            f"{_tenths(max(errors))} at most, on {len(errors)} points that it was not fitted to."
        )
    for one in results.of_kind(records, "links"):
        if one["pairs"]:
            found.append(_pairs(one))
    lost = [one for one in points if one["status"] != "ok"]
    if lost:
        why = "the reason is" if len(lost) == 1 else "the reasons are"
        found.append(f"{len(lost)} of {len(points)} points failed; {why} below.")
    loose = [one for one in results.measured(points) if one.get("converged") is False]
    if loose:
        found.append(
            f"{len(loose)} of {len(points)} points did not reach the confidence that was asked for; "
            "their intervals are wider, and a star marks them in the table of all points."
        )
    state = results.state(records)
    if state != "complete":
        reason = records[-1].get("reason") if records[-1]["kind"] == "end" else None
        found.append(f"The bench is {state}{f': {reason}' if reason else ''}. What was measured until then is shown.")
    return found


def _speed(one: Record, points: Sequence[Record], known: curves.Predictions) -> str:
    share = results.efficiency(one, points)
    ideal = f"{wording.percent(share)} of ideal" if share is not None else "no baseline, as no single rank was measured"
    link = f"{wording.at_link(one['net'])} " if one["nodes"] > 1 else ""
    told = f"{link}{wording.number(one['images_per_s'])} images/s, {ideal}"
    limit = _limit(one, known)
    return f"{told} ({limit})" if limit else told


def _limit(one: Record, known: curves.Predictions) -> str:
    parts = one.get("split_s") or {}
    total = sum(parts.values())
    predicted = curves.prediction_of(one, known)
    hidden = parts.get("exposed", 0.0) / total if total else 0.0
    if total and hidden >= _NOTABLE:
        who = (predicted or {}).get("limit")
        cause = _LIMITS[who] if who in {"link", "latency", "cpu"} else "communication limits"
        return f"{cause}: {wording.percent(hidden)} of a step is communication that computing does not hide"
    if total and parts.get("waiting", 0.0) / total >= _NOTABLE:
        return f"ranks wait for each other in {wording.percent(parts['waiting'] / total)} of a step"
    return "computing limits" if total and one["ranks"] > 1 else ""


def _batches(points: Sequence[Record]) -> list[str]:
    """What a larger batch brings at the largest layout, where it is the most."""
    found = []
    weak = [one for one in results.measured(points) if one["scaling"] == "weak" and one["ranks"] > 1]
    axes = ["model", "device", "net", "slots", "nodes", "launcher", "threads", "data"]
    for (model, _), of_model in results.series(weak, ["model", "device"]).items():
        gains = []
        for group in results.series(of_model, axes).values():
            if group[0]["ranks"] != max(one["ranks"] for one in of_model):
                continue
            shares = [
                (one, results.efficiency(one, points)) for one in sorted(group, key=lambda one: int(one["batch"]))
            ]
            known = [(one, share) for one, share in shares if share is not None]
            if len(known) > 1:
                gains.append((known[-1][1] - known[0][1], known[0], known[-1]))
        if gains:
            gain, (small, low), (large, high) = max(gains, key=lambda gain: abs(gain[0]))
            if abs(gain) >= 0.02:
                found.append(
                    f"{wording.model(model)}: from {wording.batch(small)} to {wording.batch(large)} a rank, "
                    f"the share of ideal goes from {wording.percent(low)} to {wording.percent(high)} "
                    f"({wording.where(large)}, {wording.link(large['net'])})."
                )
    return found


def _pairs(record: Record) -> str:
    slowest = min(record["pairs"], key=lambda pair: pair["bits"])
    middle = statistics.median(pair["bits"] for pair in record["pairs"])
    told = f"Between two nodes one connection reaches {wording.link(middle)} in the median"
    told += f" of {wording.limited(record)}" if record["net"] else ""
    if slowest["bits"] < 0.9 * middle:
        told += f"; {slowest['source']} to {slowest['target']} is slow with {wording.link(slowest['bits'])}"
    some = wording.sample(record)
    return told + (f". A sample: {some} were measured." if some else ".")


def _tenths(share: float) -> str:
    return f"{share * 100:.1f}\u00a0%"
