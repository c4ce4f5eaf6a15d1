"""`hvdctl check`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hvdctl.cli import options as o

_MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}


def check(
    name: o.NameOption = None,
    nodes: o.NodesOption = None,
    provider: o.ProviderOption = None,
    option: o.OwnOption = None,
    file: o.FileOption = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Install what is missing and can be downloaded: Terraform.")
    ] = False,
    json: o.JsonOption = False,
) -> None:
    """Check this machine and, if the cluster is up, every node of it. Exit code 1 if a check fails.

    Example: `hvdctl check --fix`
    """
    from hvdctl import checks
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    if name is not None and not (nodes or provider or option or file):
        o.find_cluster(name).spec()  # says that there is no such cluster
    spec = o.resolve(name, file, option=option, nodes=nodes, provider=provider)
    if fix:
        checks.fix(terminal)
    results = []
    for result in checks.run(spec):
        results.append(result)
        if not json:
            terminal.line(f"{_MARKS[result.state]} {result.name.ljust(18)} {result.detail}")
            if result.hint:
                terminal.line(f"    → {result.hint}")
    failed = [result.name for result in results if result.state == "fail"]
    terminal.result({"ok": not failed, "checks": [asdict(result) for result in results]}, lambda: None)
    if failed:
        raise typer.Exit(1)
