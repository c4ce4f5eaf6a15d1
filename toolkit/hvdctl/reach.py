"""Which nodes reach which, on ports of the kind that Horovod takes: asked of all pairs before a job has to find out."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from hvdctl import process, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError

_PATIENCE = 45.0


@dataclass(frozen=True)
class Reach:
    """What became of connections from each node to each other one: `ok`, else the reason."""

    nodes: tuple[str, ...]
    pairs: dict[tuple[str, str], str]

    @property
    def blocked(self) -> dict[tuple[str, str], str]:
        return {pair: said for pair, said in self.pairs.items() if said != "ok"}

    def matrix(self) -> str:
        """From row to column, for people."""
        width = max(len(name) for name in (*self.nodes, "blocked"))
        rows = [["", *self.nodes]]
        for source in self.nodes:
            row = ["-" if source == target else self._word(source, target) for target in self.nodes]
            rows.append([source, *row])
        return "\n".join("  " + "  ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)

    def _word(self, source: str, target: str) -> str:
        return "ok" if self.pairs.get((source, target)) == "ok" else "blocked"


def probe(cluster: Cluster, nodes: Sequence[Node]) -> Reach:
    """Have every node listen and call every other one, over one login each, side by side."""
    names = tuple(node.name for node in nodes)
    if len(nodes) < 2:
        return Reach(names, {})
    deadline = time.monotonic() + _PATIENCE
    with contextlib.ExitStack() as stack:
        talks = {node.name: stack.enter_context(_talk(cluster, node.name)) for node in nodes}
        ports = {name: _answer(name, talk, "ports", deadline) for name, talk in talks.items()}
        listening = {node.name: [node.private_address, ports[node.name]] for node in nodes}
        for name, talk in talks.items():
            peers = {peer: place for peer, place in listening.items() if peer != name}
            _say(name, talk, {"peers": peers})
        reached = {name: _answer(name, talk, "reached", deadline) for name, talk in talks.items()}
    return Reach(names, {(name, peer): _judged(said) for name in names for peer, said in reached[name].items()})


def require(found: Reach, way_out: str) -> None:
    """Raise with the matrix where some pairs can't reach each other."""
    blocked = found.blocked
    if not blocked:
        return
    (source, target), why = next(iter(blocked.items()))
    raise HvdctlError(
        f"{len(blocked)} of {len(found.pairs)} connections that Horovod needs are blocked "
        f"(such as {source} to {target}: {why}); from row to column:\n{found.matrix()}",
        hint=way_out,
    )


@contextlib.contextmanager
def _talk(cluster: Cluster, node: str) -> Iterator[subprocess.Popen[Any]]:
    talk = process.start(
        ssh.argv(cluster, node, ["hvd-agent", "reach"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield talk
    finally:
        talk.terminate()
        for stream in (talk.stdin, talk.stdout, talk.stderr):
            with contextlib.suppress(OSError):
                cast(IO[bytes], stream).close()
        talk.wait()


def _say(node: str, talk: subprocess.Popen[Any], document: dict[str, Any]) -> None:
    stdin = cast(IO[bytes], talk.stdin)
    try:
        stdin.write(json.dumps(document).encode() + b"\n")
        stdin.flush()
    except OSError as error:
        raise HvdctlError(f"{node} hung up while its connections were tried: {error.strerror}") from None


def _answer(node: str, talk: subprocess.Popen[Any], key: str, deadline: float) -> Any:
    stdout = cast(IO[bytes], talk.stdout)
    left = max(0.0, deadline - time.monotonic())
    line = stdout.readline() if select.select([stdout], [], [], left)[0] else b""
    try:
        return json.loads(line)[key]
    except (ValueError, KeyError, TypeError):
        talk.terminate()
        said = cast(IO[bytes], talk.stderr).read().decode(errors="replace").strip().splitlines()
        told = line.decode(errors="replace").strip() or (said[-1] if said else f"no answer within {_PATIENCE:.0f} s")
        older = "no verb" in told
        raise HvdctlError(
            f"{node} can't try its connections: {'its image is of an older hvdctl' if older else told}",
            hint="`hvdctl up` makes the nodes anew" if older else "",
        ) from None


def _judged(ports: dict[str, str]) -> str:
    """One word on a pair: `ok` only where every port is."""
    wrong = {port: said for port, said in ports.items() if said != "ok"}
    if not ports:
        return "it listens on no port"
    if not wrong:
        return "ok"
    return "; ".join(f"port {port}: {said}" for port, said in wrong.items())
