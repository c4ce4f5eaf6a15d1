"""The container images: what they are called, which of them are there, and how the missing ones are made.

    debian -> base -> compiled (a framework and Horovod, minutes) -> horovod (the agent on top, seconds)

Each is named by a digest of what goes into it, so an image that exists is an image that is right.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdctl import debian, engine, paths, wheels
from hvdctl.imagebuild import Builder, Content
from hvdctl.progress import Progress

if TYPE_CHECKING:
    from docker import DockerClient

FRAMEWORKS = wheels.FRAMEWORKS


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


def reference(framework: str, cuda: str | None = None) -> str:
    """The name of the nodes' image. It changes exactly when something that goes into the image does."""
    return _references(framework, cuda)["horovod"]


def compiled_reference(framework: str, cuda: str | None = None) -> str:
    """The name of the image below the agent: the part that takes minutes to compile."""
    return _references(framework, cuda)["compiled"]


def build(framework: str, progress: Progress, *, cuda: str | None = None, rebuild: bool = False) -> Built:
    """Make what is missing of the image, or all of it anew with `rebuild`; at once when nothing is."""
    started = time.monotonic()
    names = _references(framework, cuda)
    # A compiler may be silent for minutes; an engine that is lost ends the connection anyway.
    client = engine.client(timeout=3600)
    try:
        made = False
        if rebuild or not client.images.list(names["horovod"]):
            with _turn(progress):
                if rebuild or not client.images.list(names["horovod"]):
                    _build_chain(client, names, framework, cuda, progress, rebuild)
                    made = True
        image = client.images.get(names["horovod"])
        return Built(names["horovod"], str(image.id), time.monotonic() - started, made)
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


def current() -> frozenset[str]:
    """The names of all images that the code at hand would use."""
    variants: list[tuple[str, str | None]] = []
    for framework in FRAMEWORKS:
        variants += [(framework, None), (framework, wheels.versions()["cuda"][framework]["version"])]
    return frozenset(name for variant in variants for name in _references(*variant).values())


def _references(framework: str, cuda: str | None) -> dict[str, str]:
    """Kind of image -> its name, from the bottom up; each digest covers what lies below it."""
    pins = wheels.pins(framework, cuda)
    known = wheels.versions()
    title = framework if cuda is None else f"{framework}-cuda{cuda}"
    below = known["debian"]
    names = {}
    names["debian"] = f"hvdctl/debian:{below['suite']}-{_digest(below, _files('debian'))}"
    names["base"] = f"hvdctl/base:{_digest(names['debian'], _files('base'))}"
    if cuda is not None:
        toolkit = wheels.cuda_variant(framework, cuda)["image"]
        names["cuda"] = f"hvdctl/cuda:{cuda}-{_digest(names['debian'], toolkit, _files('cuda'))}"
    sources = {name: text for name, text in _files("horovod").items() if name not in _AGENT_LAYER}
    inputs = (names.get("cuda"), pins.digest, known["horovod"], sources)
    names["compiled"] = f"hvdctl/compiled:{title}-{_digest(names['base'], *inputs)}"
    names["horovod"] = f"hvdctl/horovod:{title}-{_digest(names['compiled'], _agent_context())}"
    return names


def _build_chain(
    client: DockerClient,
    names: dict[str, str],
    framework: str,
    cuda: str | None,
    progress: Progress,
    rebuild: bool,
) -> None:
    known = wheels.versions()
    log = paths.cache() / "logs" / f"image-{names['horovod'].rsplit(':', 1)[1]}.log"
    builder = Builder(client, log, {"hvdctl.framework": framework}, fresh=rebuild)

    def missing(kind: str) -> bool:
        return kind in names and (rebuild or not client.images.list(names[kind]))

    # An existing upper image needs nothing below it, as its layers are its own.
    compile_it = missing("compiled")
    base_too = compile_it and missing("base")
    if compile_it and missing("debian"):
        suite = known["debian"]["suite"]
        with progress.phase("Debian") as step:
            parent = debian.parent(client, known["debian"]["image"], suite, builder.teller(step))
            sources = {"sources.list": debian.mirror(suite).sources_list(suite).encode()}
            builder.build(names, "debian", {**_files("debian"), **sources}, {"PARENT": parent}, step)
    if base_too:
        with progress.phase("Base image") as step:
            builder.build(names, "base", _files("base"), {"DEBIAN": names["debian"], **debian.proxy()}, step)
    if compile_it:
        pins = wheels.pins(framework, cuda)
        with progress.phase("Packages") as step:
            house = wheels.wheelhouse(pins, builder.teller(step))
            step.update(f"{len(list(house.iterdir()))} files")
        arguments = {
            "BUILD_ROOT": names["debian"],
            "BASE": names["base"],
            "FRAMEWORK": framework,
            "HOROVOD": pins.horovod,
            "CXX_STANDARD": known["horovod"]["cxx_standard"],
            **debian.proxy(),
        }
        if cuda is not None:
            variant = wheels.cuda_variant(framework, cuda)
            with progress.phase(f"CUDA {cuda}") as step:
                toolkit = {"DEBIAN": names["debian"], "TOOLKIT": variant["image"]}
                builder.build(names, "cuda", _files("cuda"), toolkit, step)
            arguments |= {"BUILD_ROOT": names["cuda"], "GPU_OPERATIONS": "NCCL"}
        with progress.phase(f"Horovod for {framework}") as step:
            builder.build(names, "compiled", _compile_context(pins, house), arguments, step)
            client.images.prune(filters={"dangling": True, "label": "hvdctl.image=build"})
    with progress.phase("Node image") as step:
        builder.build(names, "horovod", _agent_context(), {"COMPILED": names["compiled"]}, step, "agent.Dockerfile")


_AGENT_LAYER = ("agent.Dockerfile", "hvd-agent")


def _agent_context() -> dict[str, Content]:
    layer = _files("horovod")
    root = paths.agent()
    agent = {
        f"agent/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {**{name: layer[name] for name in _AGENT_LAYER}, **agent, "agent/.keep": b""}


def _compile_context(pins: wheels.Pins, house: Path) -> dict[str, Content]:
    lists: dict[str, Content] = {
        "build.txt": "\n".join(pins.build).encode(),
        "requirements.txt": "\n".join(pins.packages).encode(),
    }
    files: dict[str, Content] = {f"wheels/{path.name}": path for path in sorted(house.iterdir())}
    return {**_files("horovod"), **lists, **files}


def _files(folder: str) -> dict[str, Content]:
    """Name -> bytes of an image's folder, without what is only for people."""
    return {
        path.name: path.read_bytes()
        for path in sorted(paths.asset("images", folder).iterdir())
        if path.is_file() and path.suffix != ".md"
    }


def _digest(*parts: Any) -> str:
    def plain(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else str(value)

    text = json.dumps(parts, sort_keys=True, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextmanager
def _turn(progress: Progress) -> Iterator[None]:
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
