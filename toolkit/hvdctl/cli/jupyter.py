"""`hvdctl jupyter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.cli.terminal import Terminal
    from hvdctl.cluster import Cluster


def jupyter(
    name: o.NameOption = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port on this machine, from 1024 on.", metavar="N", parser=o.whole)
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser, or don't.")] = True,
    stop: Annotated[bool, typer.Option("--stop", help="Close the tunnel; JupyterLab goes on.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show how tunnel and server stand.")] = False,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new token; the old one opens nothing.")] = False,
    json: o.JsonOption = False,
) -> None:
    """Open JupyterLab on the head: a tunnel through SSH that is kept up, and the browser where there is one.

    The tunnel stays after the command, until --stop or `hvdctl down`. With --status, exit code 1 where JupyterLab can't
    be reached.

    Example: `hvdctl jupyter --port 9000`
    """
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import UsageError

    chosen = [flag for flag, on in (("--stop", stop), ("--status", status), ("--rotate", rotate)) if on]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} don't go together")
    if port is not None and (stop or status):
        raise UsageError(f"--port {port} is for opening: {chosen[0]} takes none")
    if port is not None and not 1024 <= port <= 65535:
        raise UsageError(f"--port {port} is not a port that you can have; choose one from 1024 to 65535")
    terminal = Terminal(as_json=json)
    cluster = o.find_cluster(name)
    if stop:
        _stop(cluster, terminal)
    elif status:
        _status(cluster, terminal)
    else:
        _open(cluster, terminal, port=port, rotate=rotate, browser=browser and not json)


def _open(cluster: Cluster, terminal: Terminal, *, port: int | None, rotate: bool, browser: bool) -> None:
    from hvdctl import jupyter

    with terminal.phase("JupyterLab") as step:
        way = jupyter.open_(cluster, step, port=port, rotate=rotate)
    if way.moved:
        terminal.say(f"port {way.moved} is taken by another program: port {way.port} is used")

    def render() -> None:
        suffix = "" if cluster.name == "default" else f" --name {cluster.name}"
        terminal.line(f"\n  {way.url}\n")
        terminal.line("The URL holds the token: whoever has it can run code on the cluster.")
        terminal.line(f"The tunnel stays open; `hvdctl jupyter{suffix} --stop` closes it.")

    terminal.result({"cluster": cluster.name, "url": way.url, "port": way.port, "moved": way.moved}, render)
    if browser and not (_has_screen() and _browse(jupyter.page(cluster, way.url).as_uri())):
        terminal.say("no browser was opened: open the URL yourself")


def _stop(cluster: Cluster, terminal: Terminal) -> None:
    from hvdctl import jupyter

    cluster.spec()
    was = jupyter.close(cluster)
    said = "the tunnel is closed; JupyterLab goes on, with its kernels" if was else "there is no tunnel"
    terminal.result({"cluster": cluster.name, "closed": was}, lambda: terminal.line(said))


def _status(cluster: Cluster, terminal: Terminal) -> None:
    from hvdctl import jupyter

    told = jupyter.status(cluster)

    def render() -> None:
        terminal.line(f"Tunnel  {_tunnel(told['tunnel'])}")
        terminal.line(f"Server  {_server(told)}")
        closed = not told["problem"] and not told["tunnel"]["running"]
        if hint := told["hint"] or (f"`hvdctl jupyter --name {cluster.name}` opens it" if closed else ""):
            terminal.line(f"    → {hint}")

    terminal.result(told, render)
    if not (told["tunnel"]["open"] and (told["server"] or {}).get("answers")):
        raise typer.Exit(1)


def _tunnel(told: dict[str, Any]) -> str:
    if not told["running"]:
        return "closed"
    if told["open"]:
        again = f" (opened again: {told['rebuilt']})" if told["rebuilt"] else ""
        return f"open on 127.0.0.1:{told['port']}{again}"
    return f"being opened again on 127.0.0.1:{told['port']}: {told['problem'] or 'connecting'}"


def _server(told: dict[str, Any]) -> str:
    server = told["server"]
    if server is None:
        return f"not reached: {told['problem']}"
    if told["problem"]:
        return f"none: {told['problem']}"
    if server["answers"]:
        return "answers"
    state = "starting" if server["running"] else "not running"
    return ": ".join([state, *server["log"][-2:]])


def _has_screen() -> bool:
    """Whether there can be a window; a browser that would take over this terminal does not count."""
    import os
    import sys

    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _browse(address: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
