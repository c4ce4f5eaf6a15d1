"""Faults that an emulator plays on purpose: errors, delays, broken connections, answers of another version."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hvdctl import yamltext
from hvdctl.errors import UsageError
from hvdctl.gpulab.emulator.entries import entry

_EXAMPLE = "for example: - {method: GET, path: ^jobs, status: 500}"


class Fault(BaseModel):
    """One entry; `times` is how many matching requests it applies to, -1 for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = ".*"
    path: str = ".*"
    times: int = Field(1, ge=-1)
    status: int | None = Field(None, ge=200, le=599)
    body: str = ""
    delay: float = Field(0.0, ge=0)
    drop: Literal["before", "after"] | None = None
    extra: dict[str, Any] = {}
    state: str | None = None

    @field_validator("method", "path")
    @classmethod
    def _pattern(cls, given: str) -> str:
        try:
            re.compile(given)
        except re.error as error:
            raise ValueError(f"is not a regular expression ({error})") from None
        return given

    @property
    def shown(self) -> str:
        """What it does, in a few words."""
        done = self.model_dump(exclude_defaults=True, exclude={"method", "path", "times"})
        return ", ".join(f"{key} {value}" for key, value in done.items()) or "nothing"

    def fits(self, method: str, path: str) -> bool:
        """Whether it is about this request; the path is what follows v4.0/."""
        return bool(re.fullmatch(self.method, method, re.IGNORECASE) and re.search(self.path, path))


class Faults:
    """The faults of a file, which is read again whenever it changed; counting starts anew then."""

    def __init__(self, file: Path | None, say: Callable[[str], None] = lambda text: None) -> None:
        self.file = file
        self.say = say
        self._seen: tuple[int, int, int] | None = None
        self._left: list[tuple[Fault, int]] = []
        if file is not None:
            self._left = self._read(file)

    def take(self, method: str, path: str) -> Fault | None:
        """The first fault that this request meets, counted down."""
        self._refresh()
        for place, (fault, left) in enumerate(self._left):
            if left and fault.fits(method, path):
                self._left[place] = (fault, left - 1 if left > 0 else left)
                self.say(f"fault: {method} {path}: {fault.shown}")
                return fault
        return None

    def _refresh(self) -> None:
        if self.file is None or _stamp(self.file) == self._seen:
            return
        try:
            self._left = self._read(self.file)
        except UsageError as error:
            # Perhaps half written: the earlier ones stay until it can be read.
            self.say(f"{error.message}; the earlier faults stay")

    def _read(self, file: Path) -> list[tuple[Fault, int]]:
        self._seen = _stamp(file)
        return [(fault, fault.times) for fault in parse(file)]


def parse(file: Path) -> list[Fault]:
    """The faults that the file lists; none where it is missing or empty."""
    try:
        listed = yamltext.load(file.read_text()) if file.exists() else None
    except (OSError, UnicodeDecodeError, yamltext.NotYamlError):
        raise UsageError(f"--faults {file}: it is neither YAML nor JSON") from None
    if not listed:
        return []
    if not isinstance(listed, list):
        raise UsageError(f"--faults {file}: it is not a list", hint=_EXAMPLE)
    return [entry(Fault, given, f"--faults {file}: entry {place}", _EXAMPLE) for place, given in enumerate(listed, 1)]


def bent(data: Any, fault: Fault) -> Any:
    """An answer as the fault wants it: every job in it with the extra fields and the state."""
    if isinstance(data, list):
        return [bent(one, fault) for one in data]
    if not isinstance(data, dict):
        return data
    if "items" in data:
        return data | {"items": bent(data["items"], fault)}
    if "uuid" not in data or "state" not in data:
        return data
    made = _merged(data, fault.extra)
    return made if fault.state is None else made | {"state": made["state"] | {"status": fault.state}}


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    made = dict(under)
    for key, value in over.items():
        mine = made.get(key)
        made[key] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return made


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
