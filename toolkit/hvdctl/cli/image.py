"""`hvdctl image build`, `push` and `list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hvdctl.cli.options import JsonOption, VerboseOption

app = typer.Typer(
    help="The images that nodes run.\n\nExample: `hvdctl image build all`", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def build(
    which: Annotated[
        list[str] | None,
        typer.Argument(help="pytorch, tensorflow, all (both), vm: the disk of virtual machines.", metavar="IMAGE..."),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build although nothing has changed.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="The variant for nodes with GPUs.")] = False,
    jupyter: Annotated[bool, typer.Option("--jupyter/--no-jupyter", help="With JupyterLab, or without.")] = True,
    framework: Annotated[
        str, typer.Option("--framework", help="With vm: the framework in its engine.", metavar="NAME")
    ] = "pytorch",
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Build images whose inputs have changed or that do not exist yet. The default is pytorch.

    Example: `hvdctl image build all vm`
    """
    from hvdctl import imageplan, images, vmimage, wheels
    from hvdctl.cli.terminal import Terminal, seconds
    from hvdctl.errors import UsageError

    known = images.FRAMEWORKS
    asked = which or ["pytorch"]
    for one in asked:
        if one not in (*known, "all", "vm"):
            raise UsageError(f"{one!r} is not an image; choose one of: {', '.join(known)}, all, vm")
    if framework not in known:
        raise UsageError(f"{framework!r} is not a framework; choose one of: {', '.join(known)}")
    machine = "vm" in asked
    if machine and cuda:
        raise UsageError("--cuda: virtual machines have no GPU here", hint="leave it out")
    terminal = Terminal(as_json=json, verbose=verbose)
    built = []
    if chosen := [one for one in known if one in asked or "all" in asked]:
        plans = [imageplan.plan_of(one, wheels.cuda_version(one) if cuda else None) for one in chosen]
        built += images.build_all(plans, terminal, jupyter=jupyter, machine=machine, rebuild=rebuild)
    if machine:
        built.append(vmimage.build(framework, terminal, rebuild=rebuild))

    def render() -> None:
        for one in built:
            how = f"built in {seconds(one.seconds)}" if one.built else "is up to date"
            terminal.line(f"{one.reference} {how}")

    terminal.result([asdict(one) for one in built], render)


@app.command()
def push(
    target: Annotated[str, typer.Argument(help="Where to, as REGISTRY/IMAGE:TAG.", metavar="TARGET")],
    framework: Annotated[str, typer.Option("--framework", help="pytorch or tensorflow.", metavar="NAME")] = "pytorch",
    cuda: Annotated[bool, typer.Option("--cuda", help="The variant for nodes with GPUs.")] = False,
    jupyter: Annotated[bool, typer.Option("--jupyter/--no-jupyter", help="With JupyterLab, or without.")] = True,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Send the image to a registry, for services that pull it themselves; built where it is missing.

    Example: `hvdctl image push registry.example.org/me/horovod:1`
    """
    from hvdctl import imageregistry, images, wheels
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import UsageError

    imageregistry.check(target)
    if framework not in images.FRAMEWORKS:
        raise UsageError(f"{framework!r} is not a framework; choose one of: {', '.join(images.FRAMEWORKS)}")
    terminal = Terminal(as_json=json, verbose=verbose)
    built = images.build(framework, terminal, cuda=wheels.cuda_version(framework) if cuda else None, jupyter=jupyter)
    pushed = imageregistry.push(built.reference, target, terminal)
    terminal.result(
        {"image": pushed}, lambda: terminal.line(f"{pushed} is there; `hvdctl up --image {pushed}` uses it")
    )


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the images that hvdctl built; those of changed inputs are marked old.

    Example: `hvdctl image list`
    """
    from hvdctl import images, vmimage
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    found = [*images.installed(), *vmimage.listed()]

    def render() -> None:
        if not found:
            terminal.line("no images; `hvdctl image build` makes one")
            return
        rows = [
            (i.reference, i.framework, f"{i.size / 1e6:.0f} MB", i.created, "current" if i.current else "old")
            for i in found
        ]
        terminal.table(("image", "framework", "size", "created", "state"), rows)

    terminal.result([asdict(one) for one in found], render)
