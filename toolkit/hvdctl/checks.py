"""The doctor: one line for each thing that must be right, from this machine's tools to every node's link."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from hvdctl import (
    engine,
    images,
    jobs,
    jupyter,
    links,
    neighbours,
    overview,
    paths,
    process,
    providers,
    reach,
    ssh,
    terraform,
    terraform_release,
)
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError
from hvdctl.progress import Progress
from hvdctl.spec import Spec

_DISK_NEEDED = 10 * 2**30
_MEMORY_PER_RANK = 2**29


@dataclass(frozen=True)
class Check:
    name: str
    state: str
    detail: str
    hint: str = ""


def fix(progress: Progress) -> None:
    """Install what hvdctl can install by itself."""
    if terraform_release.find() is None:
        with progress.phase("Terraform") as step:
            terraform_release.install(step)


def run(spec: Spec) -> Iterator[Check]:
    """Each check as it is done; those of nodes only if the cluster exists."""
    provider = providers.REGISTRY[spec.provider]
    yield _tried("terraform", lambda: _terraform(terraform.binary(), provider.name))
    for tool in ("ssh", "rsync"):
        yield _tried(tool, lambda tool=tool: process.tool(tool))  # type: ignore[misc]
    # Jobs elsewhere, of an image that is elsewhere, need no engine here.
    with_engine = spec.image == "auto" or not provider.foreign_network
    engine_check = _tried("engine", _engine) if with_engine else None
    if engine_check:
        yield engine_check
        if engine_check.state == "ok":
            yield _image(spec, provider)
    yield _disk()
    if provider.kind == "machine" or provider.foreign_network:
        yield _tried("provider", lambda: _site(provider, spec))
    if _on_this_machine(spec):
        yield _memory(spec)
        yield _cores(spec)
        if providers.one_machine(spec) and (room := neighbours.room(spec.nodes)):
            yield Check("neighbours", "ok" if room.enough else "fail", str(room), "" if room.enough else room.hint)
    cluster = Cluster(spec.name)
    if cluster.exists and (engine_check is None or engine_check.state == "ok"):
        yield from _nodes(cluster)


def _on_this_machine(spec: Spec) -> bool:
    try:
        return providers.here(spec)
    except HvdctlError:
        return False  # the provider's own line says what is wrong


def _site(provider: providers.Provider, spec: Spec) -> str:
    """What `up` would ask of the site before it makes anything."""
    provider.site.preflight(spec)
    about = provider.site.about(spec.name)
    return f"{provider.name}: {about or provider.summary}"


def _nodes(cluster: Cluster) -> Iterator[Check]:
    try:
        told = overview.status(cluster.name)
    except HvdctlError as error:
        yield Check("cluster", "fail", error.message, error.hint)
        return
    if told["state"] != "up":
        lost = f": {', '.join(told['lost'])}" if told["lost"] else ""
        yield Check("cluster", "fail", f"{told['state']}{lost}", f"`hvdctl up --name {cluster.name}` makes it whole")
        return
    nodes = cluster.nodes()
    yield Check("cluster", "ok", f"{len(nodes)} nodes running")
    yield from _on_all(cluster, nodes)
    yield _tried("share", lambda: _share(cluster, nodes))
    if cluster.spec().jupyter:
        yield _jupyter(cluster)
    if len(nodes) > 1:
        yield _tried("connections", lambda: _reach(cluster, nodes))
    yield from _links(cluster, nodes)


def _on_all(cluster: Cluster, nodes: list[Node]) -> Iterator[Check]:
    """SSH on every node, then the Horovod build there, which takes a core: no more at a time than nodes share."""
    answers = ssh.gather([ssh.argv(cluster, node.name, ["true"]) for node in nodes], timeout=30)
    silent = [n.name for n, done in zip(nodes, answers, strict=True) if done.returncode]
    yield _judged("ssh to nodes", silent, f"{len(nodes)} of {len(nodes)} answer, strict host keys")
    if silent:
        return
    faults, versions = [], ""
    at_once = (os.cpu_count() or 1) if providers.here(cluster.spec()) else process.AT_ONCE
    told = process.each(lambda node: _doctor(cluster, node), nodes, at_once=at_once)
    for node, answer in zip(nodes, told, strict=True):
        if not answer.get("ok"):
            faults.append(f"{node.name} ({'; '.join(answer.get('problems', []))})")
        found = ", ".join(f"{name} {value}" for name, value in sorted(answer.get("versions", {}).items()))
        versions = found or versions
    yield _judged("horovod build", faults, f"{len(nodes)} of {len(nodes)} import it: {versions}")


def _doctor(cluster: Cluster, node: Node) -> dict[str, Any]:
    """What the node's agent says of its build; no answer is a problem of it."""
    try:
        return cast(dict[str, Any], ssh.agent(cluster, node.name, "doctor", timeout=200))
    except HvdctlError as error:
        return {"ok": False, "problems": [error.message]}


