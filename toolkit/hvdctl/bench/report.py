"""The page of a bench: one HTML file with everything in it, made from the results file alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from hvdctl.bench import figures, findings, results, tables, wording
from hvdctl.bench.figures import Figure, Pictures
from hvdctl.bench.results import Record
from hvdctl.bench.tables import Table
from hvdctl.cluster import write

PAGE = "report.html"
_TEMPLATE = "report.html.j2"
_FIT_WORDS = {
    "eta": "share of the link's rate that an allreduce reaches",
    "alpha": "latency of a step of the ring (s)",
    "start_s": "time to start an allreduce (s)",
    "eps": "slow-down of computing by communication",
    "phi": "share of the backward pass that communication can hide behind",
    "cpu_bits": "what CPUs carry (bit/s)",
    "local_bits": "rate between ranks of one node (bit/s)",
    "spread": "relative residual of the fitted points",
    "max_ranks": "most ranks that were measured",
    "launcher": "launcher",
    "source": "from",
}


def build(path: Path) -> Path:
    """Write report.html and figures/ beside a results file, named by itself or by its folder; the page's path."""
    source = results.source(path)
    records = results.read(source)
    drawn = figures.build(records)
    pictures = figures.save(drawn, source.parent / "figures")
    page = source.parent.absolute() / PAGE
    write(page, render(records, drawn, pictures), mode=0o644)
    return page


def render(records: Sequence[Record], drawn: Sequence[Figure], pictures: Mapping[str, Pictures]) -> str:
    """The page as text."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = resources.files("hvdctl.bench").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(text).render(_content(records, drawn, pictures))


def _content(records: Sequence[Record], drawn: Sequence[Figure], pictures: Mapping[str, Pictures]) -> dict[str, Any]:
    bench = results.bench(records)
    points = results.points(records)
    cluster = bench.get("cluster") or {}
    models = list(dict.fromkeys(wording.model(point["model"]) for point in points))
    sections = [_section(figure, pictures[figure.name], points) for figure in drawn]
    return {
        "title": f"How {wording.join(models) or 'training'} scale{'s' if len(models) < 2 else ''}",
        "cluster": cluster.get("name") or "",
        "nodes": len(cluster.get("nodes") or []),
        "date": datetime.fromtimestamp(bench["created"], UTC).strftime("%-d %B %Y, %H:%M UTC"),
        "id": bench["id"],
        "headlines": findings.headlines(records),
        "details": findings.details(records),
        "emulation": _emulation(points),
        "about": cluster.get("about") or "",
        "models": [
            (wording.model(name), [one for one in sections if one["figure"].model == name])
            for name in dict.fromkeys(figure.model for figure in drawn)
            if name
        ],
        "probes": [one for one in sections if one["figure"].kind in {"allreduce", "links"}],
        "timelines": [one for one in sections if one["figure"].kind == "timeline"],
        "allreduce": [tables.nccl(one) for one in results.of_kind(records, "allreduce") if one["rows"]],
        "failures": tables.failures(points),
        "predictions": tables.predictions(records, points),
        "fit": _fit(records),
        "points": tables.every_point(points) if points else None,
        "environment": _environment(bench, records, points),
        "spec": _plain(cluster.get("spec")),
        "plan": _plain(bench.get("plan")),
        "command": bench.get("command") or "",
    }


def _section(figure: Figure, pictures: Pictures, points: Sequence[Record]) -> dict[str, Any]:
    from markupsafe import Markup

    return {
        "figure": figure,
        "heading": _heading(figure),
        "emulation": wording.emulation(figure.points),
        "wide": Markup(_named(pictures.wide, figure)),  # noqa: S704  # matplotlib escapes its texts
        "narrow": Markup(_named(pictures.narrow, figure)),  # noqa: S704
        "tables": tables.of_figure(figure, points),
    }


def _heading(figure: Figure) -> str:
    """The title without the model's name, under which the figure stands."""
    title = figure.title.removeprefix(f"{wording.model(figure.model or '')}: ")
    return title[0].upper() + title[1:]


def _named(svg: str, figure: Figure) -> str:
    from markupsafe import escape

    said = ", ".join(part for part in (figure.title, wording.emulation(figure.points)) if part)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(said)}" ', 1)


def _emulation(points: Sequence[Record]) -> dict[str, Any] | None:
    emulated = [point for point in points if point["emulated"]]
    if not emulated:
        return None
    low, high = wording.factors(emulated)
    devices = [wording.device(point["device"]).removeprefix("emulated ") for point in emulated]
    return {
        "devices": wording.join(list(dict.fromkeys(devices))),
        "count": len(emulated),
        "total": len(points),
        "dilation": wording.dilation((low, high)),
        "dilated": high > 1,
        "high": wording.factor(high).removesuffix("×"),
    }


def _environment(bench: Record, records: Sequence[Record], points: Sequence[Record]) -> Table:
    machine, image = bench.get("machine") or {}, bench.get("image") or {}
    memory = machine.get("memory_bytes")
    overhead = max((point.get("overhead") or 0.0 for point in points), default=0.0)
    seconds = records[-1].get("seconds") if records[-1]["kind"] == "end" else None
    cluster = bench.get("cluster") or {}
    shared = "containers of one machine, which share its cores" if cluster.get("one_machine") else None
    rows = [
        ("nodes", "; ".join(filter(None, (cluster.get("about"), shared)))),
        ("CPU of a node's machine", machine.get("cpu")),
        ("cores", machine.get("cores")),
        ("memory", wording.size(memory) if isinstance(memory, int | float) else None),
        ("kernel", machine.get("kernel")),
        ("container engine", machine.get("engine")),
        ("image", image.get("reference")),
        ("image id", image.get("id")),
        *((f"{name} version", version) for name, version in (bench.get("versions") or {}).items()),
        ("digest of the plan", bench.get("digest")),
        ("state", results.state(records)),
        ("time taken", f"{seconds / 60:.0f} min" if isinstance(seconds, int | float) else None),
        ("bench's own share of the time, at most", f"{overhead * 100:.1f} %" if overhead else None),
    ]
    return Table(
        "What it ran on", ["what", "value"], [[a, str(b)] for a, b in rows if b not in (None, "")], left=2, free=True
    )


def _fit(records: Sequence[Record]) -> Table | None:
    found = results.of_kind(records, "fit")
    if not found:
        return None
    known = {key: value for key, value in found[-1].items() if key != "kind" and isinstance(value, int | float | str)}
    errors = found[-1].get("errors")
    errors = errors if isinstance(errors, dict) else {}
    rows = [
        [
            f"{key}: {_FIT_WORDS[key]}" if key in _FIT_WORDS else key,
            (str(value) if isinstance(value, bool | str) else f"{value:.4g}")
            + (f" ± {errors[key]:.2g}" if isinstance(errors.get(key), int | float) else ""),
        ]
        for key, value in known.items()
    ]
    return Table("Parameters of the cost model, ± their standard errors", ["parameter", "value"], rows, free=True)


def _plain(value: Any) -> str:
    """Settings as text. Of a job's environment only the names: its values may be secrets, and pages are sent around."""
    if not value:
        return ""
    if isinstance(value, dict) and isinstance(value.get("env"), dict):
        value = value | {"env": sorted(value["env"])}
    return json.dumps(value, indent=2, ensure_ascii=False)
