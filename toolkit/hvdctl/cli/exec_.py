"""`hvdctl exec`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from hvdctl.cli import options as o


def exec_(
    words: Annotated[list[str], typer.Argument(help="[NODE] -- COMMAND", metavar="[NODE] -- COMMAND...")],
    all_: Annotated[bool, typer.Option("--all", help="On every node, side by side.")] = False,
    name: o.NameOption = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds a node may take.")] = 600,
    json: o.JsonOption = False,
) -> None:
    """Run a command on one node (the head by default) or, with --all, on every node.

    Example: `hvdctl exec --all -- nproc`
    """
    from hvdctl import ssh
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import HvdctlError, UsageError

    terminal = Terminal(as_json=json)
    cluster = o.find_cluster(name)
    head = ssh.pick(cluster)
    names = [node.name for node in cluster.nodes()]
    # One that looks like a node is meant as one: ssh.pick says which there are.
    named = not all_ and (words[0] in names or re.fullmatch(r"node\d+(\.machine)?", words[0]) is not None)
    chosen, command = (words[0], words[1:]) if named else (head.name, words)
    if not command:
        raise UsageError("no command given", hint="hvdctl exec node1 -- hostname")
    targets = names if all_ else [ssh.host(cluster, chosen)]
    done = ssh.gather([ssh.argv(cluster, node, command) for node in targets], timeout=timeout)
    data = [
        {"node": node, "exit_code": one.returncode, "stdout": one.stdout, "stderr": one.stderr}
        for node, one in zip(targets, done, strict=True)
    ]

    def render() -> None:
        for node, one in zip(targets, done, strict=True):
            tag = f"[{node}] " if all_ else ""
            for text, write in ((one.stdout, terminal.line), (one.stderr, terminal.say)):
                for line in text.splitlines():
                    write(tag + line)

    terminal.result(data, render)
    failed = [(node, one.returncode) for node, one in zip(targets, done, strict=True) if one.returncode]
    if failed and all_:
        raise HvdctlError("failed on " + ", ".join(f"{node} (exit code {code})" for node, code in failed))
    if failed:
        raise typer.Exit(failed[0][1])
