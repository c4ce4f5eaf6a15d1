"""The steps that make an image: downloads and builds, each with what it needs, so that only what is missing is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdctl import debian, engine, paths, wheels
from hvdctl.graph import Task
from hvdctl.imagebuild import Builder, Content
from hvdctl.imageplan import Plan
from hvdctl.progress import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient

# A compiler may be silent for minutes; an engine that is lost ends the connection anyway.
PATIENCE = 3600


@dataclass(frozen=True)
class Part:
    """One thing to make, an image or a folder of wheels, and the parts that it is made of."""

    title: str
    exists: Callable[[DockerClient], bool]
    make: Callable[[Step, bool], None]  # with True: from scratch, whatever the engine's cache holds
    needs: tuple[Part, ...] = ()
    expected: float = 10.0
    # Downloads are named by their exact contents: there is no reason to repeat one.
    repeatable: bool = True


def missing(wanted: Iterable[Part], client: DockerClient, *, rebuild: bool = False) -> list[Task]:
    """The tasks that make the parts. A part that exists needs nothing below it."""
    found: dict[str, Task] = {}

    def visit(part: Part) -> None:
        if part.title in found or ((not rebuild or not part.repeatable) and part.exists(client)):
            return
        for below in part.needs:
            visit(below)
        after = tuple(below.title for below in part.needs)
        found[part.title] = Task(part.title, lambda step: part.make(step, rebuild), after, part.expected)

    for part in wanted:
        visit(part)
    return list(found.values())


def node(plan: Plan, *, jupyter: bool = True) -> Part:
    """The image that nodes run, with all that it is made of."""
    base = _base(plan)
    runtime = _image(
        plan,
        "runtime",
        f"Runtime for {plan.title}",
        arguments={"BASE": plan.names["base"], "COMPILED": plan.names["compiled"]},
        dockerfile="runtime.Dockerfile",
        needs=(base, _compiled(plan)),
        expected=14,
    )
    below = _lab(plan, base, runtime) if jupyter else runtime
    return _image(
        plan,
        "jupyter" if jupyter else "horovod",
        f"Node image for {plan.title}",
        arguments={"RUNTIME": plan.names["lab" if jupyter else "runtime"]},
        dockerfile="agent.Dockerfile",
        needs=(below,),
        expected=2,
    )


def machine(plan: Plan) -> Part:
    """The root file system of virtual machines."""
    arguments = {"DEBIAN": plan.names["debian"], **debian.proxy()}
    return _image(plan, "vm", "Machine image", arguments=arguments, needs=(_debian(plan),), expected=60)


def _debian(plan: Plan) -> Part:
    suite = plan.versions["debian"]["suite"]

    def make(step: Step, fresh: bool) -> None:
        with _builder(plan, "debian", fresh) as (client, builder):
            parent = debian.parent(client, plan.versions["debian"]["image"], suite, builder.teller(step))
            apt = {"sources.list": debian.mirror(suite).sources_list(suite).encode()}
            builder.build(plan.names, "debian", {**plan.sources["debian"], **apt}, {"PARENT": parent}, step)

    return Part("Debian", _there(plan, "debian"), make, expected=27)


def _base(plan: Plan) -> Part:
    arguments = {"DEBIAN": plan.names["debian"], **debian.proxy()}
    return _image(plan, "base", "Base image", arguments=arguments, needs=(_debian(plan),), expected=25)


def _compiled(plan: Plan) -> Part:
    download = _wheels(plan.toolchain, "Horovod's source", expected=8)
    toolchain = _image(
        plan,
        "toolchain",
        "Compilers and common code",
        arguments={
            "DEBIAN": plan.names["debian"],
            "HOROVOD": plan.toolchain.horovod,
            "CXX_STANDARD": plan.versions["horovod"]["cxx_standard"],
            **debian.proxy(),
        },
        house=plan.toolchain,
        needs=(_debian(plan), download),
        expected=75,
    )
    arguments = {"BUILD_ROOT": plan.names["toolchain"], "FRAMEWORK": plan.framework}
    root = toolchain
    if plan.cuda is not None:
        toolkit = {"ROOT": plan.names["toolchain"], "TOOLKIT": plan.cuda["image"]}
        title = f"CUDA {plan.cuda['version']}"
        root = _image(plan, "cuda", title, arguments=toolkit, needs=(toolchain,), expected=120)
        arguments |= {"BUILD_ROOT": plan.names["cuda"], "GPU_OPERATIONS": "NCCL"}
    packages = _wheels(plan.pins, f"Packages for {plan.title}", expected=20)
    return _image(
        plan,
        "compiled",
        f"Horovod for {plan.title}",
        arguments=arguments,
        house=plan.pins,
        needs=(root, packages),
        expected=150,
    )


def _lab(plan: Plan, base: Part, runtime: Part) -> Part:
    files = _image(
        plan,
        "labfiles",
        "JupyterLab",
        arguments={"BASE": plan.names["base"]},
        house=plan.lab,
        needs=(base, _wheels(plan.lab, "Packages for JupyterLab", expected=40)),
        expected=50,
    )
    return _image(
        plan,
        "lab",
        f"JupyterLab for {plan.title}",
        arguments={"RUNTIME": plan.names["runtime"], "FILES": plan.names["labfiles"]},
        dockerfile="lab.Dockerfile",
        needs=(runtime, files),
        expected=10,
    )


def _image(
    plan: Plan,
    kind: str,
    title: str,
    *,
    arguments: Mapping[str, str],
    needs: tuple[Part, ...],
    expected: float,
    house: wheels.Pins | None = None,
    dockerfile: str = "Dockerfile",
) -> Part:
    """An image that the engine builds from its folder and, with `house`, from a folder of wheels."""

    def make(step: Step, fresh: bool) -> None:
        context: dict[str, Content] = dict(plan.sources[kind])
        if house is not None:
            context["requirements.txt"] = "\n".join(house.packages).encode()
            context |= {f"wheels/{path.name}": path for path in sorted(wheels.wheelhouse(house).iterdir())}
        with _builder(plan, kind, fresh) as (_, builder):
            builder.build(plan.names, kind, context, arguments, step, dockerfile)

    return Part(title, _there(plan, kind), make, needs, expected)


def _wheels(wanted: wheels.Pins, title: str, *, expected: float) -> Part:
    def make(step: Step, fresh: bool) -> None:
        house = wheels.wheelhouse(wanted, step.update)
        step.update(f"{len(list(house.iterdir()))} files")

    return Part(title, lambda _: wheels.house(wanted).is_dir(), make, expected=expected, repeatable=False)


def _there(plan: Plan, kind: str) -> Callable[[DockerClient], bool]:
    return lambda client: bool(client.images.list(plan.names[kind]))


@contextmanager
def _builder(plan: Plan, kind: str, fresh: bool) -> Iterator[tuple[DockerClient, Builder]]:
    """A builder with a connection and a log of its own, as other parts are built at the same time."""
    name = plan.names[kind]
    log = log_of(name)
    client = engine.client(timeout=PATIENCE)
    try:
        yield client, Builder(client, log, {"hvdctl.framework": plan.framework}, fresh=fresh)
    except engine.failures() as error:
        known = engine.describe(error)
        raise type(known)(f"{name} was not built: {known.message}", hint=known.hint, log=log) from error
    finally:
        client.close()


def log_of(name: str) -> Path:
    """Where the build of an image writes all that the engine says."""
    return paths.cache() / "logs" / f"image-{name.removeprefix('hvdctl/').replace(':', '-')}.log"
