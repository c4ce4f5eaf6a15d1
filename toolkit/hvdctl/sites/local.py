"""The site `local`: what of a cluster stands on this machine's Docker engine, asked by label."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from hvdctl import engine, neighbours, owner
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.sites import only, plainly

if TYPE_CHECKING:
    from hvdctl.spec import Spec

LABEL = "hvdctl.cluster"
NAME_LABEL = "hvdctl.name"
_SWEEPS = 3


class Options(BaseModel):
    """There is nothing to set."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _told(error: Exception) -> HvdctlError | None:
    return engine.describe(error) if isinstance(error, engine.failures()) else None


_plainly = plainly(_told)


def name_of(cluster: str, name: str) -> str:
    """The name in the engine of a cluster's thing."""
    return f"hvdctl-{cluster}-{name}"


@_plainly
def preflight(spec: Spec) -> None:
    """Raise where this machine can't give what is asked; an image `auto` is made later."""
    neighbours.require(spec.nodes)
    client = engine.client()
    from docker.errors import ImageNotFound

    try:
        if spec.image != "auto":
            client.images.get(spec.image)
    except ImageNotFound:
        raise UsageError(
            f"the engine has no image {spec.image!r}",
            hint="docker pull it, or build one with `hvdctl image build`",
        ) from None
    if spec.gpus and "nvidia" not in client.info().get("Runtimes", {}):
        raise UsageError(
            f"gpus: {spec.gpus} asked, but the engine has no NVIDIA runtime",
            hint="install the NVIDIA container toolkit, or use --gpus 0",
        )
    if spec.share != "auto" and not Path(spec.share).is_dir():
        raise UsageError(f"share: there is no folder {spec.share}", hint="create it, or use --share auto")


def access(spec: Spec) -> None:
    return None


def settings(spec: Spec) -> dict[str, Any]:
    return {}


def prepare(spec: Spec, progress: Progress) -> None:
    pass  # the Horovod image is all


def watch(spec: Spec, step: Step) -> nullcontext[None]:
    return nullcontext()


def about(cluster: str) -> str:
    return ""


@_plainly
def observe(cluster: str, nodes: Sequence[str] | None = None) -> dict[str, str]:
    """The engine's word on each container of the cluster, by node name."""
    asked = _of(cluster)
    # The SDK inspects every container that it lists.
    if nodes is not None and len(nodes) == 1:
        asked = {"label": [asked["label"], f"{NAME_LABEL}={nodes[0]}"]}
    found = [c for c in _containers(asked) if owner.seen("local", cluster, _mark(c))]
    named = {c.labels[NAME_LABEL]: str(c.status) for c in found if NAME_LABEL in c.labels}
    return only(named, nodes)


def hint(message: str) -> str:
    return ""


@_plainly
def claims(cluster: str, spec: Spec | None = None) -> list[owner.Claim]:
    return [owner.claim(f"{kind} {thing.name}", _labels(thing)) for kind, thing in _things(cluster)]


@_plainly
def leftovers(cluster: str) -> list[str]:
    return [f"{kind} {thing.name}" for kind, thing in _ours(cluster)]


@_plainly
def sweep(cluster: str, *, keep_data: bool, step: Step) -> None:
    # More than once: what a killed hvdctl asked for may still be on its way in the engine.
    for attempt in range(_SWEEPS):
        found = [(kind, thing) for kind, thing in _ours(cluster) if not (kind == "volume" and keep_data)]
        if not found:
            return
        if attempt:
            time.sleep(1)
        _remove(found, step)


def _remove(found: list[tuple[str, Any]], step: Step) -> None:
    from docker.errors import APIError, NotFound

    for kind, thing in found:
        step.update(f"{kind} {thing.name}")
        try:
            if kind == "container":
                thing.remove(force=True, v=True)
            else:
                thing.remove()
        except NotFound:
            continue
        except APIError as error:
            step.note(f"{kind} {thing.name}: {explain(error)}")  # the others still go


@_plainly
def clusters() -> list[str]:
    client = engine.client()
    labels = [thing.labels for thing in _containers({"label": LABEL})]
    labels += [network.attrs.get("Labels") for network in client.networks.list(filters={"label": LABEL})]
    labels += [volume.attrs.get("Labels") for volume in client.volumes.list(filters={"label": LABEL})]
    return sorted({found[LABEL] for found in labels if found})


def explain(error: Exception) -> str:
    """An engine's error as one line that a person can act on."""
    if isinstance(error, HvdctlError):
        return error.message
    if full := re.search(r"no available IPv4 addresses on this network's address pools: ([^\s()]+)", str(error)):
        return (
            f"the network {full[1]} has no address left for another node: use fewer --nodes; or give the engine larger "
            "networks (`default-address-pools` in /etc/docker/daemon.json, such as size 20), restart it, then "
            "`hvdctl down --keep-data` and `hvdctl up`"
        )
    if "address pools" in str(error):
        return "the engine has no free network left; `docker network prune` removes unused ones"
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    told = engine.describe(error)
    return f"{told.message}; {told.hint}" if told.hint else told.message


def _of(cluster: str) -> dict[str, Any]:
    return {"label": f"{LABEL}={cluster}"}


def _containers(label: dict[str, Any]) -> list[Any]:
    """Those that carry the label; one that goes while it is looked at is no error."""
    return engine.client().containers.list(all=True, filters=label, ignore_removed=True)


def _things(cluster: str) -> list[tuple[str, Any]]:
    """Containers first: they hold the others."""
    client = engine.client()
    return [
        *(
            ("container", thing)
            for thing in client.containers.list(all=True, filters=_of(cluster), ignore_removed=True)
        ),
        *(("network", thing) for thing in client.networks.list(filters=_of(cluster))),
        *(("volume", thing) for thing in client.volumes.list(filters=_of(cluster))),
    ]


def _ours(cluster: str) -> list[tuple[str, Any]]:
    """Those of them that this home may remove."""
    return [(kind, thing) for kind, thing in _things(cluster) if owner.mine("local", cluster, _mark(thing))]


def _labels(thing: Any) -> dict[str, str]:
    """The labels of a container, network or volume."""
    return thing.attrs.get("Labels") or getattr(thing, "labels", None) or {}


def _mark(thing: Any) -> str:
    return _labels(thing).get(owner.MARK, "")
