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
from hvdctl.errors import HvdctlError, Interrupted

WORKER = Path(__file__).parent / "worker"
# The last word is there for `is_ours` alone: a user's own `python3 main.py` is none of ours.
COMMAND = ("python3", "main.py", "hvdctl-bench")
_GREETING_S = 180.0
_FAREWELL_S = 10.0
# Ranks that nobody asks end by themselves (worker/main.py); well before that they count as gone.
_IDLE_S = 240.0

Answer = dict[str, Any]
Listener = Callable[[Answer], None]


class PointFailed(HvdctlError):
    """This measurement can't be had; others may."""


class Session:
    """Ranks that are up; `ask` them, then `close`."""

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
        self.cluster = cluster
        self.layout = layout
        self.pressed = pressed
        self.seq = 0
        self.purpose: object = None
        self.alive = self.busy = False
        self.holder: subprocess.Popen[bytes] | None = None
        self.used = time.monotonic()
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
        self.alive = True
        self.holder = process.start(
            ssh.argv(cluster, ssh.pick(cluster).name, ["hvd-agent", "hold", str(self.run)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.hello = self.ask({"op": "hello"}, timeout=_GREETING_S)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any], listen: Listener = lambda _: None, *, timeout: float = 3600) -> Answer:
        """What the ranks found; progress is handed on as it comes."""
        self.seq += 1
        self.busy = True
        head = ssh.pick(self.cluster).name
        stream = process.start(
            ssh.argv(self.cluster, head, ["hvd-agent", "ask", str(self.run)]),
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
        raise HvdctlError(f"{head} can't be reached: {said or 'the connection ended'}")

    @property
    def ready(self) -> bool:
        """Whether the ranks still wait for a request."""
        return self.alive and time.monotonic() - self.used < _IDLE_S

    def close(self) -> None:
        """End the ranks; without a word where the cluster is gone."""
        if self.holder is not None:
            # Its end is what tells ranks that wait for a request to leave.
            self.holder.terminate()
            self.holder.wait()
            self.holder = None
        if not self.alive:
            return
        self.alive = False
        with contextlib.suppress(HvdctlError):
            deadline = time.monotonic() + _FAREWELL_S
            while not self.busy and time.monotonic() < deadline:
                if jobs.show(self.cluster, self.run)["state"] in jobs.FINAL:
                    return
                time.sleep(0.2)
            jobs.cancel(self.cluster, self.run)

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


def hosts(cluster: Cluster, layout: Layout) -> list[tuple[str, int]]:
    """The nodes that a layout takes, the head first."""
    return [(node.name, layout.slots) for node in cluster.nodes()[: layout.nodes]]


def end_leftovers(cluster: Cluster) -> list[int]:
    """End the ranks that a killed bench left waiting; their runs."""
    left = [row for row in jobs.rows(cluster) if row["state"] not in jobs.FINAL and is_ours(row["command"])]
    for row in left:
        jobs.cancel(cluster, int(row["id"]))
    return [int(row["id"]) for row in left]


def is_ours(command: str) -> bool:
    return command == " ".join(COMMAND)


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
