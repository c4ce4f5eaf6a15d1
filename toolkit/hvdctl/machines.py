"""What the roles for machines are told, and the wait until machines can be logged in to."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdctl import images, inventory, process, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError
from hvdctl.progress import Step
from hvdctl.spec import Spec

# A machine that answers and refuses may still be booting; one that refuses for longer means it.
_REFUSED_PATIENCE = 45.0
_PATIENCE = 600.0
_LOOK_EVERY = 10.0
_FINAL = ("REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key verification failed")


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
        "nfs_share": spec.share,
        "firewall_enabled": getattr(spec.own(), "firewall", True),
        "horovod_image": image,
        "horovod_image_id": identity or "",
        "horovod_push_command": push if identity else [],
        "horovod_ssh_files": {"authorized_keys": str(key.public_file), "id_ed25519": str(key.private)},
        "horovod_host_keys_dir": str(cluster.host_key(nodes[0].name).private.parent),
        **net(spec, spec.net),
    }


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

    `observe` tells what stands, where the site can tell without logging in.
    """
    waiting = [node for node in nodes if node.kind == "machine"]
    deadline = time.monotonic() + patience
    left = {node.name for node in waiting}

    def one(node: Node) -> str | None:
        name, place = inventory.ssh_host(node.name, node.kind), f"{node.address}:{node.ssh_port}"
        refused = looked = None
        while True:
            said = _greeting(cluster, name)
            now = time.monotonic()
            if said is None:
                left.discard(node.name)
                step.update(f"{len(waiting) - len(left)} of {len(waiting)} answer")
                return None
            if said in _FINAL:
                return f"{name} ({place}) shows another host key than the known one"
            if "Permission denied" in said:
                refused = refused or now
                if now - refused > _REFUSED_PATIENCE:
                    return f"{name} ({place}) refuses the key for {node.ssh_user!r}: {said}"
            if now > deadline:
                return f"{name} ({place}) can't be reached after {patience:.0f} s: {said}"
            if observe and now - (looked or 0) > _LOOK_EVERY:
                looked = now
                if observe(cluster.name).get(node.name) != "running":
                    return f"{name} has ended"
            time.sleep(0.3)

    step.update(f"0 of {len(waiting)} answer")
    with ThreadPoolExecutor(max(1, min(len(waiting), 64))) as pool:
        problems = [problem for problem in pool.map(one, waiting) if problem]
    if problems:
        raise HvdctlError("; ".join(problems), hint="`hvdctl up` goes on from here when that is mended")


def _greeting(cluster: Cluster, name: str) -> str | None:
    """Nothing where a login works, else ssh's last words."""
    (done,) = process.gather([ssh.argv(cluster, name, ["true"])], timeout=30)
    if done.returncode == 0:
        return None
    for word in _FINAL:
        if word in done.stderr:
            return word
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
