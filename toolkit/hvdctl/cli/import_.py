"""`hvdctl import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdctl.cli import options as o


def import_(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Manifests of jFed or GENI, an Ansible inventory, a list of hosts; none: those of this job."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; - for stdout.")] = Path("hvdctl.yml"),
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="Name of the cluster.", metavar="NAME")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Login on the hosts.", metavar="NAME")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Group of the inventory.", metavar="NAME")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Private key that logs in.", metavar="FILE")] = None,
    proxy: Annotated[
        str | None, typer.Option("--proxy", help="Jump host to all of them.", metavar="USER@HOST:PORT")
    ] = None,
    scan: Annotated[bool, typer.Option("--scan", help="Ask the hosts for their keys, to be compared by you.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Write the spec of a cluster on machines that another tool knows of.

    Example: `hvdctl import --scan experiment.rspec`, then `hvdctl up` when the fingerprints are right
    """
    import os

    from hvdctl import importers
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import UsageError
    from hvdctl.files import rewrite

    terminal = Terminal(as_json=json)
    stdout = str(output) == "-"
    if not stdout and output.exists() and not force:
        raise UsageError(f"{output} exists", hint="`--force` writes over it, `--output` chooses another file")
    login = str(key.expanduser().resolve()) if key else None
    if files:
        found = importers.read(files, user=user, group=group, key=login)
    else:
        found = importers.from_job(os.environ, user=user, group=group)
    values = importers.spec(found, name=name, key=login, proxy=proxy)
    prints = importers.add_host_keys(values) if scan else {}
    if unknown := importers.unknown(values):
        again = "--scan" if stdout else "--scan --force"
        hosts = "1 host" if unknown == 1 else f"{unknown} hosts"
        found.notes.append(f"host keys of {hosts} are not known here: add {again}, or log in to each once with ssh")
    text = importers.written(values, files or [])
    if not stdout:
        try:
            rewrite(output, text)
        except OSError as error:
            raise UsageError(f"{output} can't be written: {error.strerror}") from None
    for note in found.notes:
        terminal.say(f"note: {note}")
    for host, shown in prints.items():
        terminal.say(f"{host}: {', '.join(shown)}")
    if prints:
        terminal.say("Compare these with what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` shows on each host.")
    done = f"wrote {output}: {values['nodes']} nodes; `hvdctl up` makes the cluster"
    data = {"file": None if stdout else str(output), "spec": values, "notes": found.notes, "fingerprints": prints}
    terminal.result(data, lambda: terminal.line(text.removesuffix("\n") if stdout else done))
