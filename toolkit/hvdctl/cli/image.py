"""`hvdctl image build` and `hvdctl image list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hvdctl.cli.options import JsonOption, VerboseOption

app = typer.Typer(help="The images that nodes run.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def build(
    framework: Annotated[str, typer.Argument(help="pytorch, tensorflow or all.")] = "pytorch",
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build although nothing has changed.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="The variant for nodes with GPUs.")] = False,
    json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Build an image where its inputs have changed or it is not there.

    Example: `hvdctl image build all`
    """
    from hvdctl import images, wheels
    from hvdctl.cli.terminal import Terminal, seconds
    from hvdctl.errors import UsageError

    known = ("pytorch", "tensorflow")
    if framework not in (*known, "all"):
        raise UsageError(f"{framework!r} is not a framework; choose one of: {', '.join(known)}, all")
    terminal = Terminal(as_json=json, verbose=verbose)
    chosen = known if framework == "all" else (framework,)
    built = [
        images.build(one, terminal, rebuild=rebuild, cuda=wheels.cuda_version(one) if cuda else None) for one in chosen
    ]

    def render() -> None:
        for one in built:
            how = f"built in {seconds(one.seconds)}" if one.built else "is there, nothing changed"
            terminal.line(f"{one.reference} {how}")

    terminal.result([asdict(one) for one in built], render)


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the images that hvdctl built; those of changed inputs are marked old.

    Example: `hvdctl image list`
    """
    from hvdctl import images
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    found = images.installed()

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
