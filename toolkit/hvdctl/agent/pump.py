"""Child processes and one log that takes all they say, line by line."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

from .output import LIMIT, untagged
from .procs import dying_with_parent

# What ended children left in their pipes comes at once; what comes later is from others that hold them open.
_DRAIN_S = 1.0


class Pump:
    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._selector = selectors.DefaultSelector()
        self._children: list[subprocess.Popen[bytes]] = []
        self._rest: dict[int, bytes] = {}
        self._ended_at: float | None = None
        self._before_exec = dying_with_parent(signal.SIGTERM)

    def __enter__(self) -> Pump:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        for descriptor in list(self._rest):
            self._close(descriptor)
        self._selector.close()
        os.close(self._log)

    def start(self, argv: list[str], environment: dict[str, str]) -> None:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",  # horovodrun takes its own folder along, unquoted, to every node
            start_new_session=True,
            preexec_fn=self._before_exec,
        )
        self._children.append(child)
        if child.stdout is not None:
            descriptor = os.dup(child.stdout.fileno())
            child.stdout.close()
            self._rest[descriptor] = b""
            self._selector.register(descriptor, selectors.EVENT_READ)

    def step(self, seconds: float) -> bool:
        """Take what has come, waiting at most so long; False when all children have ended and were heard."""
        if self._rest:
            for key, _ in self._selector.select(seconds):
                self._take(key.fd)
        else:
            time.sleep(min(seconds, 0.02))
        if None in [child.poll() for child in self._children]:
            return True
        self._ended_at = self._ended_at or time.monotonic()
        return bool(self._rest) and time.monotonic() - self._ended_at < _DRAIN_S

    def codes(self) -> list[int]:
        """The exit codes of the children that have ended, in the order of their start."""
        return [_code(child.returncode) for child in self._children if child.returncode is not None]

    def kill(self) -> None:
        """End what is left of the children, now."""
        for child in self._children:
            if child.poll() is None:
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def _take(self, descriptor: int) -> None:
        data = os.read(descriptor, LIMIT)
        if not data:
            self._close(descriptor)
            return
        *lines, rest = (self._rest[descriptor] + data).split(b"\n")
        if len(rest) > LIMIT:
            lines, rest = [*lines, rest], b""
        self._rest[descriptor] = rest
        self._write(lines)

    def _close(self, descriptor: int) -> None:
        rest = self._rest.pop(descriptor)
        if rest:
            self._write([rest])
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _write(self, lines: list[bytes]) -> None:
        data = b"".join(untagged(line) + b"\n" for line in lines)
        while data:
            try:
                data = data[os.write(self._log, data) :]
            except OSError:
                return  # a full disk must not stop the job


def _code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode
