"""Whether hosts can become nodes: one login to each, all at once, which changes nothing on them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Collection, Iterator, Sequence

from hvdctl import inventory, owner, scratch, ssh
from hvdctl.cluster import Cluster, Node, write
from hvdctl.providers import Access
from hvdctl.sites.hosts import Host

SUPPORTED = {"debian": (11,), "ubuntu": (22, 4)}
ROOM = 6 * 2**30
TIMED_OUT = 124

_PATIENCE = 45.0
# One line: a login shell may be csh, which takes no newline within quotes. The marks are there as a login shell may
# have words of its own to say.
_SCRIPT = "; ".join(
    (
        "PATH=$PATH:/usr/sbin:/sbin",
        "s=missing",
        "command -v sudo >/dev/null 2>&1 && { s=no; sudo -n true >/dev/null 2>&1 && s=yes; }",
        "[ -r /etc/os-release ] && . /etc/os-release",
        """at=$(ip -o -4 addr show to "$1" 2>/dev/null | awk '{sub(/@.*/, "", $2); print $2; exit}')""",
        'echo "hvdctl:sudo=$s"',
        'echo "hvdctl:os=$ID $VERSION_ID"',
        """echo "hvdctl:free=$(df -Pk / | awk 'NR == 2 {print $4}')" """,
        'echo "hvdctl:interface=$at"',
        'echo "hvdctl:mac=$(cat "/sys/class/net/$at/address" 2>/dev/null)"',
        """echo "hvdctl:addresses=$(ip -o -4 addr show 2>/dev/null | awk '$2 ~ /^lo$/ {next} {printf "%s ", $4}')" """,
        # The second one is beside data that was kept.
        'echo "hvdctl:owner=$(cat "/etc/hvdctl/$2/owner" "/srv/hvdctl/.$2.owner" 2>/dev/null | head -n 1)"',
        'echo "hvdctl:ours=$(sudo -n test -d "/etc/hvdctl/$2" 2>/dev/null && echo yes)"',
    )
)


def refusals(cluster: str, hosts: Sequence[Host], nodes: Sequence[Node], access: Access) -> list[str]:
    """A line for each thing that keeps a host from becoming its node: the host, what was tried, what to do."""
    answers = _ask(cluster, nodes, access)
    ours = marks(cluster)
    return [
        f"{node.name} ({host}): {problem}"
        for node, host, done in zip(nodes, hosts, answers, strict=True)
        for problem in problems(host, node.private_address, done, cluster, ours)
    ]


def marks(cluster: str) -> set[str]:
    """What says on a machine that it is part of this very cluster: the owner's mark, or that of earlier versions."""
    this = owner.known()
    return {mark for mark in (this.id if this else "", Cluster(cluster).key_mark()) if mark}


def _ask(cluster: str, nodes: Sequence[Node], access: Access) -> list[subprocess.CompletedProcess[str]]:
    """The answer of each host, with the very SSH settings that the cluster will have."""
    names = [inventory.ssh_host(node.name, node.kind) for node in nodes]
    keys = {name: access.host_keys[node.name] for name, node in zip(names, nodes, strict=True)}
    with scratch.folder() as folder:
        config, known = folder / "config", folder / "known_hosts"
        write(known, inventory.known_hosts(cluster, keys))
        # The cluster's own key is for its containers, which are not there yet.
        write(config, inventory.ssh_config(cluster, nodes, folder / "none", known, access))
        login = ssh.words(config)
        scripts = [shlex.join(["sh", "-c", _SCRIPT, "sh", node.private_address, cluster]) for node in nodes]
        commands = [[*login, name, "--", script] for name, script in zip(names, scripts, strict=True)]
        return ssh.gather(commands, timeout=_PATIENCE)


def problems(
    host: Host,
    private: str,
    done: subprocess.CompletedProcess[str],
    cluster: str = "",
    ours: Collection[str] = (),
) -> Iterator[str]:
    """Why a host can't be used, and what to do, from its answer or from what ssh said. Pure.

    `ours` are the marks of machines that this cluster may use.
    """
    facts = dict(re.findall(r"^hvdctl:(\w+)=(.*?) *$", done.stdout, re.MULTILINE))
    if "ours" not in facts:
        yield _unanswered(host, done)
        return
    if facts["sudo"] == "missing":
        yield "has no sudo; install it: apt-get install sudo"
    elif facts["sudo"] == "no":
        yield f"`sudo -n true` was refused; allow {host.user!r} sudo without a password"
    if not _supported(*facts["os"].partition(" ")[::2]):
        yield f"runs {facts['os'].strip() or 'an unknown system'}; it must be Debian 11, Ubuntu 22.04 or a later one"
    mark, _, whose = facts["owner"].partition(" ")
    if mark and mark not in ours:
        yield (
            f"is part of another cluster {cluster!r}{f', of {whose}' if whose else ''}; choose another --name, or "
            "`hvdctl down` where that one was made, or, if nobody uses it any more, "
            f"`sudo rm -f /etc/hvdctl/{cluster}/owner /srv/hvdctl/.{cluster}.owner` there"
        )
    # What stands there already took its room.
    if facts["ours"] != "yes" and (free := int(facts["free"] or 0) * 1024) < ROOM:
        yield f"has {free / 2**30:.1f} GiB free in /, {ROOM / 2**30:.0f} GiB are needed; make room"
    if not facts["interface"]:
        found = facts["addresses"] or "not known (`ip` of iproute2 shows none)"
        yield f"has no interface with {private}, its addresses are {found}; write the right one as `private_address`"
    elif host.mac and facts["mac"] != host.mac:
        yield f"has {private} on {facts['interface']} ({facts['mac']}), not on {host.mac}; mend `mac` or its network"


def _supported(system: str, version: str) -> bool:
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    return system in SUPPORTED and numbers >= SUPPORTED[system]


def _unanswered(host: Host, done: subprocess.CompletedProcess[str]) -> str:
    """What ssh said, in words that say what to do."""
    said = done.stderr
    # A jump host that is not logged in to takes the connection through it along; one that is says what failed.
    cut = "kex_exchange_identification" in said and "forwarding failed" not in said
    who = f"its jump host {host.proxy} " if host.proxy and cut else ""
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in said:
        seen = (re.findall(r"SHA256:[\w+/]+", said) or ["its fingerprint"])[0]
        return f"{who}shows another host key than the known one; only if {seen} is its own, put that key in its place"
    if "host key is known for" in said:
        return f"{who}shows a host key that is not known; log in once with ssh and compare its fingerprint"
    if "Permission denied" in said:
        return f"{who}refused the key; use another `options.key` or `user`, or ssh-add the key if it has a passphrase"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith("kex_exchange_identification")]
    reason = (reasons or lines or [f"exit code {done.returncode}"])[0]
    if done.returncode not in {ssh.LOST, TIMED_OUT}:
        return f"the login works, but its shell does not: {reason}; see that {host.user!r} may run sh"
    return f"{who}can't be reached: {reason}; see that it is up, and its address and port (~/.ssh/config is not read)"
