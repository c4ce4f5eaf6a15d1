"""`top`: the samples of all nodes, a line of JSON for each interval, until the reader goes.

One `hvd-agent sample` on each node, over SSH as launchers do it. They end with their connection, and that ends with us.
A node that can't be reached is told as lost and tried again with growing pauses; the others go on.
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

from . import hosts, procs, store
from .launchers import ssh
from .sample import Options, parse
from .store import AgentError
from .submit import agent

_CLUSTER = "~/.hvdctl/cluster.json"
_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
_AT_ONCE = 16  # logins at their start
_SILENT_S = 20.0
# How long the first line waits for nodes that have not answered: less where others follow.
_FIRST_S = 3.0
_ONLY_S = 12.0
_TURN = 100  # nodes that this is enough for, a few logins at a time
_LONGEST_S = 35.0


def main(argv: list[str]) -> int:
    options = parse(argv, "top")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    watch = Watch(options)
    try:
        watch.run()
    finally:
        watch.close()
    return 0


def names() -> list[str]:
    """The nodes, the head first."""
    file = Path(os.environ.get("HVD_CLUSTER_FILE") or _CLUSTER).expanduser()
    try:
        return [str(node["name"]) for node in store.read(file)["nodes"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return hosts.listed()
    except OSError as error:
        told = f"{hosts.HOSTFILE} can't be read: {error.strerror}"
        raise AgentError(f"{told}; `top` runs on a node of a cluster") from None


class Source:
    """One node: its stream of samples, or why there is none and when it is tried again."""

    def __init__(self, name: str, options: Options) -> None:
        words = ["sample", "--every", f"{options.every:g}", *(["--machine"] if options.machine else [])]
        self.name = name
        self.argv = [*agent(), *words] if hosts.is_here(name) else ssh(name, [*agent(), *words])
        self.every = options.every
        self.child: subprocess.Popen[bytes] | None = None
        self.sample: dict[str, Any] | None = None
        self.lost = ""
        self.retry_at = 0.0
        self.heard_at = 0.0
        self._failures = 0
        self._line = b""
        self._said = b""
        self._refused = ""

    @property
    def settled(self) -> bool:
        return bool(self.sample or self.lost)

    @property
    def starting(self) -> bool:
        return self.child is not None and self.sample is None

    def start(self) -> list[int]:
        """Start it and return the descriptors to read."""
        self._line, self._said, self._refused = b"", b"", ""
        self.heard_at = time.monotonic()
        self.child = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=procs.dying_with_parent(signal.SIGTERM),
        )
        return [stream.fileno() for stream in (self.child.stdout, self.child.stderr) if stream]

    def read(self, descriptor: int) -> bool:
        """Take what has come; False at the end of it."""
        data = os.read(descriptor, 1 << 16)
        if self.child and self.child.stderr and descriptor == self.child.stderr.fileno():
            self._said = (self._said + data)[-2000:]
            return bool(data)
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._take(line)
        return bool(data)

    def fail(self, reason: str = "") -> None:
        """The stream has ended, or is ended here."""
        said = self._said.decode(errors="replace").strip().splitlines()
        self.lost = reason or self._refused or (said[-1].strip() if said else "the connection was cut")
        self.sample = None
        self.retry_at = time.monotonic() + _PAUSES[min(self._failures, len(_PAUSES) - 1)]
        self._failures += 1
        self.close()

    def close(self) -> None:
        if self.child is None:
            return
        child, self.child = self.child, None
        child.terminate()
        for stream in (child.stdout, child.stderr):
            if stream:
                stream.close()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def told(self, now: float) -> dict[str, Any]:
        silent = now - self.heard_at
        if self.sample is None or silent > 2 * self.every + 5:
            since = f"no sample for {silent:.0f} s" if self.sample else "no answer yet"
            return {"node": self.name, "lost": self.lost or since}
        return {**self.sample, "node": self.name}

    def _take(self, line: bytes) -> None:
        try:
            document = json.loads(line)
        except ValueError:
            return
        if "error" in document:
            older = "no verb" in document["error"]
            self._refused = "its image is of an older hvdctl" if older else str(document["error"])
        elif "cpu" in document:
            self.sample, self.lost, self._failures, self.heard_at = document, "", 0, time.monotonic()


class Watch:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.sources: dict[str, Source] = {}
        self.reading: dict[int, Source] = {}
        self.poll = select.poll()
        self.poll.register(sys.stdout.fileno(), 0)  # only whether its reader has gone

    def run(self) -> None:
        self._renew()
        began = time.monotonic()
        due, left = began, self.options.count
        turns = max(1.0, len(self.sources) / _TURN)
        patience = _FIRST_S if left is None else min(_ONLY_S * turns, _LONGEST_S)
        while left != 0:
            self._start()
            if not self._listen(0.25 if time.monotonic() >= due else due - time.monotonic()):
                return
            now = time.monotonic()
            settled = all(source.settled for source in self.sources.values()) or now - began > patience
            if now < due or not settled:
                continue
            self._tell(now)
            left = None if left is None else left - 1
            # From now on where this line came late: the next one does not follow on its heels.
            due = max(due, now - self.options.every / 2) + self.options.every
            self._renew()

    def close(self) -> None:
        # All are told before any is waited for.
        for source in self.sources.values():
            if source.child:
                source.child.terminate()
        for source in self.sources.values():
            source.close()

    def _renew(self) -> None:
        """Follow the cluster as it grows and shrinks; a file that is just being written is read the next time."""
        try:
            wanted = names()
        except AgentError:
            if not self.sources:
                raise
            return
        if not wanted and self.sources:
            return
        for gone in [name for name in self.sources if name not in wanted]:
            self._end(self.sources.pop(gone), "")
        self.sources = {name: self.sources.get(name) or Source(name, self.options) for name in wanted}

    def _start(self) -> None:
        now = time.monotonic()
        starting = sum(source.starting for source in self.sources.values())
        # Those that wait longest first: many that are lost must not keep the others from their turn.
        for source in sorted(self.sources.values(), key=lambda one: one.retry_at):
            if source.child and now - source.heard_at > _SILENT_S + 2 * source.every:
                self._end(source, f"no sample for {now - source.heard_at:.0f} s")
            if source.child is None and now >= source.retry_at and starting < _AT_ONCE:
                starting += 1
                for descriptor in source.start():
                    self.reading[descriptor] = source
                    self.poll.register(descriptor, select.POLLIN)

    def _listen(self, seconds: float) -> bool:
        """Read what comes; False when nobody reads what we say."""
        for descriptor, _ in self.poll.poll(max(0.0, min(seconds, 1.0)) * 1000):
            source = self.reading.get(descriptor)
            if descriptor == sys.stdout.fileno():
                return False
            if source is None or source.read(descriptor):
                continue
            # Of the two, stdout ends a stream: what stderr had to say has come by then, or comes now.
            if source.child and source.child.stdout and descriptor == source.child.stdout.fileno():
                with contextlib.suppress(OSError):
                    self._rest(source)
                self._end(source, "")
            else:
                self._forget(descriptor)
        return True

    def _rest(self, source: Source) -> None:
        stream = source.child.stderr if source.child else None
        ready = select.poll()
        if stream:
            ready.register(stream, select.POLLIN)
        while stream and stream.fileno() in self.reading and ready.poll(200):
            if not source.read(stream.fileno()):
                return

    def _end(self, source: Source, reason: str) -> None:
        for descriptor in [one for one, reader in self.reading.items() if reader is source]:
            self._forget(descriptor)
        source.fail(reason)

    def _forget(self, descriptor: int) -> None:
        del self.reading[descriptor]
        self.poll.unregister(descriptor)

    def _tell(self, now: float) -> None:
        nodes = [source.told(now) for source in self.sources.values()]
        told = [{**node, "role": "worker" if index else "head"} for index, node in enumerate(nodes)]
        store.answer({"time": store.now(), "nodes": told})
