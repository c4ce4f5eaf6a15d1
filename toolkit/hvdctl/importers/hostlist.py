"""Lists of hosts: a host on each line, as in PBS_NODEFILE and the hostfiles of MPI, or SLURM's gpu[01-03,07],login1."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hvdctl.errors import UsageError
from hvdctl.importers.found import Imported, Source
from hvdctl.spec import MAX_NODES

_HINT = "write a host on each line, such as n1 or me@n1:2222, or an expression such as gpu[01-03,07]"
_LINE = re.compile(r"(?P<names>\S+)(?:\s+slots=(?P<slots>[1-9]\d{0,3}))?")
_HOST = re.compile(r"(?:(?P<user>[^@]+)@)?(?:(?P<name>[^@:]+)(?::(?P<port>\d{1,5}))?|(?P<v6>[^@:]*:[^@:]*:[^@]*))")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
# A number above is no count of slots, but a port.
_MAX_SLOTS = 256
_TASKS = re.compile(r"([1-9]\d{0,3})(?:\(x\d+\))?")


def read(source: Source, user: str | None = None) -> Imported:
    """The hosts of a list; one that is repeated has as many slots."""
    counted: Counter[str] = Counter()
    for number, line in enumerate(source.text.splitlines(), 1):
        where = f"{source.name}, line {number}" if source.path else source.name
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _LINE.fullmatch(words)
        if match is None:
            raise UsageError(f"{where}: {words!r} is not a host", hint=_HINT)
        for name in expand(match["names"], where):
            if match["slots"] is None:
                _check_number(name, where)
            counted[name] += int(match["slots"] or 1)
            if len(counted) > MAX_NODES:
                raise UsageError(f"{where}: more than {MAX_NODES} hosts", hint="a cluster has no more nodes than that")
    if not counted:
        raise UsageError(f"{source.name} has no hosts", hint=_HINT)
    (first, slots), *others = counted.items()
    for name, count in others:
        if count != slots:
            raise UsageError(
                f"{source.name}: {first} has {slots} slots and {name} has {count}",
                hint="all nodes have the same number: name each host as often, or once",
            )
    hosts = [_host(name, source.name, user) for name in counted]
    return Imported(hosts, slots=slots if slots > 1 else None, source=source.name)


def slurm(nodes: str, tasks: str | None, user: str | None = None) -> Imported:
    """The hosts of a SLURM job, with its tasks on each node as slots where that is one number."""
    found = read(Source("SLURM_JOB_NODELIST", None, nodes), user)
    match = _TASKS.fullmatch(tasks or "1")
    if match is None:
        found.notes.append(f"slots are left at 1: SLURM_TASKS_PER_NODE is {tasks}, not the same on all nodes")
    elif int(match[1]) > 1:
        found.slots = int(match[1])
    return found


def expand(expression: str, where: str) -> Iterator[str]:
    """The names that an expression stands for, in its order; numbers keep their leading zeros."""
    for part in _split(expression, where):
        pieces = re.split(r"(\[[^\[\]]*\])", part)
        choices = [_numbers(piece, where) if piece.startswith("[") else [piece] for piece in pieces]
        if any(re.search(r"[\[\]]", piece) for piece in pieces[::2]):
            raise UsageError(f"{where}: the brackets in {part!r} don't match", hint=_HINT)
        for words in itertools.product(*choices):
            yield "".join(words)


def _split(expression: str, where: str) -> list[str]:
    """At commas outside of brackets."""
    parts = re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", expression)
    if ",".join(parts) != expression:
        raise UsageError(f"{where}: a name is missing beside a comma in {expression!r}", hint=_HINT)
    return parts


def _numbers(bracket: str, where: str) -> list[str]:
    found: list[str] = []
    for item in bracket[1:-1].split(","):
        match = _RANGE.fullmatch(item)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        count = int(last) - int(first) + 1
        if count < 1:
            raise UsageError(f"{where}: {item!r} in {bracket} is not a number or a range such as 01-03", hint=_HINT)
        if len(found) + count > MAX_NODES:
            raise UsageError(f"{where}: {bracket} stands for more than {MAX_NODES} hosts", hint="name fewer")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _check_number(name: str, where: str) -> None:
    """Raise for n1:4, which is a port to us and four slots to MPICH."""
    host, _, number = name.rpartition(":")
    if re.fullmatch(r"[^@:]+", host) and re.fullmatch(r"\d{1,3}", number) and 22 != int(number) <= _MAX_SLOTS:
        raise UsageError(
            f"{where}: {name!r} could have {number} slots, as in a machinefile of MPICH, or be at port {number}",
            hint=f"write `{host} slots={number}`, or with a login me@{name} for the port",
        )


def _host(name: str, where: str, user: str | None) -> dict[str, Any]:
    match = _HOST.fullmatch(name)
    if match is None:
        raise UsageError(f"{where}: {name!r} is not a host", hint=_HINT)
    login = user or match["user"]
    port = int(match["port"] or 22)
    return {
        "address": match["name"] or match["v6"],
        **({"user": login} if login else {}),
        **({"port": port} if port != 22 else {}),
    }
