"""`hvdctl list`."""

from __future__ import annotations

from hvdctl.cli import options as o

_WORDS = {
    "kept data": "{cluster}: data that `hvdctl down --keep-data` kept for you. "
    "`hvdctl up --name {cluster}` uses it again, `hvdctl down --name {cluster} --force` removes it",
    "unknown here": "{cluster} is yours, but this home has no record of it. "
    "`hvdctl down --name {cluster} --force` removes what is left",
    "somebody else's": "{cluster} on {provider} belongs to {owner}",
    "unmarked": "{cluster} has no owner mark: an earlier version of hvdctl made it. "
    "If it is yours, `hvdctl down --name {cluster} --force` removes it",
}


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
        if told := _WORDS.get(row["state"]):
            terminal.say(told.format(**row))
    for site in unasked:
        terminal.say(site)
