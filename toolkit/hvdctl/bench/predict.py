"""What the cost model says of a cluster, with an interval; and how far it was off where it could be checked."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hvdctl.bench import catalogue, devices
from hvdctl.bench import fit as fitting
from hvdctl.bench.costmodel import Layout, Parameters, Step, simulate
from hvdctl.errors import UsageError

# No prediction is called better than this, and this much wider for each doubling of ranks beyond the measured ones.
AT_LEAST = 0.05
DOUBLING = 0.25
_SIGMAS = 1.96
_MAX_RANKS = 2**17
# The largest half width that is shown: beyond it the model says nothing.
_WIDEST = 2.0
_BOUNDS = {"eps": fitting.EPS_BOUNDS, "phi": fitting.PHI_BOUNDS}


@dataclass(frozen=True)
class Request:
    """The cluster and the job that are asked about; `batch` is each rank's."""

    model: str
    batch: int
    nodes: int
    slots: int = 1
    net: int | None = None
    gpu: str = "p100"
    scaling: str = "weak"
    launcher: str | None = None


@dataclass(frozen=True)
class Prediction:
    """Images per second and efficiency with their intervals; the fields of a prediction record."""

    model: str
    batch: int
    nodes: int
    slots: int
    ranks: int
    net: int | None
    device: str
    scaling: str
    dilation: float
    images_per_s: float
    low: float
    high: float
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    limit: str
    step_s: float
    compute_s: float
    exposed_s: float
    used_for_fit: bool = False

    def data(self) -> dict[str, Any]:
        return {"kind": "prediction", **asdict(self)}


@dataclass(frozen=True)
class Checked:
    """One point that the parameters were not fitted to: relative error of the predicted images per second."""

    key: str
    measured: float
    predicted: float
    error: float


@dataclass(frozen=True)
class Validation:
    """Errors on the points that were not used, in the order of the results."""

    fitted_to: tuple[str, ...]
    errors: tuple[Checked, ...]
    median: float | None
    maximum: float | None

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"fitted_to": list(self.fitted_to)}


def predict(request: Request, parameters: Parameters) -> Prediction:
    """What to expect of emulated or real GPUs, each node on a machine of its own."""
    _check(request)
    parameters = parameters.elsewhere()
    schedule = catalogue.get(request.model).schedule()
    layout = Layout(request.nodes, request.slots, request.net)
    t1 = devices.step_seconds(request.gpu, request.model, request.batch).seconds
    whole = request.batch * (layout.ranks if request.scaling == "strong" else 1)
    baseline = whole / devices.step_seconds(request.gpu, request.model, whole).seconds

    def run(tried: Parameters) -> Step:
        return simulate(schedule, t1, layout, tried, launcher=request.launcher or parameters.launcher)

    axes = {"model": request.model, "batch": request.batch, "nodes": request.nodes, "slots": request.slots}
    axes |= {"net": request.net, "device": f"emulated:{request.gpu}", "scaling": request.scaling, "dilation": 1.0}
    return _prediction(axes, run, parameters, layout.ranks, baseline)


def series(records: Sequence[fitting.Record], parameters: Parameters) -> list[dict[str, Any]]:
    """A prediction record for every point that was measured, with its `key` and whether it was fitted to.

    Points of another launcher than the parameters' get parameters of their own, fitted to a few of them.
    """
    own: dict[object, Parameters] = {parameters.launcher: parameters}
    told = []
    for case in fitting.cases(records):
        launcher = case.record.get("launcher")
        if parameters.launcher is None:
            own[launcher] = parameters
        elif launcher not in own:
            own[launcher] = fitting.fit(records, launcher=launcher, points=fitting.few(records, launcher))
        found = _of_case(case, own[launcher])
        told.append({**found.data(), "key": case.key, "launcher": launcher})
    return told


