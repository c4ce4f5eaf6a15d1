"""`hvdctl up`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.cli.terminal import Terminal
    from hvdctl.pipeline import Report
    from hvdctl.spec import Spec


def up(
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change, as `plan` does.")] = False,
    keep_image: o.KeepImageOption = False,
    yes: o.YesOption = False,
    json: o.JsonOption = False,
    verbose: o.VerboseOption = False,
) -> None:
    """Make the cluster what the spec says; go on where an earlier `up` stopped.

    Example: `hvdctl up --nodes 10 --net 10g`
    """
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json, verbose=verbose)
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
    if dry_run:
        from hvdctl.cli import plan

        plan.show(spec, terminal, keep_image=keep_image)
    else:
        bring_up(spec, terminal, yes=yes, keep_image=keep_image)


def bring_up(spec: Spec, terminal: Terminal, *, yes: bool, keep_image: bool) -> None:
    """Ask where nodes would go, then do it and tell how to go on."""
    from hvdctl import guards, pipeline
    from hvdctl.cluster import Cluster

    def ask(question: str) -> None:
        if yes:
            terminal.say(f"{question} Yes: -y.")
        else:
            terminal.ask(question, yes=False)

    cluster = Cluster(spec.name)
    there = len(cluster.nodes())
    if spec.nodes < there:
        question = f"Remove {there - spec.nodes} of the {there} nodes of {spec.name!r}?"
        ask(f"{question} {guards.ending(cluster)}".rstrip())
    report = pipeline.up(spec, terminal, ask, keep_image=keep_image)
    terminal.result(report.data(), lambda: _summary(report, terminal))


def _summary(report: Report, terminal: Terminal) -> None:
    from hvdctl.cli.terminal import counted

    nodes = report.nodes
    slots = sum(node.slots for node in nodes)
    changes = ", ".join(
        f"{counted(len(found), 'resource')} {action}" for action, found in report.changes.items() if found
    )
    unchanged = "the same nodes, configured again" if report.configured else "no change"
    stands = f"{counted(len(nodes), 'node')}, {counted(slots, 'slot')}"
    terminal.line(f"\nCluster {report.cluster!r} is up: {stands} ({changes or unchanged}).")
    if report.link is not None:
        terminal.line(f"Link {report.link}.")
    terminal.line()
    terminal.table(("node", "role", "address", "slots"), [(n.name, n.role, n.place, n.slots) for n in nodes])
    for machine in report.not_given_back:
        terminal.line(f"\nNot given back: {machine}")
        terminal.line("  When it answers, list it under options.hosts again and `hvdctl up`; then take it out.")
    suffix = "" if report.cluster == "default" else f" --name {report.cluster}"
    terminal.line("\nNext:")
    terminal.line(f"  hvdctl run{suffix} -- python train.py   run it on every slot, from this folder")
    if report.jupyter:
        terminal.line(f"  hvdctl jupyter{suffix}                  JupyterLab on the head, in your browser")
    terminal.line(f"  hvdctl status{suffix}                   what stands")
    terminal.line(f"  hvdctl ssh{suffix}                      a shell on the head")
    terminal.line(f"  hvdctl down{suffix}                     remove everything")
