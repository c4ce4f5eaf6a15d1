"""`hvdctl bench` and `hvdctl bench compare`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hvdctl.cli import bench_compare
from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.bench.plan import Sweep
    from hvdctl.bench.sweep import Outcome
    from hvdctl.cli.terminal import Terminal
    from hvdctl.cluster import Cluster

_LONG_S = 3600.0


app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
app.command("compare")(bench_compare.compare)


@app.callback()
def bench(
    context: typer.Context,
    nodes: Annotated[
        str | None, typer.Option("--nodes", "-n", help="Numbers of nodes (default: 1,2,4,... all).", metavar="LIST")
    ] = None,
    batch: Annotated[
        str, typer.Option("--batch", help="Images of a rank and step; of all ranks with strong.", metavar="LIST")
    ] = "32",
    model: Annotated[
        str, typer.Option("--model", help="resnet50, resnet101, inception_v3, vgg16, alexnet, ...", metavar="LIST")
    ] = "resnet50",
    net: Annotated[
        str | None, typer.Option("--net", help="Link rates (default: as they stand).", metavar="LIST")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="real, or emulated:<gpu> such as emulated:p100.", metavar="NAME")
    ] = "real",
    layout: Annotated[
        str | None,
        typer.Option("--layout", help="NODESxRANKS; k is each of --nodes: kx1,1xk.", metavar="LIST"),
    ] = None,
    launcher: Annotated[
        str, typer.Option("--launcher", help="horovod-gloo, horovod-mpi, torch-ddp.", metavar="LIST")
    ] = "horovod-gloo",
    threads: Annotated[str | None, typer.Option("--threads", help="OMP_NUM_THREADS of a rank.", metavar="LIST")] = None,
    scaling: Annotated[str, typer.Option("--scaling", help="weak, strong or both.", metavar="LIST")] = "weak",
    data: Annotated[
        str | None, typer.Option("--data", help="Image folder on the share (default: synthetic).", metavar="PATH")
    ] = None,
    stage: Annotated[
        str, typer.Option("--stage", help="Copy the images to each node's disk first: no, yes or both.")
    ] = "no",
    dilation: Annotated[
        str, typer.Option("--dilation", help="Time dilation of emulated devices: auto or a factor.", metavar="K")
    ] = "auto",
    ci: Annotated[
        float, typer.Option("--ci", help="Repeat until the 95 % interval is below this share.", parser=o.number)
    ] = 0.02,
    max_steps: Annotated[int, typer.Option("--max-steps", help="At most so many steps.", parser=o.whole)] = 500,
    max_seconds: Annotated[
        float, typer.Option("--max-seconds", help="No new steps of a point after this.", parser=o.number)
    ] = 60,
    micro: Annotated[
        bool, typer.Option("--micro/--no-micro", help="Also allreduce by size, and every pair of nodes.")
    ] = True,
    timeline: Annotated[bool, typer.Option("--timeline", help="Keep a timeline of the largest layout.")] = False,
    output: Annotated[Path | None, typer.Option("--output", help="Folder for the results.", metavar="DIR")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, not where an earlier bench stopped.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the points.")] = False,
    name: o.NameOption = None,
    yes: o.YesOption = False,
    json: o.JsonOption = False,
    verbose: o.VerboseOption = False,
) -> None:
    """Measure how training scales on the cluster that is up, and predict how it would on others.

    Example: `hvdctl bench --nodes 1,2,4 --batch 32,64 --net 1g,10g --device emulated:p100`
    """
    if context.invoked_subcommand:
        return
    from hvdctl import interrupts, jobs, ssh
    from hvdctl.bench import plan, sweep
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json, verbose=verbose)
    cluster = o.find_cluster(name)
    slots = ssh.pick(cluster).slots
    counts = whole_numbers("--nodes", nodes) if nodes else plan.counts(len(cluster.nodes()))
    asked = plan.Sweep(
        layouts=plan.layouts(words(layout), counts, slots),
        batches=whole_numbers("--batch", batch),
        models=several("--model", model),
        nets=plan.rates(several("--net", net)) if net else (cluster.spec().net,),
        device=plan.device(device),
        launchers=tuple(plan.launcher(one) for one in several("--launcher", launcher)),
        threads=whole_numbers("--threads", threads) if threads else (None,),
        scalings=scalings(scaling),
        data=str(jobs.on_share(data)) if data else None,
        staged={"no": (False,), "yes": (True,), "both": (False, True)}[choose("--stage", stage, ("no", "yes", "both"))],
        dilation=None if dilation == "auto" else factor(dilation),
        ci=positive("--ci", ci),
        max_steps=steps(max_steps),
        max_seconds=positive("--max-seconds", max_seconds),
        micro=micro,
        timeline=timeline,
    )
    if dry_run:
        sweep.check(cluster, asked)
        _show_plan(terminal, asked)
        return

    def agree(what: str, seconds: float) -> None:
        if seconds > _LONG_S:
            terminal.ask(f"{what} will take about {sweep.shown_time(seconds)}. Go on?", yes=yes)

    with interrupts.counted() as pressed:
        choice = sweep.Choice(output=output, fresh=fresh, agree=agree, pressed=pressed)
        outcome = sweep.run(cluster, asked, terminal, choice)
    _show(terminal, cluster, outcome)
    if outcome.failed:
        raise typer.Exit(1)


def words(text: str | None) -> tuple[str, ...]:
    """The parts of a list with commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    from hvdctl.errors import UsageError

    try:
        found = tuple(o.integer(word) for word in words(text))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise UsageError(f"{flag} {text!r}: write whole numbers from 1, with commas: 1,2,4")
    return tuple(sorted(set(found)))