def _share(cluster: Cluster, nodes: list[Node]) -> str:
    """Written on the head, read on all."""
    mark = f"{jobs.SHARE}/.hvdctl-check-{os.getpid()}"
    head = nodes[0].name
    written = ssh.run(cluster, head, ["touch", mark])
    if written.returncode:
        raise HvdctlError(f"{head} can't write to {jobs.SHARE}: {written.stderr.strip() or written.returncode}")
    try:
        seen = ssh.gather([ssh.argv(cluster, node.name, ["test", "-e", mark]) for node in nodes], timeout=30)
    finally:
        ssh.run(cluster, head, ["rm", "-f", mark])
    blind = [node.name for node, done in zip(nodes, seen, strict=True) if done.returncode]
    if blind:
        raise HvdctlError(f"a file written on {head} is not seen on {', '.join(blind)}")
    return f"a file written on {head} is seen on {len(nodes)} of {len(nodes)} nodes"


def _jupyter(cluster: Cluster) -> Check:
    told = jupyter.status(cluster)
    server = told["server"]
    if server is not None and not server["installed"]:
        return Check("jupyter", "warn", "the image has none", "use --image auto, or --no-jupyter")
    if told["problem"]:
        return Check("jupyter", "fail", told["problem"], told["hint"])
    if server["running"] and not server["answers"] and not server["log"]:
        return Check("jupyter", "ok", "it starts within a minute, or when `hvdctl jupyter` opens it")
    if not server["answers"]:
        said = server["log"][-1] if server["log"] else "it says nothing"
        return Check("jupyter", "fail", f"it does not answer: {said}", "it may just be starting: check again")
    return Check("jupyter", "ok", "it answers on the head; `hvdctl jupyter` opens it")


def _reach(cluster: Cluster, nodes: list[Node]) -> str:
    """On ports of the kind that Horovod takes, between all pairs."""
    found = reach.probe(cluster, nodes)
    reach.require(found, providers.REGISTRY[cluster.spec().provider].foreign_network)
    return f"{len(found.pairs)} of {len(found.pairs)} pairs of nodes reach each other"


def _links(cluster: Cluster, nodes: list[Node]) -> Iterator[Check]:
    """The head's link to each worker, one after the other: at once they would share it."""
    asked = cluster.spec().net
    for node in nodes[1:]:
        try:
            measured = links.measure(cluster, nodes[0].name, node.name, asked)
            yield Check(f"link {node.name}", "warn" if measured.short else "ok", str(measured))
        except HvdctlError as error:
            yield Check(f"link {node.name}", "fail", error.message, error.hint)


def _tried(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except HvdctlError as error:
        return Check(name, "fail", error.message, error.hint)


def _judged(name: str, faults: list[str], good: str) -> Check:
    return Check(name, "fail", f"not on {', '.join(faults)}") if faults else Check(name, "ok", good)


def _terraform(binary: str, provider: str) -> str:
    """What the program calls itself; raises if the provider's module needs a newer one."""
    said = process.capture([binary, "version"]).stdout.splitlines()
    module = paths.asset("infra", provider, "versions.tf").read_text(encoding="utf-8")
    needed = re.search(r'^\s*required_version\s*=\s*">= ([\d.]+)"', module, re.MULTILINE)
    found = re.match(r"\w+ v(\d+\.\d+(\.\d+)?)", said[0]) if said else None
    if needed and found and _numbers(found[1]) < _numbers(needed[1]):
        raise HvdctlError(
            f"{said[0]} at {binary} is too old: {needed[1]} or newer is needed",
            hint="upgrade it; or remove it from PATH, then `hvdctl check --fix` downloads one",
        )
    return said[0] if said else binary


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _engine() -> str:
    return f"Docker {engine.client().version()['Version']}"


def _image(spec: Spec, provider: providers.Provider) -> Check:
    wanted = images.for_spec(spec)
    there = any(wanted in image.tags for image in engine.client().images.list())
    if there:
        return Check("image", "ok", wanted)
    if spec.image == "auto":
        return Check("image", "warn", f"{wanted} is not built", "`hvdctl up` builds it; it takes some minutes")
    if provider.kind == "machine":
        return Check("image", "ok", f"{wanted} is not here: every machine pulls it itself")
    return Check("image", "fail", f"the engine has no image {wanted!r}", "docker pull it, or use --image auto")


def _disk() -> Check:
    place = next(p for p in (paths.home(), *paths.home().parents) if p.exists())
    free = shutil.disk_usage(place).free
    detail = f"{free / 2**30:.0f} GiB free"
    if free < _DISK_NEEDED:
        return Check("disk", "fail", detail, f"images and wheels need {_DISK_NEEDED / 2**30:.0f} GiB")
    return Check("disk", "ok", detail)


def _memory(spec: Spec) -> Check:
    free = process.available_memory()
    ranks = spec.nodes * spec.slots
    detail = f"{free / 2**30:.1f} GiB available for {ranks} ranks"
    if free < ranks * _MEMORY_PER_RANK:
        return Check("memory", "warn", detail, "a rank takes about half a GiB with its framework alone")
    return Check("memory", "ok", detail)


def _cores(spec: Spec) -> Check:
    cores = os.cpu_count() or 1
    ranks = spec.nodes * spec.slots
    detail = f"{cores} cores for {ranks} ranks on {spec.nodes} nodes"
    if ranks > cores:
        return Check("cores", "warn", detail, "ranks share cores: steps take longer, scaling can't be read off them")
    return Check("cores", "ok", detail)
