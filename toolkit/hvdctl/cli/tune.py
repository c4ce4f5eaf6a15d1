"""`hvdctl tune`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.bench.tune import Outcome
    from hvdctl.cli.terminal import Terminal
    from hvdctl.cluster import Cluster


def tune(
    model: Annotated[str, typer.Option("--model", help="What is trained meanwhile.", metavar="NAME")] = "resnet50",
    batch: Annotated[int, typer.Option("--batch", help="Images of a rank and step.", parser=o.whole)] = 32,
    nodes: o.NodesOption = None,
    device: Annotated[
        str, typer.Option("--device", help="real, or emulated:<gpu> such as emulated:p100.", metavar="NAME")
    ] = "real",
    show: Annotated[bool, typer.Option("--show", help="Only show the profile that is kept.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Go back to the defaults.")] = False,
    name: o.NameOption = None,
    json: o.JsonOption = False,
    verbose: o.VerboseOption = False,
) -> None:
    """Search fusion threshold, cycle time, threads and launcher on the cluster; `run` then uses the best.

    Example: `hvdctl tune --model convnet_cifar10 --batch 64`
    """
    import os

    from hvdctl import interrupts, profile, ssh
    from hvdctl.bench import plan
    from hvdctl.bench import tune as tuning
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import UsageError

    terminal = Terminal(as_json=json, verbose=verbose)
    cluster = o.find_cluster(name)
    head = ssh.pick(cluster)
    if show or reset:
        _show_kept(terminal, cluster, forget=reset)
        return
    if batch < 1:
        raise UsageError(f"--batch {batch}: write a number from 1")
    spec = cluster.spec()
    count = nodes or len(cluster.nodes())
    layout = plan.Layout(count, head.slots)
    start = tuning.starting_point(model, batch, layout, plan.device(device), spec.net)
    cores = max(1, int(spec.cpus or os.cpu_count() or 1))
    with interrupts.counted() as pressed:
        outcome = tuning.run(cluster, start, cores, terminal, pressed)
    kept = outcome.profile
    data = {
        "cluster": cluster.name,
        "profile": asdict(kept) if kept else None,
        "gain": outcome.gain,
        "gain_low": outcome.gain_low,
        "gain_high": outcome.gain_high,
        "tried": [tried.data() for tried in outcome.tried],
        "seconds": round(outcome.seconds, 1),
    }
    terminal.result(data, lambda: _show(terminal, outcome, profile.Profile.of(cluster) is not None))


def _show(terminal: Terminal, outcome: Outcome, older: bool) -> None:
    from hvdctl.cli.terminal import seconds

    took = f"{len(outcome.tried)} measurements in {seconds(outcome.seconds)}"
    if outcome.profile:
        terminal.line(
            f"{outcome.profile}: {outcome.gain:+.1%} ({outcome.gain_low:+.1%} to {outcome.gain_high:+.1%}) against the "
            f"defaults, {outcome.profile.measured}; {took}"
        )
        terminal.line("kept: `hvdctl run` uses it; `hvdctl tune --reset` goes back")
        return
    span = f"{outcome.gain_low:+.1%} to {outcome.gain_high:+.1%}"
    terminal.line(f"nothing is faster than the defaults beyond doubt ({span}); {took}")
    if older:
        terminal.line("the profile that was kept before stays; `hvdctl tune --reset` removes it")


def _show_kept(terminal: Terminal, cluster: Cluster, *, forget: bool) -> None:
    from hvdctl import profile

    kept = None if forget else profile.Profile.of(cluster)
    was = profile.forget(cluster) if forget else kept is not None

    def render() -> None:
        if forget:
            terminal.line("back to the defaults" if was else "there was no profile: the defaults stay")
        elif kept is None:
            terminal.line("no profile: `run` uses the defaults")
        else:
            terminal.line(f"{kept}: {kept.gain:+.1%} against the defaults when tuned ({kept.measured})")

    terminal.result({"cluster": cluster.name, "profile": asdict(kept) if kept else None}, render)
