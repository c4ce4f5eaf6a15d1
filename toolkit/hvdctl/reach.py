"""Which nodes reach which, on ports of the kind that Horovod takes: asked of all pairs before a job has to find out."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdctl import inventory, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError

_PATIENCE = 45.0
# What a node needs for each of the others, at most: a few at a time, it tries a few ports of each.
_PER_PEER = 0.125


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
    """Have every node listen, then call every other one; a bounded number of logins at a time."""
    names = tuple(node.name for node in nodes)
    if len(nodes) < 2:
        return Reach(names, {})
    patience = _PATIENCE + _PER_PEER * len(nodes)
    # Longer than any pause between two that call.
    words = ["listen", str(len(nodes) - 1), str(math.ceil(2 * patience))]
    ports = _asked(cluster, dict.fromkeys(names, words), "ports", patience)
    places = {"nodes": {node.name: [node.private_address, ports[node.name]] for node in nodes}}
    word = inventory.packed(places)
    reached = _asked(cluster, {name: ["call", name, word] for name in names}, "reached", patience)
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


def _asked(cluster: Cluster, words: Mapping[str, Sequence[str]], key: str, patience: float) -> dict[str, Any]:
    """What each node answers to its words; raise for the first that gives no such answer."""
    commands = [ssh.argv(cluster, name, ["hvd-agent", "reach", *more]) for name, more in words.items()]
    answers = ssh.gather(commands, timeout=patience)
    return {name: _answer(name, done, key) for name, done in zip(words, answers, strict=True)}


def _answer(node: str, done: subprocess.CompletedProcess[str], key: str) -> Any:
    try:
        return json.loads(done.stdout)[key]
    except (ValueError, KeyError, TypeError):
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        told = said[-1] if said else f"exit code {done.returncode}"
        older = "no verb" in told or "usage: reach" in told
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
