"""Ansible inventories, INI or YAML, as Ansible itself reads them."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hvdctl import paths, process, scratch
from hvdctl.errors import PhaseError, UsageError
from hvdctl.importers.found import Imported, Source

_HINT = "`ansible-inventory --graph -i FILE` shows what Ansible makes of it"
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"
_SECRETS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password", "ansible_become_password")


def read(source: Source, user: str | None = None, group: str | None = None, key: str | None = None) -> Imported:
    """The hosts of a group, by default all, in the order of the inventory."""
    listed = _listed(source)
    chosen = group or "all"
    groups = sorted(name for name in listed if name not in {"_meta", "all", "ungrouped"})
    if chosen not in listed and chosen != "ungrouped":
        raise UsageError(f"{source.name} has no group {chosen!r}", hint=f"it has: {', '.join(groups) or 'none'}")
    names = list(dict.fromkeys(_members(listed, chosen)))
    if not names:
        raise UsageError(f"{source.name} has no hosts in {chosen!r}", hint=_HINT)
    variables = {name: listed["_meta"]["hostvars"].get(name, {}) for name in names}
    notes: list[str] = []
    hosts = [_host(name, variables[name], source.name, user, notes) for name in names]
    slots = _slots(variables, source.name)
    login = None if key else _key(variables, source.name, groups if group is None else [])
    return Imported(hosts, slots, key=login, notes=list(dict.fromkeys(notes)), source=source.name)


def _listed(source: Source) -> dict[str, Any]:
    """All groups and variables. Only files are read: a script or plugin of the inventory's choice is never run."""
    # It lies beside the interpreter, which need not be on PATH.
    program = Path(sys.executable).parent / "ansible-inventory"
    plugin = "yaml" if source.path and source.path.suffix.lower() in {".yml", ".yaml"} else "ini,yaml"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    with scratch.folder() as home:
        done = process.capture(
            [program, "--list", "--inventory", str((source.path or Path()).absolute())],
            env=kept
            | {
                "ANSIBLE_CONFIG": str(paths.asset("playbooks", "ansible.cfg")),
                "ANSIBLE_HOME": str(home),
                "ANSIBLE_INVENTORY_ENABLED": plugin,
                "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
                "ANSIBLE_NOCOLOR": "1",
            },
            timeout=120,
        )
    if done.returncode:
        raise UsageError(f"{source.name} is not an inventory that Ansible can read: {_reason(done.stderr)}", hint=_HINT)
    try:
        listed: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise PhaseError(f"ansible-inventory gave no answer for {source.name}") from None
    return listed


def _reason(said: str) -> str:
    """Why, of all that Ansible says."""
    why = re.findall(r"Failed to parse inventory with '\w+' plugin: (.+)", said) or said.strip().splitlines()[-1:]
    return "".join(why[:1]).removeprefix("Failed to parse inventory: ")


def _members(listed: dict[str, Any], group: str) -> Iterator[str]:
    entry = listed.get(group, {})
    yield from entry.get("hosts", [])
    for child in entry.get("children", []):
        yield from _members(listed, child)


def _host(name: str, given: dict[str, Any], source: str, user: str | None, notes: list[str]) -> dict[str, Any]:
    def value(*keys: str) -> Any:
        found = next((given[key] for key in keys if given.get(key) is not None), None)
        if isinstance(found, str) and "{{" in found:
            raise UsageError(f"{source}: {keys[0]} of {name} is a template, {found!r}", hint="write its value")
        return found

    if str(value("ansible_connection") or "ssh") not in {"ssh", "smart", "paramiko", "paramiko_ssh"}:
        raise UsageError(
            f"{source}: {name} is not reached by SSH, but by {given['ansible_connection']!r}",
            hint="choose others by --group",
        )
    if secrets := [key for key in _SECRETS if key in given]:
        notes.append(f"{', '.join(secrets)} is left out: hvdctl logs in with keys, and sudo must not ask")
    port = str(value("ansible_port", "ansible_ssh_port") or 22)
    if not re.fullmatch(r"\d{1,5}", port):
        raise UsageError(f"{source}: ansible_port of {name} is {port!r}, which is no number", hint="write a number")
    host: dict[str, Any] = {"address": str(value("ansible_host", "ansible_ssh_host") or name)}
    if login := user or value("ansible_user", "ansible_ssh_user"):
        host["user"] = str(login)
    if int(port) != 22:
        host["port"] = int(port)
    if private := value("hvd_private_address"):
        host["private_address"] = str(private)
    for key in _ARGUMENTS:
        words = str(value(key) or "")
        proxy, ignored = jump(words, f"{source}: {key} of {name}")
        if proxy:
            host["proxy"] = proxy
        if ignored:
            notes.append(f"{key} is not taken over: {shlex.join(ignored)}")
    return host


