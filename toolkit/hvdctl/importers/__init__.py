"""Hosts as other tools write them down, turned into a spec of provider `static`: manifests, inventories, host lists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hvdctl.errors import UsageError
from hvdctl.importers import ansible, hostlist, rspec
from hvdctl.importers.found import Imported, Source, merged
from hvdctl.spec import brief, format_rate, parse

KINDS = "a jFed or GENI manifest, an Ansible inventory or a list of hosts"

_RSPEC = {".rspec", ".xml"}
_ANSIBLE = {".yml", ".yaml", ".ini"}
# What only an inventory has: a group in brackets, a variable of Ansible's, a YAML key on a line of its own.
_INVENTORY = re.compile(r"^\s*\[[^\]]+\]\s*$|\bansible_\w+\s*[=:]|^[\w-]+:\s*$", re.MULTILINE)


def read(
    sources: Sequence[str], *, user: str | None = None, group: str | None = None, key: str | None = None
) -> Imported:
    """The hosts in these files, whose format is recognised, or in host list expressions such as gpu[01-04].

    `user` logs in, where a file has several; `group` is that of an inventory; `key` goes before any that a file names.
    """
    opened = [_open(source) for source in sources]
    kinds = [_kind(source) for source in opened]
    if group is not None and "inventory" not in kinds:
        raise _no_groups(group, opened[0].name)
    # Manifests are read together: a link may join nodes of several.
    manifests = [source for source, kind in zip(opened, kinds, strict=True) if kind == "manifest"]
    found = [rspec.read(manifests, user)] if manifests else []
    for source, kind in zip(opened, kinds, strict=True):
        if kind == "inventory":
            found.append(ansible.read(source, user, group, key))
        elif kind == "list":
            found.append(hostlist.read(source, user))
    together = merged(found)
    together.key = key or together.key
    return together


def from_job(environment: Mapping[str, str], *, user: str | None = None, group: str | None = None) -> Imported:
    """The hosts that a batch system gave to the job that hvdctl runs in."""
    if nodes := environment.get("SLURM_JOB_NODELIST"):
        if group is not None:
            raise _no_groups(group, "SLURM_JOB_NODELIST")
        return hostlist.slurm(nodes, environment.get("SLURM_TASKS_PER_NODE"), user)
    if file := environment.get("PBS_NODEFILE"):
        return read([file], user=user, group=group)
    raise UsageError(
        "there is nothing to import: no file is named, and this is no job of SLURM or PBS",
        hint=f"name {KINDS}; or run it where SLURM_JOB_NODELIST or PBS_NODEFILE is set",
    )


def spec(
    found: Imported, *, name: str | None = None, key: str | None = None, proxy: str | None = None
) -> dict[str, Any]:
    """The keys of a spec of these hosts, checked; what is at its default is left out."""
    hosts = [{**host, "proxy": proxy} if proxy else host for host in found.hosts]
    if key and not Path(key).is_file():
        raise UsageError(f"--key: there is no file {key}", hint="name the private key that logs in")
    key = key or found.key
    values: dict[str, Any] = {"name": name} if name else {}
    values |= {"provider": "static", "nodes": len(found.hosts)}
    values |= {"slots": found.slots} if found.slots else {}
    values |= {"net": format_rate(found.rate)} if found.rate else {}
    values["options"] = ({"key": key} if key else {}) | {"hosts": hosts}
    parse(values, source="what was imported")
    return values


def add_host_keys(values: dict[str, Any]) -> dict[str, list[str]]:
    """Ask the hosts of a spec for their host keys and write these into it; the fingerprints by host."""
    from hvdctl.importers.scan import fingerprint, scan
    from hvdctl.sites.static import Options

    options = Options.model_validate(values["options"])
    keys = scan(options.hosts, Path(options.key) if options.key else None)
    for host, found in zip(values["options"]["hosts"], keys, strict=True):
        host["host_key"] = found
    return {str(host): [fingerprint(key) for key in found] for host, found in zip(options.hosts, keys, strict=True)}


def unknown(values: dict[str, Any]) -> int:
    """How many hosts of a spec have no host key in it or in known_hosts."""
    from hvdctl.sites.hosts import host_keys
    from hvdctl.sites.static import Options

    return sum(not keys for keys in host_keys(Options.model_validate(values["options"]).hosts))


def written(values: dict[str, Any], sources: Sequence[str]) -> str:
    """The spec as a file."""
    command = shlex.join(["hvdctl", "import", *(Path(source).name for source in sources)])
    head = f"# Written by `{command}`; `hvdctl up` makes the cluster on these machines.\n"
    return head + yaml.safe_dump(values, sort_keys=False, width=1000)


def _no_groups(group: str, source: str) -> UsageError:
    return UsageError(
        f"--group {group}: only an Ansible inventory has groups, {source} is none", hint="leave --group out"
    )


def _open(source: str) -> Source:
    path = Path(source)
    if not source.strip():
        raise UsageError("an empty name is no file and no list of hosts", hint=f"name {KINDS}")
    if not _there(path) and re.search(r"[\[,]", source):
        # A comma after a single name tells it from a file, as with Ansible's -i.
        return Source(source, None, source.removesuffix(",") if source.count(",") == 1 else source)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        single = "/" not in source and path.suffix not in _RSPEC | _ANSIBLE
        alone = f"; a single host needs a file, or a comma: `hvdctl import {source},`" if single else ""
        raise UsageError(f"there is no file {source}", hint=f"name {KINDS}{alone}") from None
    except IsADirectoryError:
        raise UsageError(f"{source} is a folder", hint="name the files in it") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not text in UTF-8", hint=f"name {KINDS}") from None
    except OSError as error:
        raise UsageError(f"{brief(source)} can't be read: {error.strerror}", hint=f"name {KINDS}") from None
    return Source(source, path, text)


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # an expression of many hosts is too long for a file's name
        return False


def _kind(source: Source) -> str:
    suffix = source.path.suffix.lower() if source.path else ""
    if suffix in _RSPEC or source.text.lstrip().startswith("<"):
        return "manifest"
    if suffix in _ANSIBLE or (source.path and _INVENTORY.search(source.text)):
        return "inventory"
    return "list"