def several(flag: str, text: str) -> tuple[str, ...]:
    """The words of a list that must have one."""
    from hvdctl.errors import UsageError

    found = words(text)
    if not found:
        raise UsageError(f"{flag} {text!r}: write one or more, with commas")
    return found


def scalings(text: str) -> tuple[str, ...]:
    from hvdctl.bench.plan import SCALINGS

    asked = [choose("--scaling", one, (*SCALINGS, "both")) for one in several("--scaling", text)]
    return tuple(one for one in SCALINGS if one in asked or "both" in asked)


def steps(count: int) -> int:
    from hvdctl.errors import UsageError

    if count < 2:
        raise UsageError(f"--max-steps {count}: how well a mean is known takes at least 2 steps to tell")
    return count


def choose(flag: str, word: str, known: tuple[str, ...]) -> str:
    from hvdctl.errors import UsageError

    if word not in known:
        raise UsageError(f"{flag} {word!r}: choose of {', '.join(known)}")
    return word


def positive(flag: str, value: float) -> float:
    from hvdctl.errors import UsageError

    if not 0 < value < math.inf:
        raise UsageError(f"{flag} {value:g}: write a number above 0")
    return value


def factor(text: str) -> float:
    from hvdctl.errors import UsageError

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1000:
        raise UsageError(f"--dilation {text!r}: write auto, or a factor from 1 to 1000")
    return value


def _show_plan(terminal: Terminal, asked: Sweep) -> None:
    points = asked.points()

    def render() -> None:
        for point in points:
            terminal.line(point.key)
        terminal.line(f"{len(points)} points; nothing was started")

    terminal.result([point.data_of() for point in points], render)


def _show(terminal: Terminal, cluster: Cluster, outcome: Outcome) -> None:
    from hvdctl.bench import results
    from hvdctl.cli.terminal import seconds

    records = results.read(outcome.folder)
    points = results.points(records)
    told: dict[str, Any] = {
        "cluster": cluster.name,
        "folder": str(outcome.folder),
        "report": str(outcome.folder / "report.html"),
        "state": outcome.state,
        "measured": outcome.measured,
        "failed": outcome.failed,
        "resumed": outcome.resumed,
        "seconds": round(outcome.seconds, 1),
        "points": [point | {"efficiency": results.efficiency(point, points)} for point in points],
    }

    def render() -> None:
        terminal.line()
        _table(terminal, points)
        terminal.line()
        terminal.line(f"{outcome.measured} points in {seconds(outcome.seconds)}; report: {told['report']}")
        if outcome.failed:
            terminal.line(f"{outcome.failed} failed; the same command tries only those again")

    terminal.result(told, render)


def _table(terminal: Terminal, points: list[dict[str, Any]]) -> None:
    """The points for a terminal; what is emulated says so in every row."""
    from hvdctl.bench import results, wording
    from hvdctl.spec import format_rate

    rows = []
    for point in points:
        where = (f"{point['nodes']}x{point['slots']}", format_rate(point["net"]))
        axes = (point["model"], point["batch"], *where, point["launcher"], point["scaling"])
        device = point["device"] + (f" /{point['dilation']:g}" if point["dilation"] != 1 else "")
        if point["status"] == "ok":
            rate = wording.with_ci(point["images_per_s"], point["images_per_s_ci"])
            share = results.efficiency(point, points)
            rows.append((*axes, device, rate, "no baseline" if share is None else f"{share:.0%}"))
        else:
            rows.append((*axes, device, f"failed: {point['reason']}", ""))
    head = ("model", "batch", "layout", "net", "launcher", "scaling", "device /dilation", "images/s", "efficiency")
    terminal.table(head, rows)
