"""What the clouds have in common: tags, settings, and where a cluster was made."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from hvdctl.errors import UsageError
from hvdctl.spec import Delay, Size, Spec, format_size, parse_disk

TAG = "hvdctl.cluster"
NAME_TAG = "hvdctl.name"
UNTIL_TAG = "hvdctl.until"
NO_PROVIDER = (
    "terraform init failed",
    "Terraform can't get its provider: where no registry answers, put it into a filesystem mirror and name that folder "
    "with HVDCTL_TF_MIRROR",
)
"""What hvdctl says where Terraform finds no provider, and what to do about it."""

_TTL = re.compile(r"(\d+)(m|h|d)")
_TTL_UNITS = {"m": 1, "h": 60, "d": 24 * 60}
_SMALLEST = 8 * 2**30
_WIDE = 8
"""A range with fewer bits than this is as good as everyone."""


def parse_ttl(value: object) -> str | None:
    """A time to live such as `8h`, in minutes, as Terraform takes it; None where there is no end."""
    text = str(value).strip().lower()
    if value is None or text == "none":
        return None
    match = _TTL.fullmatch(text)
    if not match or not int(match[1]):
        raise ValueError(f"{text!r} is not a time to live; write 30m, 8h, 2d or none")
    return f"{int(match[1]) * _TTL_UNITS[match[2]]}m"


def parse_admitted(value: object, info: ValidationInfo) -> object:
    """Address ranges, each in its one usual form; an address alone is a range of one."""
    given = [word for word in value.replace(",", " ").split() if word] if isinstance(value, str) else value
    if not isinstance(given, Sequence):
        return value
    return [_range(word, anyone=bool(info.data.get("admit_anyone"))) for word in given]


def text(value: object) -> object:
    """YAML reads a name of digits only as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_disk(value: object) -> int | None:
    return parse_disk(value, _SMALLEST)


Ttl = Annotated[str | None, BeforeValidator(parse_ttl, json_schema_input_type=str | None)]
Admitted = Annotated[list[str], BeforeValidator(parse_admitted, json_schema_input_type=str | list[str])]
Disk = Annotated[Size, BeforeValidator(check_disk)]
Text = Annotated[str, BeforeValidator(text, json_schema_input_type=str | int)]


class CloudOptions(BaseModel):
    """The settings of every cloud."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    admit_anyone: bool = Field(False, description="Let `admit` hold ranges as wide as 0.0.0.0/0.")
    admit: Admitted = Field(default_factory=list, description="Addresses that SSH is open to, such as 203.0.113.7/32.")
    ttl: Ttl = Field(None, description="Time to live, such as 8h: a tag for those who clean up, hvdctl.until.")
    firewall: bool = Field(True, description="Whether the machines too refuse all but SSH from outside the cluster.")
    delay: Delay = Field(None, description="Added to every packet that a machine sends, such as 2ms.")


def check_admitted(admitted: Sequence[str]) -> None:
    """Raise where nobody could log in: what the caller's own address is can't be known for sure from here."""
    if not admitted:
        raise UsageError(
            "options.admit: no address is admitted, so that nobody could log in to the nodes",
            hint="write the public address that you come from, such as --option admit=203.0.113.7/32",
        )


def check_size(spec: Spec, kind: str, option: str, *, cpus: float, memory: int, gpus: int | None = None) -> None:
    """Raise where a machine of that kind is smaller than what is asked; gpus None: the cloud does not tell."""
    short = (
        f"gpus: {spec.gpus} asked, but {kind} has {gpus}" if gpus is not None and spec.gpus > gpus else "",
        f"cpus: {spec.cpus:g} asked, but {kind} has {cpus:g}" if (spec.cpus or 0) > cpus else "",
        f"memory: {format_size(spec.memory)} asked, but {kind} has {format_size(memory)}"
        if (spec.memory or 0) > memory
        else "",
    )
    if any(short):
        raise UsageError("; ".join(filter(None, short)), hint=f"choose another --option {option}")


def check_state(cluster: str, ours: Sequence[object], place: str) -> None:
    """Raise where Terraform knows of nothing, yet something of the cluster is there: all would be made a second time.

    Terraform writes its state some time after it began to make things. So an empty or missing one does not say that
    nothing was made.
    """
    from hvdctl.cluster import Cluster
    from hvdctl.terraform import holds

    if ours and not holds(Cluster(cluster).terraform):
        raise UsageError(
            f"cluster {cluster!r}: {place} has {len(ours)} things of it, and Terraform's state knows of none",
            hint=f"put {Cluster(cluster).terraform / 'terraform.tfstate'} back if you have it (its .backup may be "
            f"whole), or remove them: `hvdctl down --name {cluster} --force`",
        )


def origin(cluster: str) -> dict[str, str]:
    """Where a cluster was made, as Terraform's state has it, or had before `destroy`; empty before that.

    With other credentials a cloud shows nothing of the cluster: that is not the same as nothing being left.
    """
    from hvdctl.cluster import Cluster

    for file in ("terraform.tfstate", "terraform.tfstate.backup"):
        try:
            state = json.loads((Cluster(cluster).terraform / file).read_text(encoding="utf-8"))
            (found,) = [r for r in state["resources"] if (r["type"], r["name"]) == ("terraform_data", "origin")]
            made = found["instances"][0]["attributes"]["output"]["value"]
            return {str(name): str(value) for name, value in made.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
    return {}


def _range(word: Any, *, anyone: bool) -> str:
    try:
        found = ipaddress.IPv4Network(word, strict=False)
    except ValueError:
        raise ValueError(f"{word!r} is not an IPv4 address or range; write 203.0.113.7 or 203.0.113.0/24") from None
    if found.prefixlen < _WIDE and not anyone:
        raise ValueError(
            f"{word} would let the whole internet try to log in; write the address that you come from, "
            "or set admit_anyone as well"
        )
    return str(found)
