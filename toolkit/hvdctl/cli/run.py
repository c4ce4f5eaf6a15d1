"""`hvdctl run`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdctl.cli import options as o

if TYPE_CHECKING:
    from hvdctl.cli.terminal import Terminal
    from hvdctl.cluster import Cluster


def run(
    command: Annotated[list[str], typer.Argument(help="-- COMMAND and its arguments.", metavar="-- COMMAND...")],
    np: Annotated[
        int | None, typer.Option("--np", help="Ranks (default: every slot).", metavar="N", parser=o.whole)
    ] = None,
    launcher: Annotated[
        str | None, typer.Option("--launcher", help="horovod (Gloo, the default), mpi or torch.", metavar="NAME")
    ] = None,
    env: o.EnvOption = None,
    env_file: o.EnvFileOption = None,
    workdir: Annotated[
        Path | None, typer.Option("--workdir", help="Folder to run in (default: this one).", metavar="DIR")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return at once; the job goes on.")] = False,
    name: o.NameOption = None,
    json: o.JsonOption = False,
) -> None:
    """Run a command on every slot, from this folder. Its exit code becomes hvdctl's.

    Example: `hvdctl run --np 4 -- python train.py --epochs 3`
    """
    from hvdctl import interrupts, jobs
    from hvdctl.cli.terminal import Terminal
    from hvdctl.profile import Profile

    terminal = Terminal(as_json=json)
    cluster = o.find_cluster(name)
    job = jobs.Job(command, np, launcher, o.environment(env, env_file), workdir)
    asked = jobs.prepare(cluster, job)
    if kept := Profile.of(cluster):
        terminal.say(f"profile of `hvdctl tune`: {kept}")
    with interrupts.counted() as pressed:
        number = jobs.submit(cluster, asked)
        if detach:
            how = f"`hvdctl logs -f {number} --name {cluster.name}` follows it"
            terminal.result({"id": number}, lambda: terminal.line(f"run {number} started; {how}"))
            return
        terminal.say(f"run {number} on {cluster.name!r}")
        watch(cluster, number, terminal, pressed)


def watch(
    cluster: Cluster, number: int, terminal: Terminal, pressed: Callable[[], int], rank: int | None = None
) -> None:
    """Show the output until the run ends, keep its record, leave with its exit code."""
    from hvdctl import jobs
    from hvdctl.cli.terminal import seconds

    # With --json, stdout is for the record alone.
    out = sys.stderr.buffer if terminal.as_json else sys.stdout.buffer

    def write(data: bytes) -> None:
        out.write(data)
        out.flush()

    record = jobs.follow(cluster, number, write, interrupts=pressed, say=terminal.say, rank=rank)
    if record is None:
        terminal.say(f"the head ends run {number}; `hvdctl jobs --name {cluster.name}` shows when it has")
        raise typer.Exit(jobs.CANCELLED)
    logs = kept(cluster, number, terminal)
    if terminal.as_json:
        terminal.result(record, lambda: None)
    jobs.judge(record, log=logs)
    took = record.get("duration_s") or max(0.0, time.time() - (record.get("started") or time.time()))
    terminal.say(f"run {number} succeeded in {seconds(took)}" + (f"; logs: {logs}" if logs else ""))


def kept(cluster: Cluster, number: int, terminal: Terminal) -> Path | None:
    """Where the record and logs of a run are here; how it ended is told in any case, such as on a full disk."""
    from hvdctl import collect
    from hvdctl.errors import HvdctlError

    try:
        return collect.fetch(cluster, number, terminal.say)
    except (HvdctlError, OSError) as error:
        terminal.say(f"the logs of run {number} stay on the share: {getattr(error, 'message', error)}")
        return None
