"""`rank`: the wrapper that each rank's command runs in.

It tags and keeps the output, records the end, and sees to it that the command never outlives its launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import procs, store
from .blame import lost_a_peer
from .environment import of_command, rank_of
from .launchers import Request
from .output import LIMIT, Lines, tail
from .store import AgentError
from .submit import COMMAND

_LOOK_S = 0.5  # how often to look whether the launcher is still there
_BAR_S = 2.0  # how often to show a progress bar that is under way
_IDLE_S = 0.2  # after the command's end: silence this long means that all was read
_DRAIN_S = 1.0
_LINGER_S = 2.0
_ROOM = 2048  # for the record of the end, on a share that the job itself has filled


def main(argv: list[str]) -> int:
    """`rank ID [-- COMMAND...]`: ends with the exit code of the command, the run's own by default."""
    if not argv:
        raise AgentError("usage: rank ID [-- COMMAND ...]")
    folder = store.find(argv[0])
    command = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    return Rank(folder, command).run()


class Rank:
    def __init__(self, folder: Path, command: list[str]) -> None:
        record = store.read(folder / "run.json")
        self.folder = folder
        user = store.read(folder / "env.json", most=None)
        hidden = user.pop(COMMAND, None)
        self.command = command or (json.loads(hidden) if hidden else record["command"])
        self.workdir = record.get("workdir")
        self.request = Request.of(record)
        self.rank = rank_of(record["launcher"], os.environ)
        self.node = self.request.host_of(self.rank)
        self.env = of_command(os.environ, user, self.request, self.rank, len(os.sched_getaffinity(0)))
        self._log = os.open(folder / f"rank-{self.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._tag = f"[rank {self.rank} {self.node}] "
        self._lines = Lines()
        self._lineage = procs.lineage()
        self._told_at: float | None = None
        self._bar_at = time.monotonic()
        self._deaf = False

    def run(self) -> int:
        started = store.now()
        self._record(started)
        wakeup = self._catch_signals()
        problem = None
        try:
            child = self._start()
        except OSError as error:
            code, problem = self._not_started(error)
        else:
            code = self._accompany(child, wakeup)
        self._say(self._lines.close())
        os.close(self._log)
        follows = code != 0 and lost_a_peer(tail(self.folder / f"rank-{self.rank}.log"))
        self._record(started, exit_code=code, ended=store.now(), problem=problem, lost_a_peer=follows)
        # What the command left running, in this session or out of it, ends with it.
        procs.end(procs.marks(f"HVDCTL_RUN={self.request.id}", f"HVDCTL_RANK={self.rank}"), procs.GRACE)
        if follows:
            # The launcher ends all ranks when it hears of a failure: let it hear of the cause first.
            select.select([wakeup], [], [], _LINGER_S)
        return code

    def _start(self) -> subprocess.Popen[bytes]:
        if self.workdir:
            os.chdir(self.workdir)
        return subprocess.Popen(
            self.command,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=procs.dying_with_parent(signal.SIGKILL),
        )

    def _not_started(self, error: OSError) -> tuple[int, str]:
        program = self.command[0]
        if error.filename == self.workdir and self.workdir:
            code, problem = 1, f"can't enter the working directory {self.workdir}: {error.strerror}"
        elif isinstance(error, FileNotFoundError):
            code, problem = 127, f"command not found: {program}"
        else:
            code, problem = 126, f"can't run {program}: {error.strerror}"
        self._keep(f"hvd-agent: {problem}\n".encode())
        return code, f"{problem} (rank {self.rank} on {self.node})"

    def _catch_signals(self) -> int:
        """A descriptor that delivers the numbers of the signals that came."""
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)
        return reader

    def _accompany(self, child: subprocess.Popen[bytes], wakeup: int) -> int:
        """Pass on output and signals until the command has ended."""
        stdout = child.stdout.fileno() if child.stdout else -1
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        poll.register(stdout, select.POLLIN)
        while child.poll() is None:
            ready = dict(poll.poll(_LOOK_S * 1000))
            if stdout in ready and not self._take(stdout):
                poll.unregister(stdout)
            if wakeup in ready:
                for signum in os.read(wakeup, 64):
                    if signum != signal.SIGCHLD:
                        self._tell(child, signum)
            self._look(child)
        self._drain(stdout)
        while select.select([wakeup], [], [], 0)[0]:
            os.read(wakeup, 64)
        return child.returncode if child.returncode >= 0 else 128 - child.returncode

    def _look(self, child: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if self._told_at is None and (self._deaf or procs.orphaned(self._lineage)):
            self._tell(child, signal.SIGTERM)
        elif self._told_at is not None and now - self._told_at > procs.GRACE:
            self._group(child, signal.SIGKILL)
        if now - self._bar_at > _BAR_S:
            self._bar_at = now
            bar = self._lines.bar()
            self._say([bar] if bar else [])

    def _tell(self, child: subprocess.Popen[bytes], signum: int) -> None:
        self._told_at = self._told_at or time.monotonic()
        # Without its connection a rank has nobody left to hang up on: SIGTERM is what programs clean up for.
        self._group(child, signal.SIGTERM if signum == signal.SIGHUP else signum)

    def _group(self, child: subprocess.Popen[bytes], signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signum)

    def _take(self, stdout: int) -> bool:
        data = os.read(stdout, LIMIT)
        self._keep(data)
        return bool(data)

    def _drain(self, stdout: int) -> None:
        """Read what the command wrote before it ended, but don't wait for others that hold its pipe open."""
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline and poll.poll(_IDLE_S * 1000):
            if not self._take(stdout):
                return

    def _keep(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full share must not stop the job
            os.write(self._log, data)
        self._say(self._lines.feed(data))

    def _say(self, lines: list[str]) -> None:
        if not lines or self._deaf:
            return
        try:
            sys.stdout.buffer.write("".join(f"{self._tag}{line}\n" for line in lines).encode())
            sys.stdout.buffer.flush()
        except OSError:
            self._deaf = True  # nobody listens any more: the launcher or the connection has gone

    def _record(self, started: float, **end: Any) -> None:
        record = {"rank": self.rank, "node": self.node, "pid": os.getpid(), "exit_code": None}
        record |= {"started": started, "ended": None, "told_to_end": self._told_at is not None}
        try:
            store.write(self.folder / f"rank-{self.rank}.json", record | end, room=_ROOM)
        except OSError as error:
            sys.stderr.write(f"hvd-agent: rank {self.rank} can't record its state: {error}\n")
