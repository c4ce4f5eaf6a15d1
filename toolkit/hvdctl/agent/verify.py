"""`verify`: whether this node is what was asked for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from . import hosts, store
from .launchers import ssh
from .store import AgentError
from .submit import agent


def main(argv: list[str]) -> int:
    """Reads what is expected on stdin, prints {"ok": bool, "problems": [...]}."""
    if argv:
        raise AgentError("usage: verify < request.json")
    problems = verify(store.request())
    store.answer({"ok": not problems, "problems": problems})
    return 0


def verify(wanted: dict[str, Any]) -> list[str]:
    """One line for everything that isn't as it should be.

    The head, which is told of `workers`, leaves a mark on the share and asks every one of them, over SSH as a
    launcher would.
    """
    problems = _share(wanted)
    problems += _link(wanted)
    problems += _names([*wanted.get("peers", []), *wanted.get("workers", [])])
    hostfile = Path(wanted.get("hostfile") or hosts.HOSTFILE).expanduser()
    if not hostfile.is_file():
        problems.append(f"{hostfile} is missing")
    return problems + _workers(wanted)


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
    if "workers" in wanted:
        try:
            mark.parent.mkdir(exist_ok=True)
            mark.write_text(store.here() + "\n")
        except OSError as error:
            return [f"{share} takes no files: {error.strerror}"]
    if not mark.is_file():
        return [f"{share} is not the one the head writes to: {mark} is missing here"]
    return []


def _link(wanted: dict[str, Any]) -> list[str]:
    # The interface on the cluster's network is the one that this node's own name leads to.
    interface, rate = wanted.get("interface") or hosts.interface_of(store.here()), wanted.get("rate")
    if interface is None:
        return [f"no interface has the address of {store.here()}"]
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


def _workers(wanted: dict[str, Any]) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor

    names = wanted.get("workers") or []
    if not names:
        return []
    asked = {key: value for key, value in wanted.items() if key != "workers"} | {"peers": [store.here()]}
    with ThreadPoolExecutor(min(len(names), 32)) as pool:
        found = pool.map(lambda name: _worker(name, json.dumps(asked)), names)
    return [f"{name}: {problem}" for name, problems in zip(names, found, strict=True) for problem in problems]


def _worker(name: str, asked: str) -> list[str]:
    try:
        done = subprocess.run(
            ssh(name, [*agent(), "verify"], stdin=True),
            input=asked,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return list(json.loads(done.stdout)["problems"])
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"no answer over SSH: {error}"]
    except (ValueError, KeyError):
        said = done.stderr.strip().splitlines()
        return [f"no answer over SSH: {said[-1] if said else f'exit code {done.returncode}'}"]
