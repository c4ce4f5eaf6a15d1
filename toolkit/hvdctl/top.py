"""What every node uses, as it goes: a stream of documents from the head, which asks the nodes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from collections.abc import Iterator
from typing import IO, Any, Protocol, cast

from hvdctl import jobs, process, ssh
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, UsageError

LEAST, MOST = 0.2, 60.0
# Beyond the interval: the first document may wait for nodes that don't answer.
_PATIENCE = 40.0


class Keys(Protocol):
    """What the user presses meanwhile."""

    def fileno(self) -> int: ...

    def leave(self) -> bool:
        """Whether what was pressed means the end; called when there is something to read."""


def check_interval(every: float) -> None:
    if not LEAST <= every <= MOST:
        raise UsageError(
            f"--every {every:g} is not an interval of {LEAST:g} to {MOST:g} seconds", hint="for example --every 2"
        )


def documents(
    cluster: Cluster, *, every: float = 1.0, count: int | None = None, keys: Keys | None = None
) -> Iterator[dict[str, Any]]:
    """{"time", "nodes": [...]} at every interval; a node without a sample has `lost`, the reason.

    All of it ends on every node when this generator is closed, or when hvdctl ends.
    """
    check_interval(every)
    head = ssh.pick(cluster)
    if jobs.lost(cluster, [head.name]):
        raise _lost(cluster, head.name, "it does not run")  # at once, where a login would be tried for seconds
    words = ["hvd-agent", "top", "--every", f"{every:g}", *(["--count", str(count)] if count else [])]
    with _talk(cluster, head.name, words) as talk:
        stdout, rest, told = cast(IO[bytes], talk.stdout), b"", 0
        while told != count:
            watched: list[Any] = [stdout, *([keys] if keys else [])]
            ready = select.select(watched, [], [], every + _PATIENCE)[0]
            if keys and keys in ready and keys.leave():
                return
            if not ready:
                raise _lost(cluster, head.name, f"it said nothing for {every + _PATIENCE:.0f} s")
            data = os.read(stdout.fileno(), 1 << 16) if stdout in ready else None
            if data == b"":
                raise _ended(cluster, head.name, talk, rest)
            *lines, rest = (rest + (data or b"")).split(b"\n")
            for line in lines:
                yield _document(cluster, head.name, line)
                told += 1


@contextlib.contextmanager
def _talk(cluster: Cluster, head: str, words: list[str]) -> Iterator[subprocess.Popen[Any]]:
    talk = process.start(
        ssh.argv(cluster, head, words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        yield talk
    finally:
        talk.terminate()
        for stream in (talk.stdout, talk.stderr):
            cast(IO[bytes], stream).close()
        talk.wait()


def _document(cluster: Cluster, head: str, line: bytes) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(line)
    except ValueError:
        raise HvdctlError(f"{head} said what is no sample: {line.decode(errors='replace')[:200]!r}") from None
    if "error" in document:
        older = "no verb" in document["error"]
        raise HvdctlError(
            f"{head} can't watch the nodes: {'its image is of an older hvdctl' if older else document['error']}",
            hint=_anew(cluster) if older else "",
        )
    return document


def _ended(cluster: Cluster, head: str, talk: subprocess.Popen[Any], rest: bytes) -> HvdctlError:
    said = cast(IO[bytes], talk.stderr).read() + rest
    lines = said.decode(errors="replace").strip().splitlines()
    code = talk.wait()
    return _lost(cluster, head, lines[-1] if lines else f"the connection was cut (exit code {code})")


def _lost(cluster: Cluster, head: str, why: str) -> HvdctlError:
    return HvdctlError(f"the head, {head}, is lost: {why}", hint=_anew(cluster))


def _anew(cluster: Cluster) -> str:
    return f"`hvdctl up --name {cluster.name}` makes it anew"
