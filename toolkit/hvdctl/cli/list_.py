"""`hvdctl list`."""

from __future__ import annotations

from hvdctl.cli import options as o


def list_(json: o.JsonOption = False) -> None:
    """List every cluster, also those that only the Docker engine or a cloud still knows of.

    Example: `hvdctl list`
    """
    from hvdctl import overview
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    unasked: list[str] = []
    rows = overview.clusters(unasked)
    columns = ("cluster", "state", "provider", "nodes", "running", "net")

    def render() -> None:
        if rows:
            terminal.table(columns, [[row.get(column, "") for column in columns] for row in rows])
        else:
            terminal.line("no clusters; `hvdctl up` makes one")

    terminal.result(rows, render)
    for row in rows:
        if row["state"] == "unknown here":
            terminal.say(
                f"{row['cluster']} is not known here, and may be somebody else's: "
                f"`hvdctl down --name {row['cluster']} --force` removes it"
            )
    for site in unasked:
        terminal.say(site)
