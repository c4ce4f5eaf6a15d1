"""Options that several verbs share, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hvdctl.cluster import Cluster
    from hvdctl.spec import Spec


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


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
EnvOption = Annotated[list[str] | None, typer.Option("--env", help="For every job; repeatable.", metavar="NAME=VALUE")]


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
    **flags: Any,
) -> Spec:
    """The spec: what the cluster was, under the file, under the flags."""
    from hvdctl.spec import load

    cluster = find_cluster(name, file)
    given = {key: value for key, value in flags.items() if value is not None} | {"name": cluster.name}
    given |= {key: over for key, over in (("env", environment(env)), ("options", settings(option))) if over}
    return load(spec_file(file), given, cluster.spec().stored() if cluster.exists else {})


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


def environment(given: list[str] | None) -> dict[str, str]:
    return pairs("--env", given or [], "OMP_NUM_THREADS=4")


def settings(given: list[str] | None) -> dict[str, Any]:
    """Settings of a provider's own, each value read as in hvdctl.yml."""
    import yaml

    from hvdctl.errors import UsageError

    found = {}
    for name, value in pairs("--option", given or [], "internet=false").items():
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"--option {name}={value}: the value is not YAML", hint="put it in quotes") from None
    return found
