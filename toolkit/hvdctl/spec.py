"""What the user asks for: `hvdctl.yml` and the flags over it, checked before anything is made."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from hvdctl import providers, redact, yamltext
from hvdctl.errors import UsageError

FILE = "hvdctl.yml"
MAX_NODES = 512

_RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([kmg]?)(?:bit)?(?:/s|ps)?", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,15})?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_DELAY = re.compile(r"^(none|[0-9]{1,6}(\.[0-9]{1,3})?(us|ms|s))$")
_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_MIN_RATE, _MAX_RATE = 10**5, 10**12
_MIN_SIZE, _MAX_SIZE = 2**26, 2**50
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEMPLATE = "`hvdctl init` writes a file with every key"
_LAYOUT = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
_LAYOUT_KEYS = ("nodes", "slots", "gpus")
_LOGIN = re.compile(r"(?<![^\s='\"])[\w.+-]+:[^\s@]+@(?=[\w.-]+[:/])")
# They would be more than text in files such as systemd's units.
_NOT_IN_PATHS = re.compile(r"[\\\x00-\x1f\x7f]")
_QUOTED = 80
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_rate(value: object) -> int | None:
    """Bits per second of a link rate such as `1g`; None where the link is not limited."""
    text = str(value).strip()
    if value is None or text.lower() == "none":
        return None
    match = _RATE.fullmatch(text)
    bits = round(float(match[1]) * _RATE_UNITS[match[2].lower()]) if match else 0
    if isinstance(value, bool) or not _MIN_RATE <= bits <= _MAX_RATE:
        raise ValueError(f"{brief(text)} is not a link rate; write 100m, 1g, 10g (100k to 1000g) or none")
    return bits // 8 * 8  # the kernel counts bytes


def format_rate(bits: float | None) -> str:
    """The rate as a person writes it: 1g, 2.5g, 100m, none."""
    if bits is None:
        return "none"
    for unit, factor in (("g", 10**9), ("m", 10**6), ("k", 10**3)):
        if bits >= factor:
            return f"{bits / factor:.12g}{unit}"
    return f"{bits:.0f}"


def parse_size(value: object) -> int | None:
    """Bytes of a size such as `4g`; None where there is no limit."""
    text = str(value).strip()
    if value is None or text.lower() == "none":
        return None
    match = _SIZE.fullmatch(text)
    size = round(float(match[1]) * _SIZE_UNITS[match[2].lower()]) if match else 0
    if isinstance(value, bool) or not _MIN_SIZE <= size <= _MAX_SIZE:
        raise ValueError(f"{brief(text)} is not a memory size; write 512m, 4g (64m to 1024t) or none")
    return size


def parse_disk(value: object, least: int, *, needed: bool = False) -> int | None:
    """Bytes of a machine's disk; None where its size is left to the image, which it can't be where it is `needed`."""
    try:
        size = parse_size(value)
    except ValueError:
        size = 0
    if (size is None and needed) or (size is not None and size < least):
        raise ValueError(f"{brief(value)} is not a disk size; write {format_size(least)} or more, such as 40g")
    return size


def format_size(size: int | None) -> str:
    if size is None:
        return "none"
    for unit, factor in (("g", 2**30), ("m", 2**20)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def parse_delay(value: object) -> str | None:
    """A delay of packets as the kernel's netem takes it; None where there is none."""
    text = str(value).strip()
    if value is None or text.lower() == "none":
        return None
    if not isinstance(value, str) or not _DELAY.fullmatch(text):
        raise ValueError(f"{brief(text)} is not a delay; write 500us, 2ms, 1s or none")
    return text


def brief(value: object) -> str:
    """A value as an error quotes it."""
    if isinstance(value, str) and len(value) > _QUOTED:
        value = value[: _QUOTED - 3] + "..."
    shown = repr(value)
    return shown if isinstance(value, str) or len(shown) <= _QUOTED else f"{shown[: _QUOTED - 3]}..."


def masked(text: str) -> str:
    """The text with nothing of the login to a registry that GPULab lets stand before the name of an image."""
    return _LOGIN.sub("...@", text)


def _check_provider(value: object) -> object:
    if not isinstance(value, str) or value not in providers.REGISTRY:
        raise ValueError(f"{brief(value)} is not a provider; choose one of: {', '.join(providers.REGISTRY)}")
    return value


