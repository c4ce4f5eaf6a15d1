"""`run`: a function of the notebook on many ranks, as a run of the node's agent.

Horovod's own `horovod.run` takes a function too, but is not built on here. Looked at in Horovod 0.28.1, and tried: what
a rank raised comes back as "one or more processes exited with non-zero status", its traceback is only printed; ranks
on other nodes go on when the kernel is killed; nothing can be told while it runs; function and results are pickles that
pass an HTTP server without a key. A run of the agent is seen by `hvdctl jobs` and `hvdctl logs`, names the rank that
failed first, and is ended as a whole, on every node. The agent starts the ranks with Horovod's launcher all the same.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hvd_cluster import calls
from hvd_cluster.errors import ClusterError, RankError, WrongType, WrongValue
from hvd_cluster.facts import Facts, facts, share
from hvd_cluster.runs import Run

Live = Callable[[dict[str, Any]], None]


def run(
    func: Callable[..., Any],
    np: int | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    live: Live | None = None,
    timeout: float | None = None,
    quiet: bool = False,
) -> list[Any]:
    """Call a function on `np` ranks (default: all slots) and return what each of them returned, by rank.

        def where():
            import os
            import horovod.torch as hvd
            hvd.init()
            return hvd.rank(), os.uname().nodename

        hc.run(where)            # [(0, 'node0'), (1, 'node1')]

    The function goes to the ranks by value, with all of the notebook that it uses; modules are imported there. What
    ranks print is shown as it comes (not with `quiet`). They don't inherit the notebook's environment; `env` adds
    variables to theirs. `live` is given every record that ranks send with `report`: a `LivePlot`, or any function of a
    dictionary. Where a rank fails, all are ended and RankError tells which, where and why. Interrupting the kernel, or
    `timeout` in seconds, ends the run on all nodes.

    Ranks start in the notebook's own folder where that is on the share, else in /shared.
    """
    known = facts()
    packed = _checked(func, args, kwargs, env, live, timeout)
    request = request_for(known, ranks_of(np, known), name=_name(func), env=env)
    return execute(request, packed, live=live, timeout=timeout, quiet=quiet)


def execute(
    request: dict[str, Any], packed: bytes, *, live: Live | None, timeout: float | None, quiet: bool
) -> list[Any]:
    """Run what is packed; the results by rank."""
    call = calls.Call.create(packed, request["np"])
    request["command"] = ["python3", "-m", "hvd_cluster.worker", str(call.folder)]
    if live is not None:
        request["env"]["HVD_LIVE"] = str(call.folder)
    shown = Shown()
    write = (lambda _: None) if quiet else shown.write
    try:
        with Run(request, call.folder) as started:
            try:
                _watch(started, call, write, live, timeout)
            finally:
                shown.close(started.id)
            return _results(started.record, call, started)
    finally:
        shutil.rmtree(call.folder, ignore_errors=True)


def _watch(
    started: Run, call: calls.Call, write: Callable[[str], None], live: Live | None, timeout: float | None
) -> None:
    """Until the run has ended: output to the cell, reports to the listener."""
    from hvd_cluster.listening import Reports

    reports = Reports(call) if live is not None else None
    deadline = time.monotonic() + timeout if timeout is not None else None
    for text in started.output():
        if text:
            write(text)
        if reports is not None and live is not None:
            for record in reports.new():
                live(record)
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"run {started.id} took longer than {timeout:g} s and was ended on all ranks")
    if reports is not None and live is not None:
        for record in reports.rest():
            live(record)
    close = getattr(live, "close", None)
    if callable(close):
        close()


def _results(record: Mapping[str, Any], call: calls.Call, started: Run) -> list[Any]:
    state, run_id = record["state"], started.id
    if state == "succeeded":
        found = [call.outcome(rank, patient=True) for rank in range(call.np)]
        for rank, outcome in enumerate(found):
            if outcome is None:
                told = f"it ended without a result; `hvdctl logs {run_id} --rank {rank}` shows what it said"
                raise RankError(told, rank=rank, node=started.node_of(rank), run=run_id)
        whole = [cast(dict[str, Any], outcome) for outcome in found]
        return [calls.value_of(outcome, rank, started.node_of(rank), run_id) for rank, outcome in enumerate(whole)]
    if state == "cancelled":
        raise ClusterError(f"run {run_id} was cancelled")
    if state == "lost":
        raise ClusterError(f"run {run_id} was lost: its supervisor ended; `hvdctl status` tells what stands")
    raise _failure(record, call, started)


def _failure(record: Mapping[str, Any], call: calls.Call, started: Run) -> ClusterError:
    """The error of the rank that failed first, with its own words."""
    failed = record.get("failed_rank") or {}
    # The agent's word: a rank that was killed raised nothing, and what others raised is that they lost it.
    rank = failed["rank"] if failed else _first_that_raised(call)
    if rank is None:
        said = started.unshown()
        return ClusterError(f"run {started.id} failed: {record.get('reason')}" + (f"\n{said}" if said else ""))
    node = started.node_of(rank)
    outcome = call.outcome(rank, patient=True)
    if outcome is None or outcome["ok"]:
        tail = "\n".join(failed.get("tail") or [])
        return RankError(_ended(failed), rank=rank, node=node, run=started.id, traceback=tail)
    trace = _with_cells(outcome["traceback"])
    error = RankError(outcome["text"], rank=rank, node=node, run=started.id, traceback=trace)
    if outcome["error"] is not None:
        import pickle

        try:
            error.__cause__ = pickle.loads(outcome["error"])  # noqa: S301 - from our own rank
        except Exception:
            error.__cause__ = None
    return error


def _first_that_raised(call: calls.Call) -> int | None:
    outcomes = ((rank, call.outcome(rank, patient=False)) for rank in range(call.np))
    return next((rank for rank, outcome in outcomes if outcome and not outcome["ok"]), None)


def _ended(failed: Mapping[str, Any]) -> str:
    code = int(failed["exit_code"])
    told = f"it ended with exit code {code}"
    if code == 137:
        told += ": it was killed, mostly because memory ran out"
    elif code in (134, 135, 136, 139):
        told += ": its program crashed"
    return f"{told}; its last words:" if failed.get("tail") else told


def _with_cells(trace: str) -> str:
    """The traceback with cells named as the notebook names them."""
    import re

    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)

    def named(found: re.Match[str]) -> str:
        known = name_of(found[1])
        return " ".join(known) if known else found[1] if found[1].startswith("Cell In[") else found[0]

    return re.sub(r'File "([^"]*)"', named, trace)


def _checked(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    env: Mapping[str, str] | None,
    live: Live | None,
    timeout: float | None,
) -> bytes:
    """The packed function; all that is wrong is told before anything starts."""
    if not callable(func):
        hint = "; leave out the parentheses: run(train), not run(train())" if func is None else ""
        raise WrongType(f"run() takes a function, not {type(func).__name__}{hint}")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise WrongType(f"args is a list or tuple of arguments, not {type(args).__name__}: write args=({args!r},)")
    if live is not None and not callable(live):
        raise WrongType(f'live is a LivePlot("loss") or a function of a record, not {type(live).__name__}')
    if timeout is not None and not timeout > 0:
        raise WrongValue(f"timeout is a number of seconds above 0, not {timeout!r}")
    for name, value in (env or {}).items():
        if not isinstance(value, str):
            raise WrongType(f"env maps names to text: write {{{name!r}: {str(value)!r}}}")
    return calls.pack(func, args, kwargs or {})


def ranks_of(np: int | None, known: Facts) -> int:
    """How many ranks are meant, where the cluster has room for them."""
    slots = known.nodes.slots
    if np is None:
        return slots
    if isinstance(np, bool) or not isinstance(np, int):
        raise WrongType(f"np is a whole number of ranks, not {np!r}")
    if not 1 <= np <= slots:
        raise WrongValue(
            f"np={np}: the cluster has {slots} slots on {len(known.nodes)} nodes; use np=1 to {slots}, "
            "or `hvdctl scale --nodes N` for more nodes"
        )
    return np


def request_for(known: Facts, np: int, *, name: str, env: Mapping[str, str] | None) -> dict[str, Any]:
    """What the agent is asked to start, as hvdctl itself would ask for it."""
    if os.environ.get("HVDCTL_RANK"):
        raise ClusterError("this is a rank of a run: it can't start another one; call run() in the notebook")
    hosts: list[tuple[str, int]] = []
    left = np
    for node in known.nodes:
        if left and node.slots:
            hosts.append((node.name, min(left, node.slots)))
            left -= hosts[-1][1]
    return {
        "user_command": name,
        "np": np,
        "launcher": "horovod",
        "hosts": hosts,
        "env": {**known.env, **(env or {})},
        "workdir": str(_workdir()),
        "interface": known.interface,
        "threads": threads(known, hosts),
        "after": known.after,
    }


def threads(known: Facts, hosts: Sequence[tuple[str, int]]) -> int | None:
    """Of each rank: its share of a node's CPUs; None where the node has cores of its own, and knows them."""
    cpus = known.cpus or ((os.cpu_count() or 1) / len(hosts) if known.one_machine else None)
    return max(1, int(cpus / max(taken for _, taken in hosts))) if cpus else None


def _workdir() -> Path:
    here = Path.cwd()
    return here if share() in (here, *here.parents) else share()


def _name(func: Callable[..., Any]) -> str:
    return f"notebook: run({getattr(func, '__name__', type(func).__name__)})"


class Shown:
    """What a cell shows of the ranks' output: so much that a browser can bear it, and how to see the rest."""

    def __init__(self, most: int = 500_000) -> None:
        self.room = most
        self.left_out = 0

    def write(self, text: str) -> None:
        if len(text) > self.room:
            whole = text[: self.room].rfind("\n") + 1
            self.left_out += text.count("\n", whole)
            text, self.room = text[:whole], 0
        self.room -= len(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    def close(self, run: int) -> None:
        if self.left_out:
            sys.stdout.write(f"... {self.left_out} more lines; `hvdctl logs {run}` shows all\n")
            sys.stdout.flush()
