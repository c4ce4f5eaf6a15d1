"""`verify`: whether this node is what was asked for."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from . import store
from .hosts import is_here
from .launchers import ssh
from .store import AgentError

_HOSTFILE = "~/hostfile"


def main(argv: list[str]) -> int:
    """Reads what is expected on stdin, prints {"ok": bool, "problems": [...]}."""
    if argv:
        raise AgentError("usage: verify < request.json")
    problems = verify(store.request())
    store.answer({"ok": not problems, "problems": problems})
    return 0


def verify(wanted: dict[str, Any]) -> list[str]:
    """One line for everything that isn't as it should be."""
    problems = _share(wanted)
    if wanted.get("interface"):
        problems += _link(wanted["interface"], wanted.get("rate"))
    problems += _names(wanted.get("peers") or [])
    hostfile = Path(wanted.get("hostfile") or _HOSTFILE).expanduser()
    if not hostfile.is_file():
        problems.append(f"{hostfile} is missing")
    if wanted.get("ssh"):
        problems += _login(wanted.get("head") or (wanted.get("peers") or ["node0"])[0])
    return problems


def _share(wanted: dict[str, Any]) -> list[str]:
    share = Path(wanted.get("share") or "/shared")
    if not share.is_dir():
        return [f"{share} is not there"]
    if not os.access(share, os.R_OK | os.W_OK | os.X_OK):
        return [f"{share} is not writable"]
    if not wanted.get("nonce"):
        return []
    mark = share / ".hvdctl" / str(wanted["nonce"])
    if mark.parent != share / ".hvdctl" or mark.name in ("", ".", ".."):
        raise AgentError(f"{wanted['nonce']!r} is not a file name")
    if wanted.get("write"):
        try:
            mark.parent.mkdir(exist_ok=True)
            mark.write_text(store.here() + "\n")
        except OSError as error:
            return [f"{share} takes no files: {error.strerror}"]
    if not mark.is_file():
        return [f"{share} is not the one the head writes to: {mark} is missing here"]
    return []


def _link(interface: str, rate: int | None) -> list[str]:
    try:
        shown = subprocess.run(["hvd-link", interface, "show"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"the link rate of {interface} can't be read: {error}"]
    if shown.returncode != 0:
        return [shown.stderr.strip() or f"hvd-link {interface} show failed"]
    found, asked = shown.stdout.strip(), "none" if rate is None else str(rate)
    return [] if found == asked else [f"the link rate of {interface} is {found}, not {asked}"]


def _names(peers: list[str]) -> list[str]:
    problems = []
    for name in peers:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            problems.append(f"the name {name} doesn't resolve")
    return problems


def _login(head: str) -> list[str]:
    if is_here(head):
        return []
    try:
        done = subprocess.run(ssh(head, ["true"]), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"ssh {head}: {error}"]
    said = done.stderr.strip().splitlines()
    return [] if done.returncode == 0 else [f"ssh {head}: {said[-1] if said else 'failed'}"]
