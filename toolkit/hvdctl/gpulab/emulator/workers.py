"""The worker hosts that an emulator plays: how many CPUs, GPUs and how much memory there is to give away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hvdctl import yamltext
from hvdctl.errors import UsageError
from hvdctl.gpulab.emulator.entries import entry

# Of each worker one instance of GPULab's software runs, and here all have the same name.
INSTANCE = "emulator"
_EXAMPLE = (
    "sizes in GB, for example: "
    "- {name: w1, cluster: 1, gpus: 4, cpus: 32, memory: 128, gpu_model: V100, gpu_memory: 32, cuda: 12.4}"
)


def _version(value: object) -> object:
    """YAML reads 12.2 as a number; 12 alone is its first release."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    return f"{text}.0" if isinstance(text, str) and text.isdecimal() else text


class Worker(BaseModel):
    """One worker host; memory in GB. The GPUs are numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9.-]*$")
    cluster: int = Field(gt=0)
    gpus: int = Field(ge=0)
    cpus: int = Field(gt=0)
    memory: int = Field(gt=0)
    gpu_model: str = "no GPU"
    gpu_memory: int = Field(0, ge=0)
    cuda: Annotated[str, BeforeValidator(_version)] = Field("12.4", pattern=r"^\d+\.\d+$")

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.split(".")[0])


def _pair(cluster: int, gpus: int, cpus: int, memory: int, model: str, gpu_memory: int) -> tuple[Worker, ...]:
    return tuple(
        Worker(
            name=f"slave{cluster}{letter}",
            cluster=cluster,
            gpus=gpus,
            cpus=cpus,
            memory=memory,
            gpu_model=model,
            gpu_memory=gpu_memory,
        )
        for letter in "AB"
    )


DEFAULT = (
    *_pair(1, 4, 32, 128, "GeForce GTX 1080 Ti", 11),
    *_pair(4, 16, 96, 512, "Tesla V100-SXM3-32GB", 32),
)


def read(file: Path | None) -> tuple[Worker, ...]:
    """The workers that the file lists, or the default ones where there is no file."""
    if file is None:
        return DEFAULT
    try:
        listed = yamltext.load(file.read_text())
    except OSError as error:
        raise UsageError(f"--workers {file}: {error.strerror}") from None
    except (UnicodeDecodeError, yamltext.NotYamlError):
        raise UsageError(f"--workers {file}: it is not YAML", hint=_EXAMPLE) from None
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"--workers {file}: it is not a list of workers", hint=_EXAMPLE)
    found = tuple(
        entry(Worker, given, f"--workers {file}: worker {place}", _EXAMPLE) for place, given in enumerate(listed, 1)
    )
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--workers {file}: two workers have the name {twice!r}", hint="give each a name of its own")
    return found
