"""The container images: what they are called, which of them are there, and how the missing ones are made.

    debian ─┬─ base ──────────────────────────────────┬─ runtime ── horovod (the agent on top, seconds)
            └─ compiled (a framework, Horovod; minutes) ─┘

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
    """The name of the image with the part that takes minutes to compile."""
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
    inputs = (names.get("cuda"), pins.digest, known["horovod"], _layer("compiled"))
    names["compiled"] = f"hvdctl/compiled:{title}-{_digest(names['debian'], *inputs)}"
    names["runtime"] = f"hvdctl/runtime:{title}-{_digest(names['base'], names['compiled'], _layer('runtime'))}"
    names["horovod"] = f"hvdctl/horovod:{title}-{_digest(names['runtime'], _layer('horovod'), _agent())}"
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

    # An image that exists needs nothing below it any more.
    runtime = missing("runtime")
    base = runtime and missing("base")
    compiled = runtime and missing("compiled")
    if (base or compiled) and missing("debian"):
        suite = known["debian"]["suite"]
        with progress.phase("Debian") as step:
            parent = debian.parent(client, known["debian"]["image"], suite, builder.teller(step))
            sources = debian.mirror(suite).sources_list(suite).encode()
            context = {**_files("debian"), "sources.list": sources}
            builder.build(names, "debian", context, {"PARENT": parent}, step)
    if base:
        with progress.phase("Base image") as step:
            builder.build(names, "base", _files("base"), {"DEBIAN": names["debian"], **debian.proxy()}, step)
    if compiled:
        _compile(builder, names, framework, cuda, progress)
        client.images.prune(filters={"dangling": True, "label": "hvdctl.image=build"})
    if runtime:
        with progress.phase("Runtime image") as step:
            arguments = {"BASE": names["base"], "COMPILED": names["compiled"]}
            builder.build(names, "runtime", _layer("runtime"), arguments, step, "runtime.Dockerfile")
    with progress.phase("Node image") as step:
        context = {**_layer("horovod"), **_agent()}
        builder.build(names, "horovod", context, {"COMPILED": names["runtime"]}, step, "agent.Dockerfile")


def _compile(builder: Builder, names: dict[str, str], framework: str, cuda: str | None, progress: Progress) -> None:
    pins = wheels.pins(framework, cuda)
    with progress.phase("Packages") as step:
        house = wheels.wheelhouse(pins, builder.teller(step))
        step.update(f"{len(list(house.iterdir()))} files")
    arguments = {
        "BUILD_ROOT": names["debian"],
        "FRAMEWORK": framework,
        "HOROVOD": pins.horovod,
        "CXX_STANDARD": wheels.versions()["horovod"]["cxx_standard"],
        **debian.proxy(),
    }
    if cuda is not None:
        variant = wheels.cuda_variant(framework, cuda)
        with progress.phase(f"CUDA {cuda}") as step:
            toolkit = {"DEBIAN": names["debian"], "TOOLKIT": variant["image"]}
            builder.build(names, "cuda", _files("cuda"), toolkit, step)
        arguments |= {"BUILD_ROOT": names["cuda"], "GPU_OPERATIONS": "NCCL"}
    context: dict[str, Content] = {
        **_layer("compiled"),
        "build.txt": "\n".join(pins.build).encode(),
        "requirements.txt": "\n".join(pins.packages).encode(),
        **{f"wheels/{path.name}": path for path in sorted(house.iterdir())},
    }
    with progress.phase(f"Horovod for {framework}") as step:
        builder.build(names, "compiled", context, arguments, step)


# The files of images/horovod that go into each step; what is not named here goes into the compile.
_LAYERS = {
    "runtime": ("describe.py", "runtime.Dockerfile"),
    "horovod": ("agent.Dockerfile", "hvd-agent"),
}


def _layer(kind: str) -> dict[str, Content]:
    later = [name for names in _LAYERS.values() for name in names]
    return {
        name: content
        for name, content in _files("horovod").items()
        if (name in _LAYERS[kind] if kind in _LAYERS else name not in later)
    }


def _agent() -> dict[str, Content]:
    """The code for nodes, whatever files it has."""
    root = paths.agent()
    found: dict[str, Content] = {
        f"agent/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {"agent/.keep": b"", **found}


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
