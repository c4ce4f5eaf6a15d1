"""The container images: what they are called, which of them are there, and how the missing ones are made.

    debian ─┬─ base ──────────────────────────────────┬─ runtime ─┬─ horovod (the agent on top, seconds)
            └─ compiled (a framework, Horovod; minutes) ─┘         └─ lab (JupyterLab) ── jupyter (the same on top)

Nodes run `jupyter`, or `horovod` where the spec leaves JupyterLab out. Each is named by a digest of what goes into it,
so an image that exists is an image that is right.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hvdctl import debian, engine, nodefiles, paths, providers, wheels
from hvdctl.errors import HvdctlError
from hvdctl.imagebuild import Builder, Content
from hvdctl.progress import Progress

if TYPE_CHECKING:
    from docker import DockerClient

    from hvdctl.spec import Spec

FRAMEWORKS = wheels.FRAMEWORKS
# The files of images/jupyter that make the lab; the others are of the last layer.
_LAB = ("Dockerfile", "trim.sh")


@dataclass(frozen=True)
class Built:
    """The image to start nodes from; `built` tells whether anything had to be made for it."""

    reference: str
    id: str
    seconds: float
    built: bool


@dataclass(frozen=True)
class Installed:
    """An image of hvdctl that the engine holds; `current` when the code at hand would use it."""

    reference: str
    id: str
    kind: str
    framework: str
    size: int
    created: datetime
    current: bool


def reference(framework: str, cuda: str | None = None, *, jupyter: bool = True) -> str:
    """The name of the nodes' image. It changes exactly when something that goes into the image does."""
    return plan_of(framework, cuda).names[_node(jupyter)]


def for_spec(spec: Spec) -> str:
    """The name of the image that the nodes of a spec run."""
    if spec.image != "auto":
        return spec.image
    return reference(spec.framework, cuda_for(spec), jupyter=spec.jupyter)


def cuda_for(spec: Spec) -> str | None:
    """The CUDA version that the nodes of a spec need; None where they have no GPU."""
    wanted = spec.gpus and providers.REGISTRY[spec.provider].cuda
    return wheels.cuda_version(spec.framework) if wanted else None


def compiled_reference(framework: str, cuda: str | None = None) -> str:
    """The name of the image with the part that takes minutes to compile."""
    return plan_of(framework, cuda).names["compiled"]


def build(
    framework: str, progress: Progress, *, cuda: str | None = None, jupyter: bool = True, rebuild: bool = False
) -> Built:
    """Make what is missing of the image, or all of it anew with `rebuild`; at once when nothing is."""
    started = time.monotonic()
    plan = plan_of(framework, cuda)
    wanted = plan.names[_node(jupyter)]
    # A compiler may be silent for minutes; an engine that is lost ends the connection anyway.
    client = engine.client(timeout=3600)
    try:
        made = False
        if rebuild or not client.images.list(wanted):
            with turn(progress):
                if rebuild or not client.images.list(wanted):
                    _build_missing(client, plan, progress, jupyter, rebuild)
                    made = True
        return Built(wanted, str(client.images.get(wanted).id), time.monotonic() - started, made)
    finally:
        client.close()


def installed() -> list[Installed]:
    """The images of hvdctl in the engine, the newest first."""
    client = engine.client()
    try:
        held = client.images.list(filters={"label": "hvdctl.image"})
    finally:
        client.close()
    now = current()
    found = [
        Installed(
            reference=tag,
            id=str(image.id),
            kind=image.labels["hvdctl.image"],
            framework=image.labels.get("hvdctl.framework", ""),
            size=image.attrs["Size"],
            created=datetime.fromisoformat(image.attrs["Created"][:19] + "+00:00"),
            current=tag in now,
        )
        for image in held
        for tag in image.tags
    ]
    return sorted(found, key=lambda image: image.created, reverse=True)


def identity(name: str) -> str | None:
    """The id of an image that the engine here holds; None where there is no such image or no engine."""
    from docker.errors import ImageNotFound

    try:
        client = engine.client()
    except HvdctlError:
        return None
    try:
        return str(client.images.get(name).id)
    except ImageNotFound:
        return None
    finally:
        client.close()


def current() -> frozenset[str]:
    """The names of all images that the code at hand would use."""
    variants: list[tuple[str, str | None]] = []
    for framework in FRAMEWORKS:
        variants += [(framework, None), (framework, wheels.versions()["cuda"][framework]["version"])]
    return frozenset(name for variant in variants for name in plan_of(*variant).names.values())


@dataclass(frozen=True)
class Plan:
    """All inputs of a chain of images, read once: what is built is what the names were made of."""

    framework: str
    cuda: dict[str, Any] | None
    versions: dict[str, Any]
    pins: wheels.Pins
    lab: wheels.Pins
    sources: dict[str, dict[str, Content]]
    names: dict[str, str]


def plan_of(framework: str, cuda: str | None) -> Plan:
    pins = wheels.pins(framework, cuda)
    known = wheels.versions()
    variant = None if cuda is None else wheels.cuda_variant(framework, cuda)
    title = framework if cuda is None else f"{framework}-cuda{cuda}"
    suite = known["debian"]["suite"]
    sources = {folder: nodefiles.folder(folder) for folder in ("debian", "base", "cuda", "vm")}
    sources |= _steps(nodefiles.folder("horovod"))
    sources["lab"] = {name: content for name, content in nodefiles.folder("jupyter").items() if name in _LAB}
    sources["horovod"] = nodefiles.horovod()
    sources["jupyter"] = nodefiles.jupyter(framework)
    lab = wheels.lab()

    # Each digest covers what lies below its image.
    names = {}
    names["debian"] = f"hvdctl/debian:{suite}-{_digest(known['debian'], sources['debian'])}"
    names["base"] = f"hvdctl/base:{_digest(names['debian'], sources['base'])}"
    names["vm"] = f"hvdctl/vm:{_digest(names['debian'], sources['vm'])}"
    if variant is not None:
        names["cuda"] = f"hvdctl/cuda:{cuda}-{_digest(names['debian'], variant['image'], sources['cuda'])}"
    root = names.get("cuda", names["debian"])
    compiled = _digest(root, pins.digest, known["horovod"], sources["compiled"])
    names["compiled"] = f"hvdctl/compiled:{title}-{compiled}"
    names["runtime"] = f"hvdctl/runtime:{title}-{_digest(names['base'], compiled, sources['runtime'])}"
    names["horovod"] = f"hvdctl/horovod:{title}-{_digest(names['runtime'], sources['horovod'])}"
    names["lab"] = f"hvdctl/lab:{title}-{_digest(names['runtime'], lab.digest, sources['lab'])}"
    names["jupyter"] = f"hvdctl/jupyter:{title}-{_digest(names['lab'], sources['jupyter'])}"
    return Plan(framework, variant, known, pins, lab, sources, names)


def _build_missing(client: DockerClient, plan: Plan, progress: Progress, jupyter: bool, rebuild: bool) -> None:
    names, sources, node = plan.names, plan.sources, _node(jupyter)
    log = paths.cache() / "logs" / f"image-{names[node].rsplit(':', 1)[1]}.log"
    builder = Builder(client, log, {"hvdctl.framework": plan.framework}, fresh=rebuild)

    def missing(kind: str) -> bool:
        return rebuild or not client.images.list(names[kind])

    # An image that exists needs nothing below it any more.
    lab = jupyter and missing("lab")
    runtime = (lab or not jupyter) and missing("runtime")
    base = runtime and missing("base")
    compiled = runtime and missing("compiled")
    if (base or compiled) and missing("debian"):
        build_debian(client, plan, builder, progress)
    if base:
        with progress.phase("Base image") as step:
            arguments = {"DEBIAN": names["debian"], **debian.proxy()}
            builder.build(names, "base", sources["base"], arguments, step)
    if compiled:
        _compile(builder, plan, progress)
    if runtime:
        with progress.phase("Runtime image") as step:
            arguments = {"BASE": names["base"], "COMPILED": names["compiled"]}
            builder.build(names, "runtime", sources["runtime"], arguments, step, "runtime.Dockerfile")
    if lab:
        _install_lab(builder, plan, progress)
    with progress.phase("Node image") as step:
        arguments = {"RUNTIME": names["lab" if jupyter else "runtime"]}
        builder.build(names, node, sources[node], arguments, step, "agent.Dockerfile")
    # The build stage, and images that have just lost their names to new ones.
    client.images.prune(filters={"dangling": True, "label": "hvdctl.image"})


