"""`hvdctl ssh`."""

from __future__ import annotations

from typing import Annotated

import typer

from hvdctl.cli import options as o


def ssh(
    node: Annotated[
        str | None, typer.Argument(help="Node, or the machine under it, such as node0.machine (default: the head).")
    ] = None,
    name: o.NameOption = None,
    print_: Annotated[bool, typer.Option("--print", help="Print the ssh command instead of running it.")] = False,
) -> None:
    """Open a shell on a node, with the cluster's own keys and known hosts.

    Example: `hvdctl ssh node1`
    """
    import shlex

    from hvdctl import process
    from hvdctl import ssh as nodes
    from hvdctl.cli.terminal import Terminal

    cluster = o.find_cluster(name)
    argv = nodes.argv(cluster, nodes.host(cluster, node), tty=True)
    if print_:
        Terminal().line(shlex.join(argv))
    else:
        raise typer.Exit(process.attached(argv))
