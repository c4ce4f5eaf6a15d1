"""`hvdctl down`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.cluster import Cluster


def down(
    name: o.NameOption = None,
    keep_data: Annotated[bool, typer.Option("--keep-data", help="Keep the share for the next `up`.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Ask what is left afterwards, and fail where something is."),
    ] = True,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Remove by label alone, without Terraform; give up dead machines and lost results."
        ),
    ] = False,
    max_size: o.MaxSizeOption = None,
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="With --force: also what this owner made, whose home is gone.", metavar="ID"),
    ] = None,
    yes: o.YesOption = False,
    json: o.JsonOption = False,
    verbose: o.VerboseOption = False,
) -> None:
    """Remove everything that hvdctl made for a cluster, then prove that nothing is left.

    Runs and benches are copied here first; if that fails, nothing is removed.

    Example: `hvdctl down -y`
    """
    from hvdctl import incoming, pipeline
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import HvdctlError, UsageError

    terminal = Terminal(as_json=json, verbose=verbose)
    cluster = o.find_cluster(name)
    if owner and not force:
        raise UsageError("--owner needs --force", hint="the error that names an owner has the whole command")
    data = "its share stays" if keep_data or _share_stays(cluster) else "with all data on its share"
    if cluster.exists or force:
        terminal.ask(f"Remove cluster {cluster.name!r} ({data})?{'' if yes else _ending(cluster)}", yes=yes)
    removed = pipeline.down(
        cluster.name,
        terminal,
        lambda question: terminal.ask(question, yes=yes),
        keep_data=keep_data,
        force=force,
        verify=verify,
        of=owner or "",
        max_size=incoming.LIMIT if max_size is None else max_size,
    )
    found = f"{len(removed.left)} left" if verify else "not verified"
    found += f"; kept: {', '.join(removed.kept)}" if removed.kept else ""
    found += f"; given up: {', '.join(removed.given_up)}" if removed.given_up else ""
    terminal.result(asdict(removed), lambda: terminal.line(f"Cluster {removed.cluster!r} is down: {found}"))
    if removed.left:
        why = f" ({removed.why})" if removed.why else ""
        hint = "fix that, then `hvdctl down` again; `--force` goes without Terraform and gives up hosts that are dead"
        raise HvdctlError(f"still there: {', '.join(removed.left)}{why}", hint=hint)


def _ending(cluster: Cluster) -> str:
    """The runs that would end, for the question."""
    from hvdctl import guards
    from hvdctl.errors import UsageError

    try:
        return f" {guards.ending(cluster)}".rstrip() if cluster.exists else ""
    except UsageError:  # `--force` works without
        return ""


def _share_stays(cluster: Cluster) -> bool:
    from hvdctl import rescue
    from hvdctl.errors import UsageError

    try:
        return cluster.exists and rescue.share_stays(cluster)
    except UsageError:  # `--force` works without
        return False
