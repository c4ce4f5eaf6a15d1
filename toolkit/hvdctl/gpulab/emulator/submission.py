"""What a client may send to `POST jobs`: strict, and every complaint names the field and the value."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("day", "days"), 86400),
    **dict.fromkeys(("week", "weeks"), 604800),
}
_LOGIN = r"(?:(?P<user>[\w+.-]+):(?P<password>[^@ ]+)@)?"
_IMAGE = re.compile(_LOGIN + r"(?P<reference>(?:[\w.-]+(?::\d+)?/)?[a-z0-9._-]+(?:/[a-z0-9._-]+)*(?::[\w.-]{1,127})?)")
_SSH_KEY = re.compile(r"(ssh|ecdsa|sk)-\S+ \S+")
MIN_DURATION = "1 hour"
MAX_DURATION = "2 days"


class Unusable(ValueError):
    """A request that the server refuses; the text is the answer's body."""


def seconds(duration: str) -> int:
    """A duration as GPULab writes it (`5 minutes`, `2h`, `1 day`) in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-zA-Z]+)", duration)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError("is not a duration; write a number and a unit, for example '30 minutes', '2h' or '1 day'")
    return int(float(found[1]) * unit)


def _listed(value: Any) -> Any:
    return [] if value is None else value if isinstance(value, list) else [value]


def _slashed(value: str | None) -> str | None:
    return f"{value}/" if value and not value.endswith("/") and value != "tmpfs" else value


Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
Account = Annotated[str, StringConstraints(pattern=r"^\w+$")]
Words = Annotated[list[Annotated[str, StringConstraints(min_length=2)]], BeforeValidator(_listed)]
Email = Annotated[str, StringConstraints(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, frozen=True)


class Resources(_Part):
    cpus: int = Field(gt=0)
    gpus: int = Field(ge=0)
    cpu_memory_gb: int = Field(gt=0)
    gpu_memory_gb: int | None = Field(None, ge=2)
    features: Words = []
    gpu_model: Words = []
    min_cuda_version: int | None = Field(None, ge=0)
    cluster_id: int | None = Field(None, ge=0)
    slave_name: str | None = Field(None, min_length=1)
    slave_instance_id: str | None = Field(None, min_length=1)


class Storage(_Part):
    host_path: str | None = None
    container_path: str | None = None
    size_gb: int | None = Field(None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Each path stands for the other where one is missing; `.ssh` goes to root's home."""
        if isinstance(given, str):
            given = {"hostPath": given}
        if not isinstance(given, dict):
            return given
        host, inside = (_slashed(given.get(name)) for name in ("hostPath", "containerPath"))
        if not host and not inside:
            raise ValueError("needs a hostPath or a containerPath")
        if host == "tmpfs" and not (inside and given.get("sizeGb")):
            raise ValueError("tmpfs needs a containerPath and a sizeGb")
        if host != "tmpfs" and given.get("sizeGb") is not None:
            raise ValueError("sizeGb goes with hostPath 'tmpfs' only")
        home = "/root/.ssh/"
        inside = inside or (home if host == ".ssh/" else host)
        host = host or (".ssh/" if inside == home else inside)
        return given | {"hostPath": host, "containerPath": inside}


class PortMapping(_Part):
    container_port: int = Field(ge=1, le=65535)
    host_port: int | None = Field(None, ge=1, le=65535)
    host_ip: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, given: Any) -> Any:
        return {"containerPort": given} if isinstance(given, int) else given


