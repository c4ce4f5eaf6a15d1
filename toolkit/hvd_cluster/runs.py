"""One run of the node's agent, from here: started, followed, and ended with us."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from hvd_cluster import guard
from hvd_cluster.errors import ClusterError
from hvd_cluster.worker import FAILED

_TAGGED = re.compile(r"\[rank \d+ \S+\] ")
_LOOK_S = 0.1
_CANCEL_S = 60.0
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")
_FAMILIES = ("LC_", "HVD_", "NVIDIA_", "CUDA_")


class Guard:
    """A run that is ended on all nodes when we end, however that is; `release` it when that is no longer wanted."""

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        self.id = 0
        self._process = _start([sys.executable, "-I", guard.__file__], stdin=subprocess.PIPE, env=_plain())
        try:
            stdin, stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
            stdin.write(json.dumps({"request": request, "folder": str(folder)}).encode() + b"\n")
            stdin.flush()
            answer = _json(stdout.readline())
            if "id" not in answer:
                raise ClusterError(f"the node's agent refused the run: {answer.get('error') or 'no reason given'}")
            self.id = int(answer["id"])
        except BaseException:
            self.release(done=False)
            raise

    def release(self, *, done: bool) -> None:
        """Let go; a run that is not done is ended first, and what it had on the share removed."""
        stdin = cast(IO[bytes], self._process.stdin)
        with contextlib.suppress(BrokenPipeError, ValueError):
            stdin.write(guard.DONE if done else b"")
            stdin.close()
        try:
            self._process.wait(_CANCEL_S)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"run {self.id} has not ended yet; `hvdctl cancel {self.id}` tries again\n")
        cast(IO[bytes], self._process.stdout).close()


class Run:
    """A run under way; left by whatever error, an interrupt too, it is ended on all nodes first."""

    def __init__(self, request: dict[str, Any], folder: Path) -> None:
        self._hosts = request["hosts"]
        self._ended = False
        self._beside: list[str] = []
        self.record: dict[str, Any] = {}
        """How it ended, when all of its output has come."""
        self._guard = Guard(request, folder)
        self.id = self._guard.id

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended and kind is not None and issubclass(kind, KeyboardInterrupt):
            sys.stdout.write(f"ending run {self.id} on all ranks\n")
            sys.stdout.flush()
        self._guard.release(done=self._ended)

    def output(self) -> Iterator[str]:
        """What ranks say, whole lines with their tags; empty text now and then, while they say nothing."""
        follower = _start(["hvd-agent", "follow", str(self.id)], stdin=subprocess.DEVNULL)
        stream = cast(IO[bytes], follower.stdout).fileno()
        rest, failed = b"", False
        try:
            while True:
                if not select.select([stream], [], [], _LOOK_S)[0]:
                    yield ""
                    continue
                data = os.read(stream, 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                told = []
                for line in (line.decode(errors="replace") for line in lines):
                    tag = _TAGGED.match(line)
                    if tag is None:
                        self._beside.append(line)
                        continue
                    if not failed and line != f"{tag[0]}{FAILED}":
                        told.append(f"{line.removesuffix(FAILED)}\n")
                    # When a rank has failed, what others say is about their being ended; all of it stays in the logs.
                    failed = failed or line.endswith(FAILED)
                yield "".join(told)
            code = follower.wait()
        finally:
            follower.kill()
            follower.wait()
        if code:
            raise ClusterError(f"the output of run {self.id} can't be read; `hvdctl logs {self.id}` shows it")
        self.record = agent("show", str(self.id))
        # One that lost its supervisor may have ranks that are still there.
        self._ended = self.record["state"] != "lost"

    def node_of(self, rank: int) -> str:
        return node_of(self._hosts, rank)

    def unshown(self) -> str:
        """The last words of the launcher, which are no rank's."""
        return "\n".join(line for line in self._beside if line.strip())[-2000:]


def node_of(hosts: Sequence[tuple[str, int]], rank: int) -> str:
    """The node that a rank runs on: hosts are filled in order."""
    for host, slots in hosts:
        if rank < slots:
            return host
        rank -= slots
    raise IndexError(rank)


def agent(*words: str) -> Any:
    """The answer of the node's agent, an object or a list."""
    done = subprocess.run(
        ["hvd-agent", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False, start_new_session=True
    )
    answer = _json(done.stdout)
    problem = answer.get("error") if isinstance(answer, dict) else None
    if problem or done.returncode:
        raise ClusterError(f"hvd-agent {' '.join(words)}: {problem or done.stderr.decode(errors='replace')}")
    return answer


def _plain() -> dict[str, str]:
    """The environment that ranks inherit: that of a login, as for every other run.

    A kernel's own has what is meant for it alone, and perhaps secrets, which would stand on command lines of ssh.
    """
    return {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_FAMILIES)}


def _start(argv: list[str], *, stdin: int, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """In a session of its own: an interrupt of the kernel goes to its whole group."""
    try:
        return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, start_new_session=True, env=env)
    except FileNotFoundError:
        raise ClusterError(f"this is no node of a cluster: {argv[0]} is not here") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return {"error": data.decode(errors="replace").strip()}
