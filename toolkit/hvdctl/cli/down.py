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
        bool, typer.Option("--force", help="Remove by label alone, without Terraform; forget machines that are dead.")
    ] = False,
    yes: o.YesOption = False,
    json: o.JsonOption = False,
    verbose: o.VerboseOption = False,
) -> None:
    """Remove everything that hvdctl made for a cluster, then prove that nothing is left.

    Example: `hvdctl down -y`
    """
    from hvdctl import pipeline
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import HvdctlError

    terminal = Terminal(as_json=json, verbose=verbose)
    cluster = o.find_cluster(name)
    data = "its share stays" if keep_data or _share_stays(cluster) else "with all data on its share"
    if cluster.exists or force:
        terminal.ask(f"Remove cluster {cluster.name!r} ({data})?", yes=yes)
    removed = pipeline.down(cluster.name, terminal, keep_data=keep_data, force=force, verify=verify)
    found = f"{len(removed.left)} left" if verify else "not verified"
    found += f"; kept: {', '.join(removed.kept)}" if removed.kept else ""
    found += f"; given up: {', '.join(removed.given_up)}" if removed.given_up else ""
    terminal.result(asdict(removed), lambda: terminal.line(f"Cluster {removed.cluster!r} is down: {found}"))
    if removed.left:
        why = f" ({removed.why})" if removed.why else ""
        hint = "mend that and `hvdctl down` again; `--force` goes without Terraform and gives up hosts that are dead"
        raise HvdctlError(f"still there: {', '.join(removed.left)}{why}", hint=hint)


def _share_stays(cluster: Cluster) -> bool:
    from hvdctl.errors import UsageError
    from hvdctl.providers import REGISTRY

    try:
        return cluster.exists and REGISTRY[cluster.spec().provider].keeps_share
    except UsageError:  # `--force` works without
        return False