class Docker(_Part):
    image: str
    command: str | list[str] = []
    environment: dict[Name, str | int | bool] = {}
    storage: list[Storage] = []
    port_mappings: list[PortMapping] = []
    project_gid_variable_name: Name | None = None
    working_dir: str | None = None
    group_add: Annotated[list[Account], BeforeValidator(_listed)] = []
    user: Account | None = None

    @field_validator("image")
    @classmethod
    def _image(cls, given: str) -> str:
        if "@sha256:" in given:
            raise ValueError("digests are not taken; name the image by a tag")
        if not _IMAGE.fullmatch(given):
            raise ValueError("is not an image; write [user:password@][registry[:port]/]image[:tag]")
        return given

    @field_validator("working_dir")
    @classmethod
    def _folder(cls, given: str | None) -> str | None:
        if given is not None and not re.fullmatch(r"/([^\n/]+/)*", given):
            raise ValueError("is not a folder from the root that ends in /")
        return given

    @property
    def reference(self) -> str:
        """The image without the login for its registry."""
        found = _IMAGE.fullmatch(self.image)
        return found["reference"] if found else self.image

    @property
    def login(self) -> tuple[str, str] | None:
        found = _IMAGE.fullmatch(self.image)
        return (found["user"], found["password"]) if found and found["user"] else None

    @property
    def tmpfs_gb(self) -> int:
        return sum(one.size_gb or 0 for one in self.storage)


class Bucket(_Part):
    bucket_name: str = Field(pattern=r"^\w[\w@.-]*$")
    bucket_max: int = Field(gt=0)


class Scheduling(_Part):
    interactive: bool = False
    restartable: bool = False
    allow_halt_without_signal: bool = False
    min_duration: str = Field(MIN_DURATION, validation_alias=AliasChoices("minDuration", "killableAfter"))
    max_duration: str = MAX_DURATION
    reservation_ids: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default=[], validation_alias=AliasChoices("reservationIds", "reservationId")
    )
    max_simultaneous_jobs: Bucket | None = None
    not_before: AwareDatetime | None = None
    not_after: AwareDatetime | None = None

    @field_validator("min_duration", "max_duration", mode="before")
    @classmethod
    def _default(cls, given: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].default if given is None else given

    @field_validator("min_duration", "max_duration")
    @classmethod
    def _duration(cls, given: str, info: Any) -> str:
        if seconds(given) < 60 and info.field_name == "max_duration":
            raise ValueError("is less than the minute that is the least")
        return given

    @model_validator(mode="after")
    def _window(self) -> Scheduling:
        if self.interactive and (self.not_before or self.not_after):
            raise ValueError("an interactive job starts at once: notBefore and notAfter don't go with it")
        if self.not_before and self.not_after and self.not_before >= self.not_after:
            raise ValueError(f"notBefore ({self.not_before}) is not before notAfter ({self.not_after})")
        return self


class Extra(_Part):
    ssh_pub_keys: list[str] = []
    email_on_queue: list[Email] = []
    email_on_run: list[Email] = []
    email_on_end: list[Email] = []
    email_on_halt: list[Email] = []
    email_on_restart: list[Email] = []

    @field_validator("ssh_pub_keys")
    @classmethod
    def _keys(cls, given: list[str]) -> list[str]:
        for key in given:
            if not _SSH_KEY.match(key.strip()):
                raise ValueError(f"{key[:40]!r} is not a public key of OpenSSH's")
        return given


class Request(_Part):
    resources: Resources
    docker: Docker
    scheduling: Scheduling = Scheduling()
    extra: Extra = Extra()


class Owner(_Part):
    """Who submits is known by the certificate: the user's own words on it are taken and not used."""

    project_urn: str = Field(pattern=r"^urn:publicid:IDN\+[^+]+\+project\+[^+]+$")
    user_urn: str | None = None
    user_email: str | None = None
    user_details: Any = None


class Submission(_Part):
    name: str = Field(min_length=1)
    description: str | None = None
    deployment_environment: Literal["production", "staging", "prod", "stable"] | None = None
    owner: Owner
    request: Request
    state: None = None
    restart_info: None = None


def parse(body: bytes) -> Submission:
    """The job that the body asks for; raises `Unusable` with one line for each field that is wrong."""
    try:
        return Submission.model_validate_json(body)
    except ValidationError as error:
        raise Unusable("\n".join(_complaint(one) for one in error.errors(include_url=False))) from None


def _complaint(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"]) or "the body"
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{field}: is required and missing"
    if error["type"] == "extra_forbidden":
        return f"{field}: there is no such field (given: {error['input']!r:.80})"
    return f"{field}: {error['input']!r:.80}: {said}"
