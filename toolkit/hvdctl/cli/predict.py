"""`hvdctl predict`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.bench.costmodel import Parameters
    from hvdctl.bench.predict import Prediction

_COLUMNS = ("model", "nodes", "ranks", "batch", "net", "images/s", "(low..high)", "efficiency", "(low..high)", "limit")
_MAX_POINTS = 10_000

T = TypeVar("T")


def predict(
    model: Annotated[str, typer.Option("--model", help="Models, such as resnet50,vgg16.", metavar="LIST")] = "resnet50",
    nodes: Annotated[str, typer.Option("--nodes", "-n", help="Numbers of nodes.", metavar="LIST")] = "1,2,4,8",
    slots: Annotated[int, typer.Option("--slots", help="Ranks on each node.", metavar="N", parser=o.whole)] = 1,
    net: Annotated[str, typer.Option("--net", help="Link rates of a node: 1g,10g, or none.", metavar="LIST")] = "10g",
    gpu: Annotated[
        str, typer.Option("--gpu", help="GPU of each rank; its published rate is used.", metavar="GPU")
    ] = "p100",
    batch: Annotated[
        str, typer.Option("--batch", help="Images in each rank's batch; with strong scaling, in all.", metavar="LIST")
    ] = "64",
    scaling: Annotated[str, typer.Option("--scaling", help="weak or strong.", metavar="KIND")] = "weak",
    launcher: Annotated[
        str | None,
        typer.Option("--launcher", help="horovod-gloo, horovod-mpi or torch-ddp; its points are fitted to."),
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            "--fit", help="Stored bench: results.jsonl or its folder (default: the newest).", metavar="RESULTS"
        ),
    ] = None,
    name: o.NameOption = None,
    json: o.JsonOption = False,
) -> None:
    """Predict images per second and efficiency of a cluster that need not exist.

    Example: `hvdctl predict --model vgg16 --nodes 16,128 --slots 4 --net 25g --gpu p100 --batch 64`
    """
    from hvdctl.bench import devices, plan
    from hvdctl.bench.predict import Request
    from hvdctl.bench.predict import predict as ask
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    axes = _words("model", model), _whole("nodes", nodes), _whole("batch", batch), _rates(net)
    combined = list(itertools.product(*axes))
    if len(combined) > _MAX_POINTS:
        from hvdctl.errors import UsageError

        raise UsageError(f"{len(combined)} predictions are more than {_MAX_POINTS}", hint="ask for fewer at a time")
    chosen = plan.launcher(launcher) if launcher else None
    parameters, stored = _parameters(fit, name, chosen)
    found = []
    for kind, count, size, rate in combined:
        each = plan.rank_batch(size, max(1, count * slots), scaling)  # less than one node is refused below
        found.append(ask(Request(kind, each, count, slots, rate, gpu, scaling, chosen), parameters))
    rates = [devices.step_seconds(gpu, one.model, one.batch) for one in found]
    told = list(
        dict.fromkeys(
            f"{one.model} on {gpu}, batch {one.batch}: {step.how}; {step.source}"
            for one, step in zip(found, rates, strict=True)
        )
    )

    def render() -> None:
        terminal.line(f"Predicted, not measured; {_from(parameters, stored)}.")
        terminal.line(f"Compute is emulated: published rates of one {gpu}.")
        terminal.line()
        terminal.table(_COLUMNS, [_row(one) for one in found])
        terminal.line()
        for line in told:
            terminal.line(line)
        for note in parameters.notes:
            terminal.line(f"Note: {note}.")

    document = {
        "predicted": True,
        "emulated": True,
        "parameters": parameters.data(),
        "results": str(stored) if stored else None,
        "rates": told,
        "predictions": [one.data() for one in found],
    }
    terminal.result(document, render)


def _parameters(given: Path | None, name: str | None, launcher: str | None) -> tuple[Parameters, Path | None]:
    """Fitted to the bench that was named, else to the cluster's newest one, else the defaults."""
    from hvdctl.bench import results
    from hvdctl.bench.costmodel import DEFAULTS
    from hvdctl.bench.fit import fit
    from hvdctl.errors import UsageError

    path = given if given is not None else results.latest(o.find_cluster(name).folder)
    if path is None:
        return DEFAULTS, None
    parameters = fit(results.read(path), launcher=launcher)
    if given is not None and not parameters.fitted:
        raise UsageError(
            f"{given} has neither an allreduce nor a point that a prediction could be fitted to",
            hint="`hvdctl bench` measures both",
        )
    return parameters.elsewhere(), path if parameters.fitted else None


def _from(parameters: Parameters, stored: Path | None) -> str:
    if stored is None:
        return "not fitted: defaults, as no bench was found"
    return f"fitted to {parameters.source} ({stored}), at most {parameters.max_ranks} ranks"


def _row(one: Prediction) -> tuple[object, ...]:
    from hvdctl.spec import format_rate

    shares = [f"{100 * share:.0f}%" for share in (one.efficiency, one.efficiency_low, one.efficiency_high) if share]
    return (
        one.model,
        one.nodes,
        one.ranks,
        one.batch,
        format_rate(one.net),
        f"{one.images_per_s:.0f}",
        f"({one.low:.0f}..{one.high:.0f})",
        shares[0],
        f"({shares[1]}..{shares[2]})",
        one.limit,
    )


def _words(flag: str, text: str) -> list[str]:
    from hvdctl.errors import UsageError

    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise UsageError(f"--{flag} {text!r}: write one value or several with commas between them")
    return words


def _whole(flag: str, text: str) -> list[int]:
    return _each(flag, text, o.integer, "is not a whole number")


def _rates(text: str) -> Sequence[int | None]:
    from hvdctl.spec import parse_rate

    return _each("net", text, parse_rate, "")


def _each(flag: str, text: str, convert: Callable[[str], T], wrong: str) -> list[T]:
    from hvdctl.errors import UsageError

    found = []
    for word in _words(flag, text):
        try:
            found.append(convert(word))
        except ValueError as error:
            raise UsageError(f"--{flag} {f'{word[:40]!r} {wrong}' if wrong else error}") from None
    return found
