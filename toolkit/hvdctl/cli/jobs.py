"""`hvdctl jobs`, `hvdctl logs` and `hvdctl cancel`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hvdctl.cli import options as o

RunArgument = Annotated[
    int | None, typer.Argument(help="Number of the run (default: the newest).", metavar="RUN", parser=o.whole)
]


def jobs(name: o.NameOption = None, json: o.JsonOption = False) -> None:
    """List the runs of a cluster, also of earlier clusters of its name.

    Example: `hvdctl jobs`
    """
    from hvdctl import jobs as library
    from hvdctl.cli.terminal import Terminal, seconds

    terminal = Terminal(as_json=json)
    missed = "the head can't be reached: these are the runs that are kept here, not all"
    rows = library.rows(o.find_cluster(name), lambda: terminal.say(missed))

    def render() -> None:
        if not rows:
            terminal.line("no runs; `hvdctl run -- COMMAND` starts one")
            return
        terminal.table(
            ("run", "state", "np", "launcher", "took", "exit", "command"),
            [
                (
                    row["id"],
                    row["state"],
                    "" if row["np"] is None else row["np"],
                    row["launcher"] or "",
                    seconds(row["duration_s"]) if row.get("duration_s") is not None else "",
                    "" if row.get("exit_code") is None else row["exit_code"],
                    row.get("user_command") or row.get("command") or row.get("reason"),
                )
                for row in rows
            ],
        )

    terminal.result(rows, render)


def logs(
    run: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", help="Only what this rank said.", metavar="N", parser=o.whole)
    ] = None,
    name: o.NameOption = None,
) -> None:
    """Print what a run said, tagged by rank; with -f, go on until it ends.

    Example: `hvdctl logs -f 3`
    """
    from hvdctl import collect, interrupts
    from hvdctl import jobs as library
    from hvdctl.cli.run import watch
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import HvdctlError

    cluster = o.find_cluster(name)
    number = run if run is not None else library.latest(cluster)
    record = library.show(cluster, number)
    if follow and record["state"] not in library.FINAL:
        with interrupts.counted() as pressed:
            watch(cluster, number, Terminal(), pressed, rank)
        return
    if cluster.nodes():
        try:
            collect.fetch(cluster, number, Terminal().say)
        except (HvdctlError, OSError) as error:
            Terminal().say(f"this is the copy kept here: {getattr(error, 'message', error)}")
    sys.stdout.buffer.write(library.log_file(cluster, number, rank).read_bytes())


def cancel(run: RunArgument = None, name: o.NameOption = None, json: o.JsonOption = False) -> None:
    """End every rank of a run on every node (default: the newest run under way).

    Example: `hvdctl cancel 3`
    """
    from hvdctl import jobs as library
    from hvdctl.cli.run import kept
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    cluster = o.find_cluster(name)
    number = run if run is not None else library.latest(cluster, active=True)
    with terminal.phase(f"Ending run {number}"):
        record = library.cancel(cluster, number)
    kept(cluster, number, terminal)
    terminal.result(record, lambda: terminal.line(f"run {number}: {record['state']}"))