def jump(words: str, where: str) -> tuple[str | None, list[str]]:
    """The jump hosts in arguments of ssh, as ProxyJump has them, and the arguments that are not about that."""
    found, ignored = None, []
    for flag, value in _arguments(words, where):
        key, _, setting = re.sub(r"\s*[=\s]\s*", "=", value, count=1).partition("=")
        if flag == "F":
            raise UsageError(f"{where} has SSH settings in a file, {value}", hint="write user, port and proxy out")
        if flag == "J":
            found = value
        elif flag == "o" and key.lower() == "proxyjump":
            found = setting
        elif flag == "o" and key.lower() == "proxycommand":
            found = _hop(setting, where)
        else:
            ignored += [word for word in (f"-{flag}" if flag else "", value) if word]
    return (None if found in {None, "none"} else found), ignored


def _hop(command: str, where: str) -> str:
    """The jump host of `ssh -W %h:%p user@bastion`, the only ProxyCommand that has an equal in ProxyJump."""
    program, _, words = command.partition(" ")
    given = list(_arguments(words, where))
    options = dict(given)
    hops = [value for flag, value in given if not flag]
    if Path(program).name != "ssh" or options.get("W") != "%h:%p" or len(hops) != 1 or options.keys() & {"F", "J"}:
        raise UsageError(
            f"{where} has a ProxyCommand that is no jump host: {command}", hint="use ProxyJump in its place"
        )
    hop = f"{options['l']}@{hops[0]}" if "l" in options else hops[0]
    return f"{hop}:{options['p']}" if "p" in options else hop


def _arguments(words: str, where: str) -> Iterator[tuple[str, str]]:
    """The flags of an ssh command line, each with its value where it has one; other words come without a flag."""
    try:
        left = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"{where} can't be split into words: {error}", hint="mend its quotes") from None
    while left:
        word = left.pop(0)
        flags = word[1:] if word.startswith("-") else ""
        if not flags:
            yield "", word
        while flags:
            flag, flags = flags[0], flags[1:]
            if flag in _WITH_VALUE:
                yield flag, flags or (left.pop(0) if left else "")
                break
            yield flag, ""


def _key(variables: dict[str, dict[str, Any]], source: str, groups: Sequence[str]) -> str | None:
    keys = {
        name: given.get("ansible_ssh_private_key_file") or given.get("ansible_private_key_file")
        for name, given in variables.items()
    }
    choose = f"choose a group by --group ({', '.join(groups)}), or " if groups else ""
    (first, key), *others = keys.items()
    for name, other in others:
        if other != key:
            raise UsageError(
                f"{source}: {first} and {name} have different login keys, {key or 'none'} and {other or 'none'}",
                hint=f"a cluster has one: {choose}give it with --key",
            )
    if key and not str(key).startswith(("/", "~/")):
        return str(Path(str(key)).resolve())
    return str(key) if key else None


def _slots(variables: dict[str, dict[str, Any]], source: str) -> int | None:
    (first, slots), *others = [(name, given.get("hvd_slots")) for name, given in variables.items()]
    for name, other in others:
        if other != slots:
            raise UsageError(f"{source}: hvd_slots of {first} is {slots}, of {name} {other}", hint="write one number")
    return slots if isinstance(slots, int) and slots > 1 else None
