"""The container images: what they are called, which of them exist, and how missing ones are made."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from hvdctl import engine, graph, imageparts, paths, turns, wheels
from hvdctl.errors import HvdctlError
from hvdctl.imageplan import Plan, plan_of
from hvdctl.progress import Progress, Step

if TYPE_CHECKING:
    from docker import DockerClient

    from hvdctl.spec import Spec

FRAMEWORKS = wheels.FRAMEWORKS
# All images take a quarter of that on two slow cores.
_TURN_S = 7200.0


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
    from hvdctl import providers

    wanted = spec.gpus and providers.REGISTRY[spec.provider].cuda
    return wheels.cuda_version(spec.framework) if wanted else None


def compiled_reference(framework: str, cuda: str | None = None) -> str:
    """The name of the image with the part that takes minutes to compile."""
    return plan_of(framework, cuda).names["compiled"]


def build(
    framework: str, progress: Progress, *, cuda: str | None = None, jupyter: bool = True, rebuild: bool = False
) -> Built:
    """Build what is missing of the image, or all of it with `rebuild`; return at once if nothing is."""
    (built,) = build_all([plan_of(framework, cuda)], progress, jupyter=jupyter, rebuild=rebuild)
    return built


def build_all(
    plans: Sequence[Plan], progress: Progress, *, jupyter: bool = True, machine: bool = False, rebuild: bool = False
) -> list[Built]:
    """Build what is missing of several images side by side; with `machine` also the root of virtual machines."""
    started = time.monotonic()
    parts = [imageparts.node(plan, jupyter=jupyter) for plan in plans]
    below = [imageparts.machine(plans[0])] if machine else []
    client = engine.client()
    try:
        before = {part.title: part.exists(client) for part in parts}
        if rebuild or not all(part.exists(client) for part in (*parts, *below)):
            with turn(progress):
                graph.run(imageparts.missing([*parts, *below], client, rebuild=rebuild), progress)
                prune(client)
        took = time.monotonic() - started
        names = [plan.names[_node(jupyter)] for plan in plans]
        return [
            Built(name, str(client.images.get(name).id), took, rebuild or not before[part.title])
            for name, part in zip(names, parts, strict=True)
        ]
    except engine.failures() as error:
        raise engine.describe(error) from error
    finally:
        client.close()


def prune(client: DockerClient) -> None:
    """Remove build stages, and images that have lost their names to new ones."""
    client.images.prune(filters={"dangling": True, "label": "hvdctl.image"})


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


@contextmanager
def turn(progress: Progress) -> Iterator[None]:
    """One build at a time on this machine; while another one is under way, the progress shows whose."""
    path = paths.cache() / "images.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as shown, ExitStack() as held:
        steps: list[Step] = []

        def waiting(holder: str) -> None:
            if not steps:
                steps.append(shown.enter_context(progress.phase("Waiting for another hvdctl that builds images")))
            steps[0].update(holder)

        held.enter_context(turns.alone(path, "building images", waiting, limit=_TURN_S))
        shown.close()
        yield


def _node(jupyter: bool) -> str:
    return "jupyter" if jupyter else "horovod"
