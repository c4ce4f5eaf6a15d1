"""`hvdctl status`."""

from __future__ import annotations

from hvdctl.cli import options as o


def status(name: o.NameOption = None, json: o.JsonOption = False) -> None:
    """Show what was asked, what stands, and which nodes are lost. Exit code 1 where the cluster is not whole.

    Example: `hvdctl status --json`
    """
    from hvdctl import links, overview
    from hvdctl.cli.terminal import Terminal, counted

    terminal = Terminal(as_json=json)
    told = overview.status(o.find_cluster(name).name)

    def render() -> None:
        spec = told["spec"]
        terminal.line(
            f"Cluster {told['cluster']!r}: {told['state']}  "
            f"({spec['provider']}, {counted(spec['nodes'], 'node')} asked, net {spec['net']}, {spec['framework']})"
        )
        if told["about"]:
            terminal.line(told["about"])
        if told["link"]:
            terminal.line(f"Link {links.Measured(**told['link'])}")
        if told["jupyter"]["open"]:
            how = f"`hvdctl jupyter --name {told['cluster']}` prints the URL"
            terminal.line(f"JupyterLab on 127.0.0.1:{told['jupyter']['port']}; {how}")
        rows = [(n["name"], n["role"], n["state"], n["place"], n["slots"]) for n in told["nodes"]]
        terminal.table(("node", "role", "state", "address", "slots"), rows)

    terminal.result(told, render)
    if told["state"] != "up":
        from hvdctl.errors import HvdctlError

        what = f"lost: {', '.join(told['lost'])}" if told["lost"] else "the cluster is half-made"
        raise HvdctlError(what, hint=f"`hvdctl up --name {told['cluster']}` makes it whole")
