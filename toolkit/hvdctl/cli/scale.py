"""`hvdctl scale`."""

from __future__ import annotations

from typing import Annotated

import typer

from hvdctl.cli import options as o


def scale(
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", help="Number of nodes from now on.", metavar="N", parser=o.whole)
    ],
    name: o.NameOption = None,
    keep_image: o.KeepImageOption = False,
    yes: o.YesOption = False,
    json: o.JsonOption = False,
    verbose: o.VerboseOption = False,
) -> None:
    """Change the number of nodes of a cluster; those that stay are not touched. Asks if an upgrade would recreate them.

    Example: `hvdctl scale --nodes 4`
    """
    from hvdctl.cli.terminal import Terminal
    from hvdctl.cli.up import bring_up
    from hvdctl.spec import parse

    stored = o.find_cluster(name).spec().stored()
    terminal = Terminal(as_json=json, verbose=verbose)
    bring_up(parse({**stored, "nodes": nodes}, source="--nodes"), terminal, yes=yes, keep_image=keep_image)
