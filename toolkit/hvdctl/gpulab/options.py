"""The settings of `gpulab`: where it is, who asks, and which workers will do."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
_UNITS |= {"week": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([a-z]+?)s?", re.IGNORECASE)


def seconds(value: object) -> int:
    """Seconds of a duration as GPULab writes it."""
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None or not float(found[1]):
        raise ValueError(f"{value!r} is not a duration; write 30 minutes, 2 hours or 1 day")
    return int(float(found[1]) * unit)


def _duration(value: str) -> str:
    seconds(value)
    return value


def _patience(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else seconds(value)


def _texts(value: object) -> object:
    return [value] if isinstance(value, str) else value


Duration = Annotated[str, AfterValidator(_duration)]
Texts = Annotated[list[str], BeforeValidator(_texts, json_schema_input_type=str | list[str])]


class Options(BaseModel):
    """Where GPULab is, who asks, and which workers will do."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    server: str | None = Field(None, description="Address of the API; null: GPULAB_API_BASE, else imec's own.")
    certificate: str | None = Field(None, description="PEM file with your key and certificate; null: GPULAB_CERT.")
    passphrase_file: str | None = Field(
        None, description="File with the pass phrase of that key; null: HVDCTL_GPULAB_PASSPHRASE, else you are asked."
    )
    server_certificate: str | None = Field(
        None, description="Authority of the server's certificate; null: GPULAB_SERVER_CERT, else the usual ones."
    )
    project: str | None = Field(None, description="Name or URN of your project; null: GPULAB_PROJECT.")
    cluster: int | None = Field(None, ge=0, description="GPULab's own cluster; null: any.")
    worker: str | None = Field(None, min_length=1, description="One worker host for all jobs; null: any.")
    gpu_model: Texts = Field(
        default_factory=list, description="Parts of GPU names, any of which will do, such as V100."
    )
    gpu_memory: int | None = Field(None, ge=2, description="GB that a GPU must have; null: any.")
    min_cuda: int | None = Field(None, ge=0, description="Version of CUDA that the worker must have; null: any.")
    storage: str | None = Field(
        None, description="The project's storage that the share is on; null: /project_ghent, in Antwerp its own."
    )
    min_duration: Duration = Field("1 hour", description="After that GPULab may end a job, if others wait.")
    max_duration: Duration = Field("12 hours", description="After that GPULab ends a job.")
    reservations: Texts = Field(default_factory=list, description="Ids of reservations to be used.")
    wait: Annotated[int, BeforeValidator(_patience, json_schema_input_type=str | int)] = Field(
        900, description="How long jobs may take until they run, such as 15 minutes."
    )
    when_short: Literal["keep", "cancel"] = Field(
        "keep", description="Jobs that run when others can't start: keep them for the next `up`, or cancel all."
    )
    bastion: str = Field("auto", description="Jump host as user@host:port; auto: the one GPULab names; none: no one.")
    bastion_key: str | None = Field(
        None, description="Key for the jump host; null: that of `certificate`, or yours where it has a pass phrase."
    )
    known_hosts: str | None = Field(None, description="File with the jump host's key; null: ~/.ssh/known_hosts.")
