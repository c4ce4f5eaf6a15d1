"""A cluster's profile: settings that `tune` found to be faster on it than the defaults."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from hvdctl.cluster import Cluster, write
from hvdctl.errors import UsageError

_FILE = "profile.json"


@dataclass(frozen=True)
class Profile:
    launcher: str
    threads: Annotated[int, Field(ge=1, le=4096)] | None
    fusion_mb: Annotated[float, Field(ge=0, le=2**20)] | None
    cycle_ms: Annotated[float, Field(ge=0, le=10**6)] | None
    layout: str
    net: str
    measured: str
    gain: float
    gain_low: float
    gain_high: float

    @classmethod
    def of(cls, cluster: Cluster) -> Profile | None:
        """The profile that is kept; None where nothing better than the defaults was found yet."""
        try:
            stored = json.loads(_file(cluster).read_text(encoding="utf-8"))
            known = {field.name: stored[field.name] for field in fields(cls)}
            return TypeAdapter(cls).validate_json(json.dumps(known), strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(
                f"{_file(cluster)} is not what hvdctl wrote", hint=f"`hvdctl tune --reset --name {cluster.name}`"
            ) from None

    def store(self, cluster: Cluster) -> None:
        write(_file(cluster), json.dumps(asdict(self), indent=2) + "\n")

    def env(self) -> dict[str, str]:
        """Horovod's own variables for it."""
        return knobs(self.fusion_mb, self.cycle_ms)

    def threads_for(self, nodes: int, slots: int) -> int | None:
        """Threads of a rank, where ranks lie as they did when they were tuned."""
        return self.threads if self.layout == f"{nodes}x{slots}" else None

    def __str__(self) -> str:
        return shown(f"launcher {self.launcher}", self.threads, self.fusion_mb, self.cycle_ms)


def knobs(fusion_mb: float | None, cycle_ms: float | None) -> dict[str, str]:
    """The variables that set Horovod's knobs; what is None is left to Horovod."""
    chosen = {}
    if fusion_mb is not None:
        chosen["HOROVOD_FUSION_THRESHOLD"] = str(int(fusion_mb * 2**20))
    if cycle_ms is not None:
        chosen["HOROVOD_CYCLE_TIME"] = f"{cycle_ms:g}"
    return chosen


def shown(launcher: str, threads: int | None, fusion_mb: float | None, cycle_ms: float | None) -> str:
    """Settings in words; those that are not set are left out."""
    words = [launcher]
    words += [f"{threads} thread{'s' * (threads != 1)}"] if threads else []
    words += [f"fusion {fusion_mb:g} MB"] if fusion_mb is not None else []
    words += [f"cycle {cycle_ms:g} ms"] if cycle_ms is not None else []
    return ", ".join(words)


def forget(cluster: Cluster) -> bool:
    """Go back to the defaults; whether there was a profile."""
    there = _file(cluster).exists()
    _file(cluster).unlink(missing_ok=True)
    return there


def _file(cluster: Cluster) -> Path:
    return cluster.folder / _FILE
