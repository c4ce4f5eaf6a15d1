"""The site `static`: machines that were there before hvdctl and stay after it, asked over SSH."""

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hvdctl import inventory, owner, ssh
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.providers import Access
from hvdctl.sites import probe
from hvdctl.sites.hosts import Host, host_keys, known_hosts, private_address
from hvdctl.spec import Delay

if TYPE_CHECKING:
    from hvdctl.spec import Spec

# What infra/static puts before the identity of its nodes.
ID = "static/"

_PATIENCE = 45.0
_NO_SUDO = 77
# One line, as login shells need it; see probe.py. Table and units have no cluster's name: they count where no other
# cluster has taken the machine since.
_LEFT = "; ".join(
    (
        f"sudo -n true || exit {_NO_SUDO}",
        # What another owner's cluster of the same name has there is none of ours.
        'o=$(sudo -n cat "/etc/hvdctl/$1/owner" "/srv/hvdctl/.$1.owner" 2>/dev/null | head -n 1)',
        'case " $2 " in *" ${o%% *} "*) ;; *) exit 0 ;; esac',
        'sudo -n docker ps -a --filter "label=hvdctl.cluster=$1" --format "left container {{.Names}}" 2>/dev/null',
        'sudo -n test -e "/etc/hvdctl/$1" && { echo "left folder /etc/hvdctl/$1"'
        ' && grep -q " /shared " /proc/mounts && echo "left mount /shared"; }',
        'e=/etc/exports.d/hvdctl-$1.exports; sudo -n test -e "$e" && echo "left export $e"',
        'sudo -n test -e "/srv/hvdctl/$1" && echo "left volume /srv/hvdctl/$1"',
        'sudo -n ls /etc/hvdctl 2>/dev/null | grep -qvx "$1" && exit 0',
        'sudo -n nft list table inet hvdctl >/dev/null 2>&1 && echo "left table inet hvdctl"',
        """systemctl list-unit-files --no-legend "hvdctl-*.service" 2>/dev/null | awk '{print "left unit " $1}'""",
        "exit 0",
    )
)


class Options(BaseModel):
    """Settings of machines that are there already."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    hosts: list[Host] = Field(default_factory=list, description="The machines, the head first.")
    key: str | None = Field(None, description="File of the private key that logs in; null: your own keys and agent.")
    firewall: bool = Field(True, description="Whether the machines refuse all but SSH from outside the cluster.")
    delay: Delay = Field(None, description="Added to every packet that a machine sends, such as 2ms.")

    @field_validator("key")
    @classmethod
    def _key(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("/", "~/")):
            raise ValueError(f"{value!r} is not the path of a private key; write it from / or from ~/")
        if value.endswith(".pub"):
            raise ValueError(f"{value!r} is the public key; name the private one, {value.removesuffix('.pub')}")
        return str(Path(value).expanduser())


def preflight(spec: Spec) -> None:
    """Log in to every host at once and raise, naming each that can't be used, before anything is changed."""
    hosts = _used(spec)
    _check_twice(_options(spec).hosts)
    _check_key(_options(spec).key)
    nodes = [_node(index, host) for index, host in enumerate(hosts)]
    _check_private(hosts, nodes)
    refused = probe.refusals(spec.name, hosts, nodes, access(spec))
    if refused:
        raise HvdctlError(
            "not all hosts can be used:" + "".join(f"\n  {line}" for line in refused),
            hint="nothing was changed on any of them; `hvdctl up` again when that is mended",
        )


def access(spec: Spec) -> Access:
    """The login key, and the host keys as the spec or known_hosts has them; raise where none of a host is known."""
    hosts = _used(spec)
    keys = host_keys(hosts)
    if unknown := [host for host, found in zip(hosts, keys, strict=True) if not found]:
        by_scan = "" if any(host.proxy for host in unknown) else ", or `ssh-keyscan` into known_hosts, and compare"
        raise UsageError(
            f"no host key is known of {', '.join(host.known_as for host in unknown)}, "
            "and hvdctl trusts none that it was not told",
            hint="`hvdctl import --scan --force FILE` (with the same flags as before) writes them into the spec and "
            f"shows their fingerprints to compare; or log in to each once with ssh{by_scan}",
        )
    key = _options(spec).key
    named = {f"node{index}": found for index, found in enumerate(keys)}
    return Access(named, Path(key) if key else None, known_hosts())


def settings(spec: Spec) -> dict[str, Any]:
    """The options, of the hosts that are used, with private addresses and host keys looked up."""
    found = access(spec).host_keys.values()
    hosts = [
        host.model_dump(mode="json") | {"private_address": private_address(host), "host_key": list(keys)}
        for host, keys in zip(_used(spec), found, strict=True)
    ]
    return _options(spec).model_dump(mode="json") | {"hosts": hosts}


def planned(spec: Spec) -> list[Node]:
    """The nodes that infra/static makes of the hosts, but for what the spec says of all nodes."""
    nodes = []
    for index, host in enumerate(settings(spec)["hosts"]):
        key = hashlib.sha256(host["host_key"][0].encode()).hexdigest()[:12]
        nodes.append(replace(_node(index, Host.model_validate(host)), id=f"{ID}{host['address']}:{host['port']}/{key}"))
    return nodes


def host_key_mark(node: Node) -> str:
    """What the identity of a node says of the host key of its machine."""
    return node.id.rpartition("/")[2]


def prepare(spec: Spec, progress: Progress) -> None:
    pass  # the machines are there


def watch(spec: Spec, step: Step) -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()


