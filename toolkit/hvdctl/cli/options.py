"""Options that several verbs share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hvdctl.cluster import Cluster
    from hvdctl.spec import Spec


_DIGITS = 18


def integer(text: str | int) -> int:
    """The number, or ValueError: also for one with so many digits that no float is near it."""
    if len(str(text).strip()) > _DIGITS:
        raise ValueError("too many digits")
    return int(text)


def whole(text: str) -> int:
    try:
        return integer(text)
    except ValueError:
        raise typer.BadParameter(f"{str(text)[:40]!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def size(text: str) -> int:
    import sys

    from hvdctl.spec import parse_size

    try:
        return parse_size(text) or sys.maxsize
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a size; write 512m, 20g (64m or more) or none") from None


NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Cluster (default: from hvdctl.yml, else `default`).", metavar="NAME"),
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="Spec file (default: hvdctl.yml where there is one).", metavar="FILE"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Every detail as it comes.")]

NodesOption = Annotated[int | None, typer.Option("--nodes", "-n", help="Number of nodes.", metavar="N", parser=whole)]
SlotsOption = Annotated[int | None, typer.Option("--slots", help="Ranks that a node takes.", metavar="N", parser=whole)]
CpusOption = Annotated[float | None, typer.Option("--cpus", help="CPUs of a node.", metavar="N", parser=number)]
MemoryOption = Annotated[str | None, typer.Option("--memory", help="Memory of a node: 512m, 4g, none.", metavar="SIZE")]
GpusOption = Annotated[int | None, typer.Option("--gpus", help="GPUs of a node.", metavar="N", parser=whole)]
LayoutOption = Annotated[
    str | None,
    typer.Option("--layout", help="NODESxGPUS in one word, with a rank for each GPU: 10x1, 1x10.", metavar="NxG"),
]
NetOption = Annotated[
    str | None, typer.Option("--net", help="Link rate of a node: 100m, 1g, 10g, none.", metavar="RATE")
]
FrameworkOption = Annotated[str | None, typer.Option("--framework", help="pytorch or tensorflow.", metavar="NAME")]
ImageOption = Annotated[str | None, typer.Option("--image", help="Image of the nodes, or auto.", metavar="IMAGE")]
ShareOption = Annotated[
    str | None, typer.Option("--share", help="auto, or the folder that is /shared.", metavar="PATH")
]
ProviderOption = Annotated[str | None, typer.Option("--provider", help="Where the nodes come from.", metavar="NAME")]
OwnOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="A setting of the provider's own; repeatable.", metavar="NAME=VALUE"),
]
JupyterOption = Annotated[
    bool | None, typer.Option("--jupyter/--no-jupyter", help="JupyterLab on the head, or none.", show_default=False)
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", help="For jobs; repeatable. NAME alone: the value it has here.", metavar="NAME[=VALUE]"),
]
EnvFileOption = Annotated[
    list[Path] | None,
    typer.Option("--env-file", help="A file with lines NAME=VALUE for jobs; repeatable.", metavar="FILE"),
]


KeepImageOption = Annotated[
    bool, typer.Option("--keep-image", help="Keep the image that the nodes have, also after an upgrade of hvdctl.")
]

MaxSizeOption = Annotated[
    int | None,
    typer.Option(
        "--max-size", help="Most that may be copied: 512m, 20g, none (default: 10g).", metavar="SIZE", parser=size
    ),
]


def _show_version(asked: bool) -> None:
    if asked:
        from hvdctl import __version__

        typer.echo(f"hvdctl {__version__}")
        raise typer.Exit


def version(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


def spec_file(file: Path | None) -> Path | None:
    """The file that was named, else hvdctl.yml in this folder where there is one."""
    from hvdctl.spec import FILE

    return file or (Path(FILE) if Path(FILE).is_file() else None)


def find_cluster(name: str | None, file: Path | None = None) -> Cluster:
    """The cluster that a verb is about."""
    from hvdctl.cluster import Cluster
    from hvdctl.spec import parse, read_file

    source = spec_file(file)
    chosen = name if name is not None else (read_file(source) if source else {}).get("name", "default")
    return Cluster(parse({"name": chosen}, source="--name" if name is not None else str(source)).name)


def resolve(
    name: str | None,
    file: Path | None,
    env: list[str] | None = None,
    option: list[str] | None = None,
    env_file: list[Path] | None = None,
    **flags: Any,
) -> Spec:
    """The spec: what the cluster was, under the file, under the flags."""
    from hvdctl.spec import load

    cluster = find_cluster(name, file)
    given = {key: value for key, value in flags.items() if value is not None} | {"name": cluster.name}
    source = spec_file(file)
    if file is None and source and cluster.exists and not _is_of(source, cluster.name):
        from hvdctl.cli.terminal import Terminal

        Terminal().say(
            f"{source} is of another cluster: {cluster.name!r} keeps its own settings; `--file {source}` applies them"
        )
        source = None
    given |= {key: over for key, over in (("env", environment(env, env_file)), ("options", settings(option))) if over}
    return load(source, given, cluster.spec().stored() if cluster.exists else {})


def _is_of(source: Path, name: str) -> bool:
    from hvdctl.spec import read_file

    return bool(read_file(source).get("name", "default") == name)


def pairs(flag: str, given: list[str], example: str) -> dict[str, str]:
    """Words NAME=VALUE as a mapping."""
    from hvdctl.errors import UsageError

    found = {}
    for word in given:
        name, mark, value = word.partition("=")
        if not name or not mark:
            raise UsageError(f"{flag} {word!r} is not NAME=VALUE", hint=f"for example {flag} {example}")
        found[name] = value
    return found


def environment(given: list[str] | None, files: list[Path] | None) -> dict[str, str]:
    from hvdctl import envfile

    return envfile.collect(given or [], files or [])


def settings(given: list[str] | None) -> dict[str, Any]:
    """Settings of a provider's own, each value read as in hvdctl.yml."""
    from hvdctl import yamltext
    from hvdctl.errors import UsageError

    found = {}
    for name, value in pairs("--option", given or [], "internet=false").items():
        try:
            found[name] = yamltext.load(value)
        except yamltext.NotYamlError:
            raise UsageError(f"--option {name}={value}: the value is not YAML", hint="put it in quotes") from None
    return found
