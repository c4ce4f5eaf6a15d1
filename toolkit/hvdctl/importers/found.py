"""What an importer finds, and how the finds of several files become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hvdctl.errors import UsageError

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


def merged(parts: Sequence[Imported]) -> Imported:
    """All hosts in order; one that stands twice is refused, and so are files that contradict each other."""
    hosts = [host for part in parts for host in part.hosts]
    places = Counter(place(host) for host in hosts)
    if twice := [name for name, count in places.items() if count > 1]:
        raise UsageError(
            f"{', '.join(twice)} stands there twice", hint="a machine is one node: name it in one file only"
        )
    notes = [note for part in parts for note in part.notes]
    rates = {part.rate for part in parts}
    return Imported(
        hosts,
        slots=_one("slots", [part.slots for part in parts]),
        rate=rates.pop() if len(rates) == 1 else None,
        key=_one("login keys", [part.key for part in parts]),
        notes=notes,
    )


def place(host: dict[str, Any]) -> str:
    return f"{host['address']}:{host['port']}" if host.get("port", 22) != 22 else str(host["address"])


def _one(what: str, values: Sequence[_Value | None]) -> _Value | None:
    known = list(dict.fromkeys(value for value in values if value is not None))
    if len(known) > 1:
        raise UsageError(f"the files have different {what}: {known[0]} and {known[1]}", hint="import them one by one")
    return known[0] if known else None
