"""The shape of a record in results: what its readers rely on, checked when it is read. More keys may be there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

Shape = dict[str, Callable[[Any], bool]]

_MOST = 2**63  # JSON has numbers that no float can hold
_YEAR_9999 = 253370764800.0


def wrong(record: dict[str, Any]) -> str | None:
    """What can't be read in a record of a known kind, such as `batch of the point can't be "x"`."""
    kind = record["kind"]
    shape = _SHAPES.get(kind, {}) | (_MEASURED if kind == "point" and record.get("status") == "ok" else {})
    for key, right in shape.items():
        name = key.removesuffix("?")
        if key.endswith("?") and record.get(name) is None:
            continue
        if name not in record:
            return f"the {kind} has no {name!r}"
        if not right(record[name]):
            return f"{name} of the {kind} can't be {json.dumps(record[name])[:60]}"
    return None


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < _MOST
    return isinstance(value, float) and math.isfinite(value)


def _moment(value: Any) -> bool:
    """Seconds since 1970 that every calendar has a date for."""
    return _number(value) and 0 <= value < _YEAR_9999


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < _MOST


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _times(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _not_negative(value.get(name, 0)) for name in ("compute", "exposed", "waiting")
    )


def _one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: value in choices


def _rows(**shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def right(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(row, dict) and all(check(row.get(key)) for key, check in shape.items()) for row in value
        )

    return right


def _spans(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(span, list) and len(span) == 3 and _text(span[0]) and _number(span[1]) and _number(span[2])
        for span in value
    )


# Keys that end with ? may be missing or null.
_LAYOUT: Shape = {"nodes": _count, "slots": _count, "ranks": _count, "net?": _positive}
_AXES: Shape = {"model": _text, "batch": _count, **_LAYOUT, "device": _text, "scaling": _one_of("weak", "strong")}
_MEASURED: Shape = {
    "images_per_s": _positive,
    "images_per_s_ci?": _not_negative,
    "step_s?": _positive,
    "split_s?": _times,
}
_SHAPES: dict[str, Shape] = {
    "bench": {"id": _text, "created": _moment, "cluster?": _mapping, "image?": _mapping, "machine?": _mapping}
    | {"versions?": _mapping, "command?": _text},
    "point": {"key": _text, **_AXES, "launcher": _text, "status": _one_of("ok", "failed"), "emulated": _flag}
    | {"global_batch": _count, "dilation?": _positive, "threads?": _count, "data?": _text}
    | {"start_s?": _number, "link_bits?": _positive, "fusion_mb?": _number, "cycle_ms?": _number, "own_net?": _positive}
    | {"overhead?": _number, "steps?": _number, "converged?": _flag, "reason?": _text},
    "allreduce": {
        **_LAYOUT,
        "rows": _rows(bytes=_count, time_s=_positive, alg_bits=_not_negative, bus_bits=_not_negative),
    },
    "links": {
        "net?": _positive,
        "of?": _count,
        "together?": _flag,
        "pairs": _rows(source=_text, target=_text, bits=_not_negative),
    },
    "prediction": {**_AXES, "images_per_s": _positive, "low": _not_negative, "high": _not_negative}
    | {"efficiency?": _number, "efficiency_low?": _number, "efficiency_high?": _number, "limit?": _text},
    "timeline": {"ranks": _rows(rank=_number, spans=_spans)},
    "end": {"state": _text},
}
