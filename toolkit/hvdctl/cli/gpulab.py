"""`hvdctl gpulab emulate`."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdctl.cli.options import JsonOption, number, whole

if TYPE_CHECKING:
    from hvdctl.cli.terminal import Terminal
    from hvdctl.gpulab.emulator.serve import Ready

app = typer.Typer(
    help="GPULab on this machine.\n\nExample: `hvdctl gpulab emulate`", no_args_is_help=True, rich_markup_mode=None
)


# Without it a group of one command would be that command.
@app.callback()
def _group() -> None:
    pass


@app.command()
def emulate(
    port: Annotated[
        int,
        typer.Option("--port", help="Port on 127.0.0.1 (default: that of last time).", metavar="PORT", parser=whole),
    ] = 0,
    plain_http: Annotated[bool, typer.Option("--plain-http", help="No TLS: everybody is the user tester.")] = False,
    ssh_port: Annotated[
        int, typer.Option("--ssh-port", help="Port for SSH (default: that of last time).", metavar="PORT", parser=whole)
    ] = 0,
    workers: Annotated[
        Path | None,
        typer.Option("--workers", help="YAML list of the worker hosts (default: clusters 1 and 4).", metavar="FILE"),
    ] = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="Jobs on two workers share no network.")] = False,
    pace: Annotated[
        float, typer.Option("--pace", help="Seconds that a state takes.", metavar="SECONDS", parser=number)
    ] = 0.3,
    faults: Annotated[
        Path | None, typer.Option("--faults", help="YAML list of faults; read when it changes.", metavar="FILE")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keys, logs and storage (default: in the cache).", metavar="DIR")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a server like GPULab's on loopback, each job a container; until Ctrl-C.

    Example: `hvdctl gpulab emulate --pace 0`
    """
    import sys

    from hvdctl import paths
    from hvdctl.cli.terminal import Terminal
    from hvdctl.errors import ToolMissing, UsageError

    if not 0 <= pace < 3600:
        raise UsageError(f"--pace {pace}: it is between 0 and an hour")
    for flag, given in (("--port", port), ("--ssh-port", ssh_port)):
        if not 0 <= given <= 65535:
            raise UsageError(f"{flag} {given}: a port is between 0 and 65535")
    try:
        from hvdctl.gpulab.emulator import serve
    except ModuleNotFoundError as error:
        raise ToolMissing(
            f"the emulator needs the package {error.name}",
            hint="`pip install aiohttp asyncssh` in the environment of hvdctl",
        ) from None
    terminal = Terminal(as_json=json)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # whoever reads a pipe waits for the lines
    settings = serve.Settings(
        folder=folder or paths.cache() / "gpulab-emulator",
        port=port,
        ssh_port=ssh_port,
        plain_http=plain_http,
        workers=workers,
        isolate=isolate,
        pace=pace,
        faults=faults,
    )
    serve.serve(
        settings,
        ready=lambda found: _tell(terminal, found),
        say=lambda text: None if json else terminal.line(text),
    )


def _tell(terminal: Terminal, found: Ready) -> None:
    if terminal.as_json:
        # One line: whoever starts an emulator can't wait for the end of its output.
        terminal.line(json_text(asdict(found), default=str))
        return
    terminal.line(f"GPULab, emulated: {found.url}, SSH on port {found.ssh_port}; Ctrl-C ends it.")
    terminal.line("GPUs are counted, not there.")
    terminal.line(f"Login: {found.login}")
    terminal.line()
    terminal.line("From another terminal:")
    terminal.line(f"  hvdctl up --file {found.spec} --layout 4x1")
    terminal.line("or imec's own client:")
    terminal.line(f"  export GPULAB_CERT={found.login}")
    if found.ca:
        terminal.line(f"  export GPULAB_SERVER_CERT={found.ca}")
        terminal.line(f"  gpulab-cli --custom-master-url {found.url} jobs")
    else:
        terminal.line(f"  export GPULAB_API_BASE={found.url}")
        terminal.line("  gpulab-cli jobs")
    terminal.line()
