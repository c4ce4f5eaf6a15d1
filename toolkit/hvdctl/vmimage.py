"""The image of virtual machines: Debian with its cloud kernel and all that the roles ask for.

It is built as a container image is, with the same Debian under it, and then written to a disk by a container of itself:
no guest has to be booted for it, and no root is needed beyond the engine. The layers of the Horovod image that seldom
change are in the guests' engine already, so that `up` has only the last one to push.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdctl import engine, graph, imageparts, imageplan, images, owner, paths, qemu
from hvdctl.cluster import digest
from hvdctl.errors import HvdctlError, PhaseError, UsageError
from hvdctl.progress import Progress, Step

if TYPE_CHECKING:
    from docker import DockerClient

# The file system's size is what a guest sees; on disk there is only what is in it.
_SIZE = "20G"
# What a build has in hand: folders beside the images, and containers that carry the folder of the images as this
# label. Others on the same engine may have the same path, so the owner's labels stand beside it.
_MAKING = ".making-"
_LABEL = "hvdctl.making"


def image(framework: str) -> qemu.Image:
    """Where the image for this framework lies, or would; the folder is named by all that goes into it."""
    names = imageplan.plan_of(framework).names
    return qemu.Image(paths.cache() / "vm" / f"{framework}-{digest(names['vm'], names['lab'], _SIZE)}")


def build(framework: str, progress: Progress, *, rebuild: bool = False) -> images.Built:
    """Make the image where it is not there; at once when it is."""
    started = time.monotonic()
    wanted = image(framework)
    if rebuild and qemu.in_use(wanted):
        raise UsageError(
            f"the image {wanted.folder.name} is what machines run on, or are based on",
            hint="`hvdctl list` shows the clusters; `hvdctl down` those on virtual machines first",
        )
    made = rebuild or not wanted.whole
    if made:
        plan = imageplan.plan_of(framework)
        images.build_all([plan], progress, machine=True)
        with images.turn(progress):
            if rebuild or not wanted.whole:
                _build(plan, wanted, progress, rebuild)
    return images.Built(str(wanted.folder), wanted.folder.name, time.monotonic() - started, made)


def installed() -> list[qemu.Image]:
    """All images on this machine."""
    root = paths.cache() / "vm"
    found = [qemu.Image(folder) for folder in sorted(root.iterdir())] if root.is_dir() else []
    return [one for one in found if one.whole and not one.folder.name.startswith(_MAKING)]


def listed() -> list[images.Installed]:
    """The same, as `image list` shows them."""
    current = {image(framework).folder for framework in images.FRAMEWORKS}
    return [
        images.Installed(
            reference=str(one.folder),
            id=one.folder.name,
            kind="disk",
            framework=one.folder.name.rsplit("-", 1)[0],
            size=one.disk.stat().st_blocks * 512,
            created=datetime.fromtimestamp(one.disk.stat().st_mtime, UTC),
            current=one.folder in current,
        )
        for one in installed()
    ]


def _build(plan: imageplan.Plan, wanted: qemu.Image, progress: Progress, rebuild: bool) -> None:
    client = engine.client(timeout=imageparts.PATIENCE)
    try:
        _clear(client, paths.private(wanted.folder.parent))
        graph.run(imageparts.missing([imageparts.machine(plan)], client, rebuild=rebuild), progress)
        with progress.phase("Machine disk") as step:
            work = Path(tempfile.mkdtemp(prefix=_MAKING, dir=wanted.folder.parent))
            try:
                _write_disk(client, plan, work, imageparts.log_of(f"disk-{wanted.folder.name}"), step)
                shutil.rmtree(wanted.folder, ignore_errors=True)
                work.rename(wanted.folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        _prune(wanted)
    finally:
        client.close()


def _clear(client: DockerClient, root: Path) -> None:
    """Remove what builds that were killed have left; it is our turn, so none of it is in use."""
    from docker.errors import NotFound

    ours: dict[str, Any] = {"label": [f"{_LABEL}={root}", f"{owner.MARK}={owner.this().id}"]}
    try:
        for maker in client.containers.list(all=True, filters=ours, ignore_removed=True):
            with contextlib.suppress(NotFound):
                maker.remove(force=True, v=True)
    except engine.failures() as error:
        raise engine.describe(error) from error
    for folder in root.glob(f"{_MAKING}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _write_disk(client: DockerClient, plan: imageplan.Plan, work: Path, log: Path, step: Step) -> None:
    from docker.types import Mount

    archive = work / "images.tar"
    try:
        step.update("saving the Horovod image")
        # Where a prune took the name of the lower layers, they are still under the node's image.
        below = plan.names["lab"] if client.images.list(plan.names["lab"]) else plan.names["jupyter"]
        with archive.open("wb") as file:
            for chunk in client.images.get(below).save(named=below):
                file.write(chunk)
        step.update("writing the disk")
        maker = client.containers.create(
            plan.names["vm"],
            ["hvd-build", "/out", _SIZE, "/out/images.tar"],
            labels={_LABEL: str(work.parent), **owner.this().labels},
            network_mode="none",
            mounts=[Mount("/out", str(work), type="bind"), Mount("/making", None, type="volume")],
            # The engine inside mounts the layers that it unpacks. AppArmor's profile for containers refuses that, and
            # seccomp's admits it with the capability.
            cap_add=["SYS_ADMIN"],
            security_opt=["apparmor=unconfined", "no-new-privileges"],
        )
        try:
            maker.start()
            code = maker.wait()["StatusCode"]
            said = maker.logs().decode(errors="replace")
        finally:
            maker.remove(force=True, v=True)
    except engine.failures() as error:
        raise engine.describe(error) from error
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(said)
    if code:
        raise _explain(said, log)
    archive.unlink()
    if not qemu.Image(work).whole:
        raise PhaseError("the disk was not written", log=log)


def _explain(said: str, log: Path) -> HvdctlError:
    if "No space left on device" in said or "Could not allocate block" in said:
        return PhaseError("the disk is full: no room for the machine image", hint="free some space", log=log)
    lines = said.strip().splitlines()
    return PhaseError(f"the machine image was not made: {lines[-1] if lines else 'without a word'}", log=log)


def _prune(kept: qemu.Image) -> None:
    """Remove the images that neither a guest runs on nor the disk of one that ended is based on."""
    for one in installed():
        same = one.folder.name.rsplit("-", 1)[0] == kept.folder.name.rsplit("-", 1)[0]
        if same and one != kept and not qemu.in_use(one) and os.access(one.folder, os.W_OK):
            shutil.rmtree(one.folder, ignore_errors=True)
