"""What an importer finds, and how the finds of several files become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hvdctl.errors import UsageError
from hvdctl.spec import format_rate

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Source:
    """A file, or words that stand for one, in which case it has no path."""

    name: str
    path: Path | None
    text: str


@dataclass
class Imported:
    hosts: list[dict[str, Any]]
    """Keys and values of hosts of provider `static`, as they are written in a spec; unchecked."""
    slots: int | None = None
    rate: int | None = None
    """Bits per second of the link between the hosts."""
    key: str | None = None
    notes: list[str] = field(default_factory=list)
    """What the user should know of what was left out or assumed."""
    source: str = ""
    """The file or files in which it was found."""


def merged(parts: Sequence[Imported]) -> Imported:
    """All hosts in order; one that stands twice is refused, and so are files that contradict each other."""
    hosts = [host for part in parts for host in part.hosts]
    places = Counter(place(host) for host in hosts)
    if twice := [name for name, count in places.items() if count > 1]:
        raise UsageError(
            f"{', '.join(twice)} stands there twice", hint="a machine is one node: name it in one file only"
        )
    made = Imported(hosts, notes=[note for part in parts for note in part.notes])
    made.slots = _of_all("slots", {part.source: part.slots for part in parts}, str, made.notes)
    made.rate = _of_all("net", {part.source: part.rate for part in parts}, format_rate, made.notes)
    keys = {part.source: part.key for part in parts}
    made.key = _one("login keys", keys)
    if made.key and (without := [source for source, key in keys.items() if key is None]):
        made.notes.append(f"the login key {made.key} is used for the hosts of {', '.join(without)} too")
    return made


def place(host: dict[str, Any]) -> str:
    return f"{host['address']}:{host['port']}" if host.get("port", 22) != 22 else str(host["address"])


def _of_all(what: str, values: Mapping[str, int | None], shown: Callable[[int], str], notes: list[str]) -> int | None:
    """What all files say: a spec has it for all nodes or for none."""
    found = _one(what, values)
    without = [source for source, value in values.items() if value is None]
    if found is None or not without:
        return found
    source = next(source for source, value in values.items() if value is not None)
    notes.append(
        f"{what} is left out, as it would be that of all nodes: {source} has {shown(found)}, {', '.join(without)} none"
    )
    return None


def _one(what: str, values: Mapping[str, _Value | None]) -> _Value | None:
    known = list(dict.fromkeys(value for value in values.values() if value is not None))
    if len(known) > 1:
        raise UsageError(f"the files have different {what}: {known[0]} and {known[1]}", hint="import them one by one")
    return known[0] if known else None
