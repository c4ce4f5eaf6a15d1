"""What the roles for machines are told, and the wait until machines can be logged in to."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hvdctl import images, inventory, owner, process, providers, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError
from hvdctl.progress import Step
from hvdctl.spec import Spec

# A machine that answers and refuses may still be booting; one that refuses for longer means it.
_REFUSED_PATIENCE = 45.0
_PATIENCE = 600.0
_LOOK_EVERY = 10.0
# Where one machine is refused for good, the others have this long to be named with it.
_GRACE = 5.0
_AT_ONCE = 64
_PAUSE = 0.3
_GREETING_PATIENCE = 30.0
_REFUSED = ("REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key verification failed")
_STRANGER = "shows another host key than the known one"
_STRANGE_JUMP = f"is behind a jump host that {_STRANGER}"


def names(nodes: Sequence[Node]) -> list[str]:
    """The machines of those nodes that have one, by their names in SSH."""
    return [inventory.ssh_host(node.name, node.kind) for node in nodes if node.kind == "machine"]


def variables(cluster: Cluster, spec: Spec, nodes: Sequence[Node], image: str) -> dict[str, Any]:
    """The variables of the roles for machines; none where there are none."""
    found = names(nodes)
    if not found:
        return {}
    key, identity = cluster.key(), images.identity(image)
    push = [sys.executable, "-m", "hvdctl.imagepush", str(cluster.ssh_config), image]
    push += [f"{name}={node.private_address}" for name, node in zip(found, nodes, strict=True)]
    return {
        "base_owner": " ".join(owner.this().labels.values()),
        "base_owners": [mark] if (mark := cluster.key_mark()) else [],
        "nfs_share": spec.share,
        "firewall_enabled": getattr(spec.own(), "firewall", True),
        "firewall_closed": list(getattr(spec.own(), "closed", ())),
        "horovod_image": image,
        "horovod_image_id": identity or "",
        "horovod_push_command": push if identity else [],
        "horovod_ssh_files": {"authorized_keys": str(key.public_file), "id_ed25519": str(key.private)},
        # Whoever has lent a machine decides when it is started anew.
        "nvidia_reboot": not providers.REGISTRY[spec.provider].keeps_machines,
        "horovod_host_keys_dir": str(cluster.host_key(nodes[0].name).private.parent),
        **net(spec, spec.net),
    }


def packages(spec: Spec, mark: str) -> str:
    """The folder on the share whose packages kernels and ranks import. Pure.

    On a share that others use too it is the owner's own: what they install there must not run in our ranks.
    """
    own = spec.share == "auto" and not providers.REGISTRY[spec.provider].keeps_share
    return "/shared/python" if own else f"/shared/.hvdctl/{mark}/python"


def net(spec: Spec, rate: int | None) -> dict[str, Any]:
    """The variables of the role that shapes links."""
    return {"net_rate": rate, "net_delay": getattr(spec.own(), "delay", None)}


def wait(
    cluster: Cluster,
    nodes: Sequence[Node],
    step: Step,
    observe: Callable[[str], dict[str, str]] | None,
    patience: float = _PATIENCE,
) -> None:
    """Return when every machine can be logged in to; raise, naming each, where one can't or has ended.

    `observe` tells what stands, where the site can tell without logging in; it only makes the wait for one that has
    ended shorter, so an error of it is none of the wait.
    """
    waiting = [node for node in nodes if node.kind == "machine"]
    step.update(f"0 of {len(waiting)} answer")
    each = _Wait(cluster, observe, patience)
    told = process.apart(each.problem, waiting)
    left = {node.name: node for node in waiting}
    problems: dict[str, str] = {}
    until: float | None = None
    try:
        while left:
            try:
                index, problem = told.get(timeout=until and max(0, until - time.monotonic()))
            except queue.Empty:
                break
            node = left.pop(waiting[index].name)
            if isinstance(problem, Exception):
                raise problem
            if problem:
                problems[node.name] = problem
                until = until or time.monotonic() + _GRACE
            step.update(f"{len(waiting) - len(left) - len(problems)} of {len(waiting)} answer")
    finally:
        each.over.set()
    if problems:
        problems |= {name: f"{_place(node)} does not answer yet" for name, node in left.items()}
        found = [problems[node.name] for node in waiting if node.name in problems]
        raise HvdctlError("; ".join(found), hint="`hvdctl up` goes on from here when that is mended")


class _Wait:
    """The wait for each machine, in a thread of its own; the site is asked by one of them for all."""

    def __init__(self, cluster: Cluster, observe: Callable[[str], dict[str, str]] | None, patience: float) -> None:
        self.cluster, self.observe, self.patience = cluster, observe, patience
        self.deadline = time.monotonic() + patience
        self.over = threading.Event()
        self._turn = threading.Semaphore(_AT_ONCE)
        self._looking = threading.Lock()
        self._looked: float | None = None
        self._seen: dict[str, str] | None = None

    def problem(self, node: Node) -> str | None:
        """Why the machine can't be used; None when it can be logged in to."""
        name = inventory.ssh_host(node.name, node.kind)
        refused = None
        while True:
            with self._turn:
                said = _greeting(self.cluster, name)
            now = time.monotonic()
            if said is None:
                return None
            if said in {_STRANGER, _STRANGE_JUMP}:
                return f"{_place(node)} {said}"
            if "Permission denied" in said:
                refused = refused or now
                if now - refused > _REFUSED_PATIENCE:
                    return f"{_place(node)} refuses the key for {node.ssh_user!r}: {said}"
            if now > self.deadline:
                return f"{_place(node)} can't be reached after {self.patience:.0f} s: {said}"
            if self._ended(node):
                return f"{name} has ended"
            if self.over.wait(_PAUSE):
                return None

    def _ended(self, node: Node) -> bool:
        """Whether the site, when it was last asked, had no such machine running."""
        # Who does not come to ask goes on: the answer may take long.
        if self.observe and self._looking.acquire(blocking=False):
            if self._looked is None or time.monotonic() - self._looked > _LOOK_EVERY:
                try:
                    self._seen = self.observe(self.cluster.name)
                except Exception:
                    self._seen = None  # asked again at the next look
                self._looked = time.monotonic()
            self._looking.release()
        seen = self._seen
        return seen is not None and seen.get(node.name) != "running"


def _place(node: Node) -> str:
    return f"{inventory.ssh_host(node.name, node.kind)} ({node.address}:{node.ssh_port})"


def _greeting(cluster: Cluster, name: str) -> str | None:
    """Nothing where a login works, else ssh's last words."""
    try:
        done = process.capture(ssh.argv(cluster, name, ["true"]), timeout=_GREETING_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"no answer within {_GREETING_PATIENCE:.0f} s"
    if done.returncode == 0:
        return None
    if any(word in done.stderr for word in _REFUSED):
        # A jump host that is not logged in to takes the connection through it along.
        return _STRANGE_JUMP if "kex_exchange_identification" in done.stderr else _STRANGER
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
