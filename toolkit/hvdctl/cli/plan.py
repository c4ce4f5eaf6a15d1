"""`hvdctl plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.cli.terminal import Terminal
    from hvdctl.spec import Spec

_SIGNS = {"create": "+", "delete": "-", "update": "~", "replace": "±", "configure": "+", "undo": "-"}


def plan(
    name: o.NameOption = None,
    nodes: o.NodesOption = None,
    net: o.NetOption = None,
    slots: o.SlotsOption = None,
    cpus: o.CpusOption = None,
    memory: o.MemoryOption = None,
    gpus: o.GpusOption = None,
    layout: o.LayoutOption = None,
    framework: o.FrameworkOption = None,
    image: o.ImageOption = None,
    share: o.ShareOption = None,
    jupyter: o.JupyterOption = None,
    env: o.EnvOption = None,
    env_file: o.EnvFileOption = None,
    provider: o.ProviderOption = None,
    option: o.OwnOption = None,
    file: o.FileOption = None,
    keep_image: o.KeepImageOption = False,
    json: o.JsonOption = False,
) -> None:
    """Show what `hvdctl up` would change. Changes nothing.

    Example: `hvdctl plan --nodes 4 --net 1g`
    """
    from hvdctl.cli.terminal import Terminal

    spec = o.resolve(
        name,
        file,
        env,
        option,
        env_file,
        nodes=nodes,
        net=net,
        slots=slots,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        layout=layout,
        framework=framework,
        image=image,
        share=share,
        jupyter=jupyter,
        provider=provider,
    )
    show(spec, Terminal(as_json=json), keep_image=keep_image)


def show(spec: Spec, terminal: Terminal, *, keep_image: bool) -> None:
    """Plan and print it; `up --dry-run` is the same."""
    from hvdctl import pipeline

    outcome = pipeline.plan(spec, terminal, keep_image=keep_image)

    def render() -> None:
        for action, addresses in outcome.changes.items():
            for address in addresses:
                terminal.line(f"  {_SIGNS.get(action, '?')} {address}  ({action})")
        counts = ", ".join(f"{len(found)} to {action}" for action, found in outcome.changes.items() if found)
        recreated = f"would be recreated: {', '.join(outcome.recreated)}. {outcome.ending}".rstrip()
        if outcome.recreated:
            terminal.line(recreated)
        elif not counts:
            terminal.line(f"cluster {spec.name!r} is as the spec says: nothing to do")
        if counts:
            terminal.line(counts)

    told = {"changes": outcome.changes, "drift": outcome.drift, "recreated": outcome.recreated, "ends": outcome.ending}
    terminal.result({"cluster": spec.name, **told}, render)
