"""Host keys asked of the hosts themselves. Nobody vouches for them: the user is shown the fingerprints to compare."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from hvdctl import inventory, process, scratch, ssh
from hvdctl.cluster import write
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.sites.hosts import OPENSSH, Host, in_known_hosts, known_hosts, preference

_PATIENCE = 30.0


def scan(hosts: Sequence[Host], key: Path | None = None) -> list[list[str]]:
    """The host keys that each host shows, as `type base64`; raise where one shows none, or not the known one."""
    with scratch.folder() as folder:
        commands = [_command(host, key, folder / str(index)) for index, host in enumerate(hosts)]
        answers = process.gather(commands, timeout=_PATIENCE)
        # ssh-keyscan prints the keys; ssh, which alone goes through jump hosts, keeps them in a file.
        texts = [
            _text(folder / f"{index}.known_hosts") if host.proxy else answer.stdout
            for index, (host, answer) in enumerate(zip(hosts, answers, strict=True))
        ]
    found = [_keys(text) for text in texts]
    silent = [
        f"{host} ({(answer.stderr.strip().splitlines() or ['no answer'])[0]})"
        for host, keys, answer in zip(hosts, found, answers, strict=True)
        if not keys
    ]
    if silent:
        unknown = _unknown_hops([host for host, keys in zip(hosts, found, strict=True) if not keys])
        hint = (
            f"the host key of {', '.join(unknown)} on the way is not known here: log in to it once with ssh, then again"
            if unknown
            else "see that these are up and can be reached from here"
        )
        raise HvdctlError(f"no host key from {', '.join(silent)}", hint=f"{hint}; nothing was written")
    _check_known(hosts, found)
    return found


def fingerprint(key: str) -> str:
    """As `ssh-keygen -l` shows it."""
    kind, _, data = key.partition(" ")
    digest = hashlib.sha256(base64.b64decode(data)).digest()
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _command(host: Host, key: Path | None, base: Path) -> list[str]:
    if host.proxy is None:
        words = ["-T", "10", "-p", str(host.port), "-t", "ed25519,ecdsa,rsa", host.address]
        return [process.tool("ssh-keyscan", OPENSSH), *words]
    # The key exchange is enough: no way to log in is tried. The jump hosts are as strict as ever.
    own = base.with_suffix(".known_hosts")
    identity = [f"IdentityFile {inventory.quoted(key)}"] if key else []
    theirs = " ".join(map(inventory.quoted, known_hosts())) or "/dev/null"
    lines = [
        "Host scanned",
        f"HostName {host.address}",
        f"Port {host.port}",
        f"ProxyJump {host.proxy}",
        "HostKeyAlias scanned",
        "StrictHostKeyChecking accept-new",
        "HashKnownHosts no",
        f"UserKnownHostsFile {inventory.quoted(own)}",
        "PreferredAuthentications none",
        "Host *",
        f"UserKnownHostsFile {theirs}",
        *identity,
        *inventory.STRICT,
    ]
    write(base, "\n".join(lines) + "\n")
    return [*ssh.words(base), "-l", host.user, "scanned", "true"]


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _keys(text: str) -> list[str]:
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return sorted({" ".join(words[1:3]) for words in lines if len(words) >= 3}, key=preference)


def _unknown_hops(hosts: Sequence[Host]) -> list[str]:
    """The jump hosts to these that known_hosts has no key of."""
    words = [hop.rpartition("@")[2] for host in hosts for hop in (host.proxy or "").split(",") if hop]
    parts = [re.fullmatch(r"\[?(.+?)\]?(?::(\d+))?", word) for word in words]
    # Unchecked: the form of a jump host was checked as that of its host.
    hops = [Host.model_construct(address=part[1], port=int(part[2] or 22)) for part in parts if part]
    return [name for name, keys in in_known_hosts(hops).items() if not keys]


def _check_known(hosts: Sequence[Host], found: Sequence[Sequence[str]]) -> None:
    """Raise where known_hosts has another key of the same kind."""
    known = in_known_hosts(hosts)
    for host, keys in zip(hosts, found, strict=True):
        for key in keys:
            kind = key.partition(" ")[0]
            same = [old for old in known[host.known_as] if old.partition(" ")[0] == kind]
            if same and key not in same:
                raise UsageError(
                    f"{host} shows another host key than your known_hosts has: {fingerprint(key)}",
                    hint=f"only if that is its own: `ssh-keygen -R '{host.known_as}'`, and again; nothing was written",
                )