def build_debian(client: DockerClient, plan: Plan, builder: Builder, progress: Progress) -> None:
    """The plain Debian under all other images."""
    suite = plan.versions["debian"]["suite"]
    with progress.phase("Debian") as step:
        parent = debian.parent(client, plan.versions["debian"]["image"], suite, builder.teller(step))
        apt = {"sources.list": debian.mirror(suite).sources_list(suite).encode()}
        builder.build(plan.names, "debian", {**plan.sources["debian"], **apt}, {"PARENT": parent}, step)


def _compile(builder: Builder, plan: Plan, progress: Progress) -> None:
    names, pins = plan.names, plan.pins
    with progress.phase("Packages") as step:
        house = wheels.wheelhouse(pins, builder.teller(step))
        step.update(f"{len(list(house.iterdir()))} files")
    arguments = {
        "BUILD_ROOT": names["debian"],
        "FRAMEWORK": plan.framework,
        "HOROVOD": pins.horovod,
        "CXX_STANDARD": plan.versions["horovod"]["cxx_standard"],
        **debian.proxy(),
    }
    if plan.cuda is not None:
        with progress.phase(f"CUDA {plan.cuda['version']}") as step:
            toolkit = {"DEBIAN": names["debian"], "TOOLKIT": plan.cuda["image"]}
            builder.build(names, "cuda", plan.sources["cuda"], toolkit, step)
        arguments |= {"BUILD_ROOT": names["cuda"], "GPU_OPERATIONS": "NCCL"}
    context: dict[str, Content] = {
        **plan.sources["compiled"],
        "build.txt": "\n".join(pins.build).encode(),
        "requirements.txt": "\n".join(pins.packages).encode(),
        **{f"wheels/{path.name}": path for path in sorted(house.iterdir())},
    }
    with progress.phase(f"Horovod for {plan.framework}") as step:
        builder.build(names, "compiled", context, arguments, step)


def _install_lab(builder: Builder, plan: Plan, progress: Progress) -> None:
    with progress.phase("JupyterLab's packages") as step:
        house = wheels.wheelhouse(plan.lab, builder.teller(step))
        step.update(f"{len(list(house.iterdir()))} files")
    context: dict[str, Content] = {
        **plan.sources["lab"],
        "requirements.txt": "\n".join(plan.lab.packages).encode(),
        **{f"wheels/{path.name}": path for path in sorted(house.iterdir())},
    }
    with progress.phase("JupyterLab") as step:
        builder.build(plan.names, "lab", context, {"RUNTIME": plan.names["runtime"]}, step)


def _node(jupyter: bool) -> str:
    return "jupyter" if jupyter else "horovod"


def _steps(files: dict[str, Content]) -> dict[str, dict[str, Content]]:
    """The files of images/horovod by the step that they go into: the compile, unless they are named here."""
    later = {"describe.py": "runtime", "runtime.Dockerfile": "runtime", "agent.Dockerfile": "", "hvd-agent": ""}
    steps: dict[str, dict[str, Content]] = {"compiled": {}, "runtime": {}, "": {}}
    for name, content in files.items():
        steps[later.get(name, "compiled")][name] = content
    del steps[""]  # of the last layer, which nodefiles.py puts together
    return steps


def _digest(*parts: Any) -> str:
    def plain(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else str(value)

    text = json.dumps(parts, sort_keys=True, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextmanager
def turn(progress: Progress) -> Iterator[None]:
    """One build at a time on this machine; the lock goes with its process, however that ends."""
    path = paths.cache() / "images.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.phase("Waiting for another hvdctl that builds images"):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
