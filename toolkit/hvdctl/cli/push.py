"""`hvdctl push` and `hvdctl pull`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdctl.cli import options as o


def push(
    sources: Annotated[list[Path], typer.Argument(help="Files and folders here.")],
    to: Annotated[str, typer.Option("--to", help="Folder on the share.")] = "",
    name: o.NameOption = None,
    json: o.JsonOption = False,
) -> None:
    """Copy files and folders to the share, where every node sees them.

    Example: `hvdctl push data/ --to datasets`
    """
    from hvdctl import jobs
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    cluster = o.find_cluster(name)
    jobs.on_share(to)
    with terminal.phase("Copying"):
        target = jobs.push(cluster, sources, to)
    copied = [str(source) for source in sources]
    terminal.result({"copied": copied, "to": target}, lambda: terminal.line(f"{', '.join(copied)} → {target}"))


def pull(
    source: Annotated[str, typer.Argument(help="File or folder on the share.")],
    target: Annotated[str, typer.Argument(help="Folder here, or the name of a file for one file.")] = ".",
    max_size: o.MaxSizeOption = None,
    name: o.NameOption = None,
    json: o.JsonOption = False,
) -> None:
    """Copy a file or folder from the share to this machine, without links and devices.

    Example: `hvdctl pull checkpoints results/`
    """
    from hvdctl import incoming, jobs
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import HvdctlError

    terminal = Terminal(as_json=json)
    cluster = o.find_cluster(name)
    remote = str(jobs.on_share(source))
    with terminal.phase("Copying"):
        into = target.endswith("/")
        arrived = jobs.pull(cluster, source, Path(target), incoming.LIMIT if max_size is None else max_size, into=into)
    for note in arrived.notes():
        terminal.say(note)
    data = {"copied": remote, "to": str(Path(target)), "files": arrived.files, "bytes": arrived.size}
    data |= {"left": [one.name for one in arrived.left]}
    terminal.result(data, lambda: terminal.line(f"{remote} → {target} ({arrived})"))
    if missing := [one for one in arrived.left if one.data]:
        hints = list(dict.fromkeys(one.hint for one in missing if one.hint))
        raise HvdctlError(
            f"not all of {remote} was copied: {len(missing)} left out",
            hint="; ".join(hints) or "rename them on the share, then pull again",
        )
