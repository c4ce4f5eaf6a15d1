"""`hvdctl report list`, `hvdctl report open` and `hvdctl report build`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hvdctl.cli import options as o

app = typer.Typer(
    help="The pages of benches.\n\nExample: `hvdctl report open`", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(json: o.JsonOption = False) -> None:
    """List every bench, also those of clusters that are gone; the newest last.

    Example: `hvdctl report list`
    """
    import time

    from hvdctl import paths
    from hvdctl.bench import results
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    rows = results.benches(paths.home())

    def when(created: float | None) -> str:
        return "" if created is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(created))

    def render() -> None:
        if not rows:
            terminal.line("no benches; `hvdctl bench` makes one")
            return
        terminal.table(
            ("cluster", "bench", "created", "state", "ok", "failed", "folder"),
            [(r["cluster"], r["id"], when(r["created"]), r["state"], r["ok"], r["failed"], r["path"]) for r in rows],
        )
        for row in rows:
            if row["state"] == "unreadable":
                terminal.say(f"{row['cluster']} {row['id']}: {row['reason']}")

    terminal.result(rows, render)


@app.command("open")
def open_(
    bench: Annotated[
        str | None,
        typer.Argument(help="Bench: its id, folder or results file (default: the cluster's newest).", metavar="BENCH"),
    ] = None,
    name: o.NameOption = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the path.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Build a bench's page, print its path, and open it if there is a display.

    A page that was copied from a node is never shown: a job could have put a script of its own into it.

    Example: `hvdctl report open --no-browser`
    """
    import os
    import sys

    from hvdctl import paths
    from hvdctl.bench import report, results
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import UsageError

    terminal = Terminal(as_json=json)
    if bench is not None:
        source = results.locate(bench, paths.home())
    else:
        cluster = o.find_cluster(name)
        newest = results.latest(cluster.folder)
        if newest is None:
            raise UsageError(f"cluster {cluster.name!r} has no bench", hint="`hvdctl report list` shows what there is")
        source = results.source(newest)
    page = report.build(source)
    shown = False
    display = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if display and not no_browser:
        import webbrowser

        shown = webbrowser.open(page.as_uri())
    terminal.result({"path": str(page), "opened": shown}, lambda: terminal.line(str(page)))


@app.command()
def build(
    path: Annotated[Path, typer.Argument(help="Results file, or the folder that holds it.", metavar="PATH")],
    json: o.JsonOption = False,
) -> None:
    """Make the page and the figures of a bench anew, beside its results file.

    Example: `hvdctl report build results/results.jsonl`
    """
    from hvdctl.bench import report
    from hvdctl.cli.terminal import Terminal

    terminal = Terminal(as_json=json)
    page = report.build(path)
    terminal.result({"path": str(page)}, lambda: terminal.line(str(page)))