def _check_name(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", value):
        raise ValueError(
            f"{brief(value)} is not a cluster name; use 1 to 32 lower-case letters, digits and hyphens, "
            "a letter or digit first and last"
        )
    return value


def _check_image(value: object) -> object:
    # A word that begins with a dash would be an option of `docker run`.
    if isinstance(value, str) and value and not re.fullmatch(r"[^\s-]\S*", value):
        raise ValueError(
            f"{masked(value)!r} is not an image; write auto or a name such as registry.example.org/horovod:1"
        )
    return value


def _check_share(value: object) -> object:
    if value is None or value == "auto":
        return "auto"
    path = Path(os.path.expanduser(str(value)))  # noqa: PTH111 - leaves an unknown ~user as it is
    if not isinstance(value, str) or not path.is_absolute() or _NOT_IN_PATHS.search(value):
        raise ValueError(
            f"{brief(value)} is not a share; write auto or the absolute path of a folder, "
            "without line breaks and backslashes"
        )
    return str(path)


def _check_env(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    for name in value:
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{brief(name)} is not the name of an environment variable")
    # YAML reads `OMP_NUM_THREADS: 2` as a number; an environment holds text.
    return {k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for k, v in value.items()}


Rate = Annotated[
    int | None,
    BeforeValidator(parse_rate, json_schema_input_type=str | int | None),
    PlainSerializer(format_rate, return_type=str),
]
Size = Annotated[
    int | None,
    BeforeValidator(parse_size, json_schema_input_type=str | int | None),
    PlainSerializer(format_size, return_type=str),
]
Delay = Annotated[
    str | None,
    BeforeValidator(parse_delay),
    Field(json_schema_extra={"pattern": _DELAY.pattern}),
]
Name = Annotated[str, BeforeValidator(_check_name)]


class Spec(BaseModel):
    """A cluster. Every key can stand in hvdctl.yml and be given as a flag."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title="hvdctl.yml")

    name: Name = Field("default", description="Name of the cluster; several can stand side by side.")
    provider: Annotated[str, BeforeValidator(_check_provider)] = Field(
        "local",
        description="Where the nodes come from.",
        json_schema_extra={"enum": list(providers.REGISTRY)},
    )
    nodes: int = Field(2, ge=1, le=MAX_NODES, description="Number of nodes; the first one is the head.")
    slots: int = Field(1, ge=1, le=256, description="Ranks that a node takes.")
    cpus: float | None = Field(None, ge=0.01, le=1024, description="CPUs of a node; null: no limit.")
    memory: Size = Field(None, description="Memory of a node, such as 4g; none: no limit.")
    gpus: int = Field(0, ge=0, le=64, description="GPUs of a node.")
    net: Rate = Field(None, description="Link rate of every node, such as 100m, 1g, 10g; none: not limited.")
    framework: Literal["pytorch", "tensorflow"] = Field("pytorch", description="Which image of hvdctl the nodes run.")
    image: Annotated[str, BeforeValidator(_check_image)] = Field(
        "auto", min_length=1, description="Image of the nodes; auto: the one of `framework`, built here."
    )
    share: Annotated[str, BeforeValidator(_check_share)] = Field(
        "auto", description="What is at /shared on every node; auto: a volume of its own, or a folder's path."
    )
    jupyter: bool = Field(True, description="JupyterLab on the head, reached with `hvdctl jupyter`.")
    env: Annotated[dict[str, str], BeforeValidator(_check_env)] = Field(
        default_factory=dict, description="Environment variables of every job."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the provider's own; docs/providers.md has them."
    )

    def own(self) -> BaseModel:
        """The provider's own settings, checked, with its defaults."""
        return _own(self.provider).model_validate(self.options)

    def stored(self) -> dict[str, Any]:
        """The spec as it is written to a file."""
        return self.model_dump(mode="json")

    def shown(self) -> dict[str, Any]:
        """The spec as others may see it."""
        return self.stored() | {"image": masked(self.image), "env": dict.fromkeys(self.env, redact.HIDDEN)}


def load(file: Path | None, flags: Mapping[str, Any], stored: Mapping[str, Any] | None = None) -> Spec:
    """The spec of a cluster: what it was before, under what the file says, under what the flags say.

    Variables of `env` and settings of `options` that are flags go over the others one by one.
    """
    written = _laid_out(read_file(file), str(file)) if file else {}
    by_layout = {key: "--layout" for key in _LAYOUT_KEYS if "layout" in flags}
    flags = _laid_out(flags, "--layout")
    before = kept(stored or {}, {**written, **flags})
    values = {**before, **written, **flags}
    source = str(file) if file else "the flags"
    by_flag = {key: f"--{key}" for key in flags} | by_layout
    for key, flag in (("env", "--env"), ("options", "--option")):
        over = flags.get(key)
        if not isinstance(over, Mapping):
            continue
        below = written.get(key) or before.get(key) or {}
        # Where it is of the wrong form, it is refused as it is.
        values[key] = {**below, **over} if isinstance(below, Mapping) else below
        by_flag[key] = f"{flag} or {source}" if below else flag
        by_flag |= {f"{key}.{name}": f"{flag} {name}" for name in over}
    return parse(values, source, by_flag)


def _laid_out(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """With `layout` written out as the keys that it stands for."""
    rest = {key: value for key, value in values.items() if key != "layout"}
    if "layout" not in values:
        return rest
    found = _LAYOUT.fullmatch(str(values["layout"]))
    if not found:
        raise UsageError(
            f"layout: {brief(values['layout'])} is not NODESxGPUS; "
            "write 10x1 for ten nodes of one GPU, 1x10 for one of ten",
            hint=f"in {source}",
        )
    nodes, gpus = map(int, found.groups())
    if twice := [key for key in _LAYOUT_KEYS if key in rest]:
        raise UsageError(f"layout says what {' and '.join(twice)} say too", hint=f"leave one of them out of {source}")
    return rest | {"nodes": nodes, "slots": gpus, "gpus": gpus}


def kept(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What still holds of a stored spec: with another provider, not the options of the one before."""
    other = given.get("provider", stored.get("provider")) != stored.get("provider")
    return {key: value for key, value in stored.items() if not (other and key == "options")}


def parse(values: Mapping[str, Any], source: str, by_flag: Mapping[str, str] | None = None) -> Spec:
    """A checked spec, or an error that names each bad value and what to write in its place.

    `by_flag` has the flags by the keys that they gave; the other keys are of `source`.
    """
    try:
        spec = Spec.model_validate(dict(values))
    except ValidationError as error:
        where = _places(error, source, by_flag or {})
        problems = [_explain(problem, Spec) for problem in error.errors()]
        raise UsageError("; ".join(problems), hint=where) from None
    try:
        spec.own()
    except ValidationError as error:
        where = _places(error, source, by_flag or {}, "options")
        problems = [_explain(problem, _own(spec.provider), spec.provider) for problem in error.errors()]
        raise UsageError("; ".join(problems), hint=where) from None
    return spec


def read_file(file: Path) -> dict[str, Any]:
    """The keys and values of a spec file, unchecked but for its form."""
    try:
        data = yamltext.load(file.read_text(encoding="utf-8"), verbatim={"env"})
    except FileNotFoundError:
        raise UsageError(f"there is no file {file}", hint="`hvdctl init` writes one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} can't be read: {error}") from None
    except yamltext.NotYamlError as error:
        where = f" in line {error.line}" if error.line else ""
        raise UsageError(f"{file} is not YAML{where}: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{file} holds {type(data).__name__}, not keys and values such as `nodes: 4`")
    return {str(key): value for key, value in data.items()}


def schema() -> dict[str, Any]:
    """The JSON Schema of hvdctl.yml, for editors: what `options` may hold depends on the provider."""
    common = Spec.model_json_schema()
    common["properties"]["layout"] = {
        "description": "NODESxGPUS, in place of `nodes`, `gpus` and `slots`: 10x1 is ten nodes of one GPU each.",
        "pattern": f"^{_LAYOUT.pattern}$",
        "title": "Layout",
        "type": "string",
    }
    own = [
        {
            "if": {"properties": {"provider": {"const": name}}, "required": ["provider"]},
            "then": {"properties": {"options": _options_schema(provider, common.setdefault("$defs", {}))}},
        }
        for name, provider in providers.REGISTRY.items()
    ]
    return {"$schema": _DIALECT, **common, "allOf": own}


def _options_schema(provider: providers.Provider, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a provider's options; models within them go to the definitions of the whole."""
    own = _own(provider.name).model_json_schema()
    definitions |= own.pop("$defs", {})
    return own | {"title": f"options of {provider.name}"}


def template() -> str:
    """A commented hvdctl.yml with every key at its default."""
    lines = ["# The cluster that `hvdctl up` makes. Every key is also a flag, and the flag wins."]
    for key, value in Spec().stored().items():
        lines += ["", f"# {Spec.model_fields[key].description}"]
        written = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
        lines += [f"{key}: {written}"]
    return "\n".join(lines) + "\n"


def _own(provider: str) -> type[BaseModel]:
    return providers.REGISTRY[provider].site.Options


def _places(error: ValidationError, source: str, by_flag: Mapping[str, str], *prefix: str) -> str:
    """Where the bad values were given, and where all that can be given is written down."""
    keys = [(*prefix, *map(str, problem["loc"])) for problem in error.errors()]
    given = dict.fromkeys(_place(key, source, by_flag) for key in keys)
    where = f"in {' and '.join(given)}"
    if prefix:
        return f"{where}; docs/providers.md and `hvdctl schema` have all options"
    return where if all(place.startswith("--") for place in given) else f"{where}; {_TEMPLATE}"


def _place(key: Sequence[str], source: str, by_flag: Mapping[str, str]) -> str:
    if len(key) > 1 and key[0] in {"env", "options"}:
        return by_flag.get(".".join(key[:2]), source)
    return by_flag.get(key[0], source)


def _explain(problem: Mapping[str, Any], model: type[BaseModel], provider: str = "") -> str:
    key = ("options." if provider else "") + ".".join(str(part) for part in problem["loc"])
    value = problem["input"]
    if problem["type"] == "extra_forbidden":
        known = list(_fields(model, problem["loc"][:-1]))
        if not known:
            return f"{key}: provider {provider} has no options"
        near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(known)}"
        return f"unknown key {brief(key)}; {advice}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}: {message}"
    return f"{key}: {brief(value)} is not valid; {message[:1].lower()}{message[1:]}"


def _fields(model: type[BaseModel], place: Sequence[Any]) -> Mapping[str, Any]:
    """The keys that are valid at a place in a model, through lists and models in it."""
    for part in place:
        if isinstance(part, int):
            continue
        inner = model.model_fields[part].annotation
        found = [t for t in (inner, *get_args(inner)) if isinstance(t, type) and issubclass(t, BaseModel)]
        model = found[0] if found else model
    return model.model_fields