def validation(records: Sequence[fitting.Record]) -> Validation:
    """How far the model is off when it sees the allreduces, single ranks and at most three points of each launcher."""
    fits: dict[object, Parameters] = {}
    checked = []
    for case in fitting.cases(records):
        launcher = case.record.get("launcher")
        if launcher not in fits:
            fits[launcher] = fitting.fit(records, launcher=launcher, points=fitting.few(records, launcher))
        if case.layout.ranks == 1 or case.key in fits[launcher].points:
            continue
        measured = float(case.record["images_per_s"])
        told = case.layout.ranks * int(case.record["batch"]) / case.seconds(fits[launcher])
        checked.append(Checked(case.key, measured, told, told / measured - 1))
    sizes = [abs(one.error) for one in checked]
    return Validation(
        tuple(key for found in fits.values() for key in found.points),
        tuple(checked),
        statistics.median(sizes) if sizes else None,
        max(sizes, default=None),
    )


def _check(request: Request) -> None:
    for name in ("nodes", "slots", "batch"):
        if getattr(request, name) < 1:
            raise UsageError(f"--{name} {getattr(request, name)}: must be at least 1")
    if request.nodes * request.slots > _MAX_RANKS:
        raise UsageError(
            f"{request.nodes} nodes of {request.slots} ranks are more than the {_MAX_RANKS} that are foreseen"
        )
    if request.scaling not in ("weak", "strong"):
        raise UsageError(f"scaling {request.scaling!r}: write weak or strong")


def _of_case(case: fitting.Case, parameters: Parameters) -> Prediction:
    point = case.record

    def run(tried: Parameters) -> Step:
        own = case.parameters(tried)
        return simulate(case.schedule, case.t1, case.layout, own, launcher=point.get("launcher"), crowd=case.crowd)

    axes = {name: point.get(name) for name in ("model", "batch", "nodes", "slots", "net", "device", "scaling")}
    axes["dilation"] = point.get("dilation") or 1.0
    found = _prediction(axes, run, parameters, case.layout.ranks, case.baseline)
    return replace(found, used_for_fit=case.key in parameters.points)


def _prediction(
    axes: Mapping[str, Any],
    run: Callable[[Parameters], Step],
    parameters: Parameters,
    ranks: int,
    baseline: float | None,
) -> Prediction:
    step = run(parameters)
    rate = ranks * axes["batch"] / step.seconds
    wide = _half_width(run, parameters, step, ranks)
    low, high = rate / (1 + wide), rate * (1 + wide)
    if baseline:
        # More than ideal is not foreseen, unless the model says so itself.
        high = min(high, max(ranks * baseline, rate)) if ranks > 1 else high
    shares = [one / (ranks * baseline) if baseline else None for one in (rate, low, high)]
    return Prediction(
        **axes,
        ranks=ranks,
        images_per_s=rate,
        low=low,
        high=high,
        efficiency=shares[0],
        efficiency_low=shares[1],
        efficiency_high=shares[2],
        limit=step.limit,
        step_s=step.seconds,
        compute_s=step.compute,
        exposed_s=step.exposed,
    )


def _half_width(run: Callable[[Parameters], Step], parameters: Parameters, step: Step, ranks: int) -> float:
    """Relative half width of the interval: what each parameter's error does to the step, and the points' own spread."""
    if ranks == 1:
        return AT_LEAST
    squares = [parameters.spread**2]
    for name, error in parameters.errors.items():
        value = getattr(parameters, name, None)
        if value is None or not error:
            continue
        low, high = _BOUNDS.get(name, (value / 4, value * 4 + error))
        ends = [run(replace(parameters, **{name: min(max(value + sign * error, low), high)})) for sign in (-1, 1)]
        squares.append(max(abs(math.log(end.seconds / step.seconds)) for end in ends) ** 2)
    wide = max(AT_LEAST, _SIGMAS * math.sqrt(sum(squares)))
    beyond = math.log2(ranks / parameters.max_ranks) if parameters.fitted and ranks > parameters.max_ranks else 0.0
    return min(_WIDEST, wide * (1 + DOUBLING * beyond))
