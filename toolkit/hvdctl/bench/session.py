"""The ranks of a bench, started once and asked for one measurement after the other."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

from hvdctl import jobs, process, ssh
from hvdctl.bench.plan import LAUNCHERS, Layout
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, Interrupted, LockedError

WORKER = Path(__file__).parent / "worker"
# The last word is there to know them by: a user's own `python3 main.py` is none of ours.
COMMAND = ("python3", "main.py", "hvdctl-bench")
OURS = " ".join(COMMAND)
# How runs of a notebook's bench are told. They end with its kernel, so that none of them is ever left over.
NOTEBOOK = f"{OURS} notebook"
_GREETING_S = 180.0
_FAREWELL_S = 10.0
# Ranks that nobody asks end by themselves (worker/main.py); well before that they count as gone.
_IDLE_S = 240.0

Answer = dict[str, Any]
Listener = Callable[[Answer], None]


class PointFailed(HvdctlError):
    """This measurement can't be had; others may."""


class Talk:
    """Ranks that are up, wherever their agent is: `ask` them, then `close`.

    Who starts them says how the agent is reached.
    """

    layout: Layout
    run: int
    hello: Answer
    head: str

    def __init__(self, layout: Layout, pressed: Callable[[], int]) -> None:
        self.layout = layout
        self.pressed = pressed
        self.seq = 0
        self.purpose: object = None
        self.alive = self.busy = False
        self.used = time.monotonic()

    def agent(self, *words: str) -> list[str]:
        """The command line that calls the head's agent."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Tell ranks that wait for a request to leave."""
        raise NotImplementedError

    def state(self) -> str:
        """The state of the run."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End the run on all nodes."""
        raise NotImplementedError

    def greet(self) -> None:
        """Wait until the ranks are there."""
        self.alive = True
        try:
            self.hello = self.ask({"op": "hello"}, timeout=_GREETING_S)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], listen: Listener = lambda _: None, *, timeout: float = 3600) -> Answer:
        """What the ranks found; progress is handed on as it comes."""
        self.seq += 1
        self.busy = True
        stream = process.start(
            self.agent("ask", str(self.run)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            with cast(IO[bytes], stream.stdin) as stdin:
                stdin.write(json.dumps({**request, "seq": self.seq}).encode())
            found = self._listen(cast(IO[bytes], stream.stdout), listen, time.monotonic() + timeout)
            self.busy = False
            self.used = time.monotonic()
            return found
        except BrokenPipeError:
            pass
        finally:
            stream.terminate()
            stream.wait()
        said = cast(IO[bytes], stream.stderr).read().decode(errors="replace").strip()
        raise HvdctlError(f"{self.head} can't be reached: {said or 'the connection ended'}")

    @property
    def ready(self) -> bool:
        """Whether the ranks still wait for a request."""
        return self.alive and time.monotonic() - self.used < _IDLE_S

    def close(self) -> None:
        """End the ranks; without a word where the cluster is gone."""
        self.let_go()
        if not self.alive:
            return
        self.alive = False
        with contextlib.suppress(HvdctlError):
            deadline = time.monotonic() + _FAREWELL_S
            while not self.busy and time.monotonic() < deadline:
                if self.state() in jobs.FINAL:
                    return
                time.sleep(0.2)
            self.cancel()

    def _listen(self, output: IO[bytes], listen: Listener, deadline: float) -> Answer:
        buffer = b""
        while True:
            if self.pressed():
                raise Interrupted("interrupted")
            if time.monotonic() > deadline:
                raise PointFailed("the ranks gave no answer in time")
            if not select.select([output], [], [], 0.1)[0]:
                continue
            data = output.read1(1 << 16)  # type: ignore[attr-defined]
            if not data:
                raise BrokenPipeError
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                told = json.loads(line)
                match told.get("event"):
                    case "progress":
                        listen(told)
                    case "result":
                        return cast(Answer, told["found"])
                    case "error":
                        self.busy = False
                        raise PointFailed(str(told["reason"]))
                    case "ended":
                        self.alive = False
                        raise PointFailed(_why(told["run"]))
                    case _:
                        raise HvdctlError(f"run {self.run}: {told.get('error', line.decode(errors='replace'))}")


class Session(Talk):
    """Ranks of a cluster, started and asked over SSH."""

    def __init__(
        self,
        cluster: Cluster,
        layout: Layout,
        launcher: str,
        pressed: Callable[[], int],
        *,
        threads: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(layout, pressed)
        self.cluster = cluster
        self.head = ssh.pick(cluster).name
        self.holder: subprocess.Popen[bytes] | None = None
        job = jobs.Job(
            COMMAND,
            np=layout.ranks,
            launcher=LAUNCHERS[launcher],
            env={**(env or {}), "HVD_BENCH_LAUNCHER": launcher},
            workdir=WORKER,
            hosts=hosts(cluster, layout),
            threads=threads,
            tuned=False,
        )
        self.run = jobs.submit(cluster, jobs.prepare(cluster, job))
        self.holder = process.start(
            self.agent("hold", str(self.run)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.greet()

    def agent(self, *words: str) -> list[str]:
        return ssh.argv(self.cluster, self.head, ["hvd-agent", *words])

    def let_go(self) -> None:
        if self.holder is not None:
            # Its end is what tells ranks that wait for a request to leave.
            self.holder.terminate()
            self.holder.wait()
            self.holder = None

    def state(self) -> str:
        return str(jobs.show(self.cluster, self.run)["state"])

    def cancel(self) -> None:
        jobs.cancel(self.cluster, self.run)


def hosts(cluster: Cluster, layout: Layout) -> list[tuple[str, int]]:
    """The nodes that a layout takes, the head first."""
    return [(node.name, layout.slots) for node in cluster.nodes()[: layout.nodes]]


def end_leftovers(cluster: Cluster) -> list[int]:
    """End the ranks that a killed bench left waiting; their runs. Raise where a notebook measures, and end nothing."""
    active = {int(row["id"]): row["command"] for row in jobs.rows(cluster) if row["state"] not in jobs.FINAL}
    for run in (run for run, command in active.items() if command == NOTEBOOK):
        raise LockedError(
            f"a notebook measures on cluster {cluster.name!r} with bench(), run {run}",
            hint=f"wait for it, or interrupt its kernel; `hvdctl logs {run} --name {cluster.name}` shows what it does",
        )
    left = [run for run, command in active.items() if command == OURS]
    for run in left:
        jobs.cancel(cluster, run)
    return left


def _why(record: Mapping[str, Any]) -> str:
    """Why the run of these ranks ended, in one line."""
    failed = record.get("failed_rank") or {}
    tail = [line for line in failed.get("tail") or [] if line.strip()]
    if failed:
        said = f": {tail[-1].strip()}" if tail else ""
        return f"rank {failed['rank']} on {failed['node']} ended with exit code {failed['exit_code']}{said}"
    if record["state"] == "lost":
        return "the head was lost"
    return str(record.get("reason") or f"the ranks ended ({record['state']})")
