"""`hvdctl stage`."""

from __future__ import annotations

from typing import Annotated

import typer

from hvdctl.cli import options as o


def stage(
    source: Annotated[str, typer.Argument(help="Folder on the share.")],
    to: Annotated[
        str | None, typer.Option("--to", help="Folder on the nodes (default: of the same name in their scratch).")
    ] = None,
    name: o.NameOption = None,
    json: o.JsonOption = False,
) -> None:
    """Copy a data set from the share to the local disk of every node, side by side; say how fast each did it.

    Example: `hvdctl push imagenet && hvdctl stage imagenet`
    """
    from hvdctl import pipeline, ssh
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    cluster = o.find_cluster(name)
    ssh.pick(cluster)
    with terminal.phase("Staging") as step:
        told = pipeline.stage(cluster, source, to, step)

    def render() -> None:
        for said in told.values():
            terminal.line(str(said.get("said", "")))

    terminal.result(told, render)