def observe(cluster: str, nodes: Sequence[str] | None = None) -> dict[str, str]:
    """What each machine says of the cluster's container; nothing of a cluster that has no folder here."""
    asked = ["docker", "ps", "-a", "--filter", f"label=hvdctl.cluster={cluster}", "--format", "{{.State}}"]
    return {name: _state(done) for name, done in _ask(cluster, ["sudo", "-n", *asked], nodes)}


def about(cluster: str) -> str:
    return ""


def hint(message: str) -> str:
    return ""


def leftovers(cluster: str) -> list[str]:
    """What hvdctl left on the machines, each as "kind node: thing"; a silent one counts, as it may hold everything."""
    found = []
    # No mark at all is one too: of machines that were set up before there were any.
    ours = "  ".join(("", *probe.marks(cluster), ""))
    for name, done in _ask(cluster, ["sh", "-c", _LEFT, "sh", cluster, ours]):
        if done.returncode:
            why = "sudo is refused" if done.returncode == _NO_SUDO else "unreachable"
            found.append(f"host {name}: {why}, nothing is known of it")
        marked = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("left ")]
        found += [f"{kind} {name}: {thing}" for _, kind, thing in marked]
    return found


def claims(cluster: str, spec: Spec | None = None) -> list[owner.Claim]:
    """None: `preflight` logs in to the machines, and refuses those of other owners itself."""
    return []


def ceded(cluster: str) -> list[str]:
    """The machines that are part of another owner's cluster of this name by now: there is nothing of ours to undo."""
    ours = probe.marks(cluster)
    told = _ask(cluster, ["sudo", "-n", "cat", f"/etc/hvdctl/{cluster}/owner"])
    marks = {name: done.stdout.split(" ")[0].strip() for name, done in told if done.returncode == 0}
    return [name for name, mark in marks.items() if mark and mark not in ours]


def sweep(cluster: str, *, keep_data: bool, step: Step) -> None:
    """Nothing: the teardown play has undone what it could, and what it could not undo is told by `leftovers`."""


def clusters() -> list[str]:
    """None: nobody can be asked which machines in the world have one; a cluster is known by its folder alone."""
    return []


def _options(spec: Spec) -> Options:
    own = spec.own()
    assert isinstance(own, Options)  # noqa: S101 - the registry gave it
    return own


def _used(spec: Spec) -> list[Host]:
    """The hosts that become nodes."""
    hosts = _options(spec).hosts
    if not hosts:
        raise UsageError(
            "provider static has no hosts",
            hint="`hvdctl import FILE` takes them from a manifest, an inventory or a list; or write `options.hosts`",
        )
    if spec.nodes > len(hosts):
        raise UsageError(
            f"nodes: {spec.nodes} asked, but options.hosts has {len(hosts)}",
            hint=f"add hosts, or use --nodes {len(hosts)}",
        )
    return hosts[: spec.nodes]


def _check_twice(hosts: Sequence[Host]) -> None:
    counted = Counter(host.known_as for host in hosts)
    if twice := [name for name, count in counted.items() if count > 1]:
        raise UsageError(f"options.hosts: {', '.join(twice)} stands there twice", hint="a machine is one node")


def _check_key(key: str | None) -> None:
    if key is None:
        return
    if not Path(key).is_file():
        raise UsageError(f"options.key: there is no file {key}", hint="write the path of the private key that logs in")
    mode = Path(key).stat().st_mode & 0o777
    if mode & 0o077:
        raise UsageError(
            f"options.key: {key} is open to others ({mode:04o}), so ssh refuses it", hint=f"chmod 600 {key}"
        )


def _check_private(hosts: Sequence[Host], nodes: Sequence[Node]) -> None:
    taken: dict[str, Host] = {}
    for host, node in zip(hosts, nodes, strict=True):
        if other := taken.get(node.private_address):
            raise UsageError(
                f"options.hosts: {other} and {host} both have the private address {node.private_address}",
                hint="write the address of each at which the other nodes reach it as its `private_address`",
            )
        taken[node.private_address] = host


def _node(index: int, host: Host) -> Node:
    return Node(
        id="",
        name=f"node{index}",
        role="worker" if index else "head",
        kind="machine",
        address=host.address,
        private_address=private_address(host),
        ssh_user=host.user,
        ssh_port=host.port,
        ssh_proxy=host.proxy,
        slots=1,
        gpus=0,
    )


def _ask(
    cluster: str, command: Sequence[str], nodes: Sequence[str] | None = None
) -> list[tuple[str, subprocess.CompletedProcess[str]]]:
    """The answer of every machine that hvdctl has configured for the cluster, or of those named, by its node's name."""
    folder = Cluster(cluster)
    names = [name for name in _machines(folder) if nodes is None or name in nodes]
    asked = (ssh.argv(folder, inventory.ssh_host(name, "machine"), command) for name in names)
    return list(zip(names, ssh.gather(asked, timeout=_PATIENCE), strict=True))


def _machines(folder: Cluster) -> list[str]:
    """The nodes of this provider that SSH has a way to."""
    if not folder.ssh_config.exists():
        return []
    try:
        return [node.name for node in folder.nodes() if node.id.startswith(ID)]
    except UsageError:
        # `down --force` works on damaged files too, and asks every site: what may be ours counts as ours.
        with contextlib.suppress(UsageError):
            if (folder.stored_spec() or {}).get("provider") != "static":
                return []
        return re.findall(r"^Host (node\d+)\.machine$", folder.ssh_config.read_text(), re.MULTILINE)


def _state(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode in {ssh.LOST, probe.TIMED_OUT}:
        return "unreachable"
    states = done.stdout.split() if done.returncode == 0 else []
    return "running" if "running" in states else (states or ["no container"])[0]
