"""The straight line: spec -> terraform -> nodes -> inventory -> ansible -> links. This module alone joins the steps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from hvdctl import configure, images, inventory, jobs, links, machines, paths, providers, ssh
from hvdctl.cluster import Cluster, Node, command_line, digest, known, write
from hvdctl.errors import HvdctlError, PhaseError, UsageError
from hvdctl.progress import Progress, Step
from hvdctl.spec import Spec
from hvdctl.terraform import Outcome, Terraform

_KEPT = ("hvd_volume",)
_ACTIONS = {"create": "made", "delete": "removed", "update": "changed", "replace": "made anew"}


@dataclass
class Report:
    """What `up` or `scale` left standing."""

    cluster: str
    nodes: list[Node]
    changes: dict[str, list[str]]
    configured: bool
    link: links.Measured | None
    seconds: dict[str, float] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "nodes": [asdict(node) for node in self.nodes],
            "changes": self.changes,
            "configured": self.configured,
            "link": asdict(self.link) if self.link else None,
            "seconds": {phase: round(seconds, 2) for phase, seconds in self.seconds.items()},
        }


@dataclass
class Removed:
    cluster: str
    left: list[str]
    kept: list[str]


def plan(spec: Spec, progress: Progress) -> Outcome:
    """What `up` would change; makes nothing but the cluster's own folder."""
    cluster = Cluster(spec.name)
    was_there = cluster.exists or cluster.terraform.exists()
    with cluster.locked(command_line()):
        try:
            terraform = _terraform(cluster, spec)
            _check_states(cluster, terraform)
            with progress.phase("Planning"):
                outcome = terraform.plan(_variables(cluster, spec, _reference(spec)))
            if providers.REGISTRY[spec.provider].keeps_machines:
                outcome.changes |= _machine_changes(cluster, spec)
            return outcome
        finally:
            if not was_there:
                cluster.remove()


def up(spec: Spec, progress: Progress) -> Report:
    """Make the cluster what the spec says, going on from whatever is there."""
    cluster = Cluster(spec.name)
    provider = providers.REGISTRY[spec.provider]
    with cluster.locked(command_line()):
        _check_states(cluster, _terraform(cluster, spec))
        _check_move(cluster, spec)
        _check_owner(cluster, provider)
        provider.site.preflight(spec)
        seconds: dict[str, float] = {}
        image = _image(spec, progress, seconds)
        provider.site.prepare(spec, progress)
        # Stored before anything is made: a killed `up` goes on with what was asked of it.
        cluster.store_spec(spec)
        with _timed(progress, "Provisioning", seconds) as step:
            outcome = _provision(cluster, spec, image, step)
        nodes = cluster.nodes()
        configured = _configure(cluster, spec, image, progress, seconds)
        measured = _link(cluster, spec, progress, seconds)
        return Report(spec.name, nodes, _told(outcome), configured, measured, seconds)


def down(
    name: str, progress: Progress, *, keep_data: bool = False, force: bool = False, verify: bool = True
) -> Removed:
    """Remove all that was made, from any state, then ask the site what is left."""
    cluster = Cluster(name)
    if not cluster.exists and not force:
        # An `up` that was refused or killed in its first moment may have left a folder and no spec.
        if not any(name in found for _, found in _on_sites()):
            raise UsageError(f"there is no cluster {name!r}", hint="`hvdctl list` shows what there is")
        raise UsageError(
            f"cluster {name!r} is not known here, but something carries its label",
            hint=f"`hvdctl down --name {name} --force` removes it",
        )
    _check_keep(cluster, keep_data)
    with cluster.locked(command_line()):
        sites = _sites(cluster, force)
        with progress.phase("Collecting results") as step:
            _collect(cluster, step)
        with progress.phase("Removing") as step:
            failed = _undo(cluster, keep_data, step) or (None if force else _destroy(cluster, keep_data, step))
            for provider in sites:
                provider.site.sweep(name, keep_data=keep_data, step=step)
        if failed and not verify:
            raise failed
        left = [thing for provider in sites for thing in provider.site.leftovers(name)] if verify else []
        kept = [thing for thing in left if keep_data and thing.startswith("volume ")]
        left = [thing for thing in left if thing not in kept]
        if not left:
            cluster.remove()
        return Removed(name, left, kept)


def relink(cluster: Cluster, net: int | None, step: Step) -> None:
    """Give the links of a standing cluster another rate for a while: the spec stays, and the next `up` goes back to it.

    Nothing else changes: all other variables are those that the nodes were made with. The caller holds the lock.
    """
    spec = cluster.spec()
    if providers.REGISTRY[spec.provider].kind == "container":
        terraform = _terraform(cluster, spec)
        terraform.apply(terraform.variables() | {"rate": net}, step.update)
        return
    cluster.complete("relink", 0, rate=net)
    configure.play(cluster, "net.yml", machines.net(spec, net), step.update)
    if net == spec.net:
        cluster.forget("relink")


def stage(cluster: Cluster, source: str, target: str | None, step: Step) -> dict[str, dict[str, Any]]:
    """Copy a folder of the share to the local disk of every node; what each node says of it, by name."""
    folder = str(jobs.on_share(source))
    if lost := jobs.lost(cluster, [node.name for node in cluster.nodes()]):
        raise HvdctlError(f"lost: {', '.join(lost)}", hint=f"`hvdctl up --name {cluster.name}` makes them anew")
    told: dict[str, dict[str, Any]] = {}
    configure.play(
        cluster, "stage.yml", {"staging_source": folder, "staging_target": target or ""}, step.update, answers=told
    )
    return {node.name: told.get(node.name, {}) for node in cluster.nodes()}


def image(cluster: Cluster) -> dict[str, str | None]:
    """The image that the nodes were made from, by name, and by its id where this machine has it."""
    reference = str(_terraform(cluster, cluster.spec()).variables()["image"])
    return {"reference": reference, "id": images.identity(reference)}


def status(name: str) -> dict[str, Any]:
    """What is asked, what stands and how it can be reached; lost nodes are named."""
    cluster = Cluster(name)
    spec = cluster.spec()
    seen = providers.REGISTRY[spec.provider].site.observe(name)
    nodes = [
        asdict(node) | {"state": _node_state(seen.get(node.name)), "place": node.place} for node in cluster.nodes()
    ]
    configured = cluster.record("configure").get("ids") == [node["id"] for node in nodes]
    lost = [node["name"] for node in nodes if node["state"] != "running"]
    # A node that terraform has not told of, or that has been made since.
    missing = max(0, spec.nodes - len(nodes))
    state = "up" if nodes and configured and not lost and not missing else "lost nodes" if lost else "half-made"
    return {
        "cluster": name,
        "state": state,
        "spec": spec.stored(),
        "nodes": nodes,
        "lost": lost,
        "link": cluster.record("link").get("measured"),
        "about": providers.REGISTRY[spec.provider].site.about(name),
        "folder": str(cluster.folder),
    }


def list_clusters() -> list[dict[str, Any]]:
    """Every cluster with a folder here, and every one that only the sites still know of."""
    rows = []
    for cluster in known():
        try:
            told = status(cluster.name)
            spec = told["spec"]
            up_nodes = sum(node["state"] == "running" for node in told["nodes"])
            rows.append(
                {
                    "cluster": cluster.name,
                    "state": told["state"],
                    "provider": spec["provider"],
                    "nodes": spec["nodes"],
                    "running": up_nodes,
                    "net": spec["net"],
                }
            )
        except HvdctlError as error:
            rows.append({"cluster": cluster.name, "state": f"unreadable: {error.message}"})
    here = {row["cluster"] for row in rows}
    for provider, found in _on_sites():
        rows += [
            {"cluster": name, "state": "unknown here", "provider": provider.name} for name in found if name not in here
        ]
    return rows


def _on_sites() -> Iterator[tuple[providers.Provider, list[str]]]:
    """What each site has; one of machines that can't be asked now keeps nobody from the others."""
    for provider in providers.REGISTRY.values():
        try:
            yield provider, provider.site.clusters()
        except HvdctlError:
            if provider.kind == "container":
                raise


def _reference(spec: Spec) -> str:
    return spec.image if spec.image != "auto" else images.reference(spec.framework, images.cuda_for(spec))


def _image(spec: Spec, progress: Progress, seconds: dict[str, float]) -> str:
    if spec.image != "auto":
        return spec.image
    built = images.build(spec.framework, progress, cuda=images.cuda_for(spec))
    seconds["image"] = built.seconds
    return built.reference


def _provision(cluster: Cluster, spec: Spec, image: str, step: Step) -> Outcome:
    started = time.monotonic()
    try:
        outcome = _terraform(cluster, spec).apply(_variables(cluster, spec, image), step.update)
    except PhaseError as error:
        error.hint = error.hint or providers.REGISTRY[spec.provider].site.hint(error.message)
        raise
    nodes = [Node.read(node) for node in outcome.outputs["nodes"]]
    if providers.REGISTRY[spec.provider].keeps_machines:
        _release(cluster, nodes, step)
    cluster.store_nodes(nodes)
    cluster.complete("provision", time.monotonic() - started)
    return outcome


def _machine_changes(cluster: Cluster, spec: Spec) -> dict[str, list[str]]:
    """What would be done to machines that Terraform does not make."""
    hosts = providers.REGISTRY[spec.provider].site.settings(spec)["hosts"][: spec.nodes]
    planned = [f"{host['address']}:{host['port']}" for host in hosts]
    there = [f"{node.address}:{node.ssh_port}" for node in cluster.nodes()] if cluster.record("configure") else []
    added = [place for place in planned if place not in there]
    gone = [place for place in there if place not in planned]
    return {action: found for action, found in (("configure", added), ("undo", gone)) if found}


def _release(cluster: Cluster, nodes: list[Node], step: Step) -> None:
    """Take back what was configured on machines that are no part of the cluster any more."""
    left = {node.id for node in nodes}
    gone = machines.names([node for node in cluster.nodes() if node.id not in left])
    if gone and cluster.inventory.exists():
        configure.play(cluster, "teardown.yml", {}, step.update, limit=gone)


def _configure(cluster: Cluster, spec: Spec, image: str, progress: Progress, seconds: dict[str, float]) -> bool:
    """Configure and verify, unless that was done for these very nodes, files and playbooks."""
    nodes = cluster.nodes()
    host_keys = _write_access(cluster, spec, nodes)
    hosts = inventory.inventory(cluster.name, nodes, cluster.ssh_config)
    write(cluster.inventory, yaml.safe_dump(hosts, sort_keys=False))
    bundle = inventory.packed(inventory.bundle(cluster.name, nodes, host_keys))
    variables = {"node_bundle": bundle, "verify_rate": spec.net, **machines.variables(cluster, spec, nodes, image)}
    ids = [node.id for node in nodes]
    wanted = digest(json.dumps(hosts), json.dumps(variables), paths.asset("playbooks"), ids)
    if cluster.record("configure").get("digest") == wanted and not cluster.record("relink"):
        return False
    cluster.forget("configure")
    if machines.names(nodes):
        with _timed(progress, "Waiting for the machines", seconds) as step:
            provider = providers.REGISTRY[spec.provider]
            machines.wait(cluster, nodes, step, None if provider.keeps_machines else provider.site.observe)
    with _timed(progress, "Configuring", seconds) as step:
        ssh.wait([node for node in nodes if node.kind == "container"])
        configure.play(cluster, "up.yml", {**variables, "verify_nonce": wanted}, step.update)
    cluster.complete("configure", seconds["configuring"], digest=wanted, ids=ids)
    cluster.forget("relink")
    return True


def _write_access(cluster: Cluster, spec: Spec, nodes: list[Node]) -> dict[str, tuple[str, ...]]:
    """Write how nodes and machines are reached; gives the host keys of the nodes alone."""
    access = providers.REGISTRY[spec.provider].site.access(spec)
    host_keys: dict[str, tuple[str, ...]] = {node.name: (cluster.host_key(node.name).public,) for node in nodes}
    theirs = {
        name: access.host_keys[node.name] if access else (cluster.host_key(name).public,)
        for node in nodes
        for name in machines.names([node])
    }
    write(cluster.known_hosts, inventory.known_hosts(cluster.name, host_keys | theirs))
    written = inventory.ssh_config(cluster.name, nodes, cluster.key().private, cluster.known_hosts, access)
    write(cluster.ssh_config, written)
    return host_keys


def _link(cluster: Cluster, spec: Spec, progress: Progress, seconds: dict[str, float]) -> links.Measured | None:
    """The rate that two nodes reach, measured once for each set of nodes and rate."""
    nodes = cluster.nodes()
    if spec.net is None or len(nodes) < 2:
        cluster.forget("link")
        return None
    wanted = digest([node.id for node in nodes], spec.net)
    record = cluster.record("link")
    if record.get("digest") == wanted:
        return links.Measured(**record["measured"])
    with _timed(progress, "Measuring the link", seconds):
        measured = links.measure(cluster, nodes[0].name, nodes[1].name, spec.net)
    cluster.complete("link", seconds["measuring the link"], digest=wanted, measured=asdict(measured))
    return measured


def _sites(cluster: Cluster, force: bool) -> list[providers.Provider]:
    """The cluster's own provider; with `force` all of them, where its spec is gone or can't be read."""
    try:
        return [providers.REGISTRY[cluster.spec().provider]]
    except UsageError:
        if not force:
            raise
        return list(providers.REGISTRY.values())


def _undo(cluster: Cluster, keep_data: bool, step: Step) -> HvdctlError | None:
    """Take back what was configured on machines that stay."""
    try:
        if not (cluster.exists and cluster.inventory.exists() and cluster.nodes()):
            return None
        if not providers.REGISTRY[cluster.spec().provider].keeps_machines:
            return None
        configure.play(cluster, "teardown.yml", {"nfs_keep_data": keep_data}, step.update)
    except HvdctlError as error:
        return error
    return None


def _destroy(cluster: Cluster, keep_data: bool, step: Step) -> PhaseError | None:
    """Let Terraform remove what it knows of. A node whose making was cut short is not in its state, yet holds the
    network and the share: then it fails here, and the sweep by label does the rest.
    """
    terraform = _terraform(cluster, cluster.spec())
    try:
        if terraform.has_state:
            terraform.destroy(step.update, keep=_KEPT if keep_data else ())
    except PhaseError as error:
        return error
    return None


def _collect(cluster: Cluster, step: Step) -> None:
    """Fetch the records of runs that were left detached, while there still is a head to ask."""
    try:
        if cluster.ssh_config.exists() and cluster.nodes() and status(cluster.name)["nodes"][0]["state"] == "running":
            jobs.collect(cluster)
    except HvdctlError as error:
        step.note(f"runs not collected: {error.message}")


def _terraform(cluster: Cluster, spec: Spec) -> Terraform:
    cluster.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Terraform(cluster.terraform, spec.provider, cluster.log("terraform"))


def _variables(cluster: Cluster, spec: Spec, image: str) -> dict[str, Any]:
    """The contract's variables; golden cases hold their form."""
    kind = providers.REGISTRY[spec.provider].kind
    named = {f"node{i}": inventory.ssh_host(f"node{i}", kind) for i in range(spec.nodes)}
    host_keys = {name: cluster.host_key(host) for name, host in named.items()}
    return variables(
        spec,
        image=image,
        key=(cluster.key().public, str(cluster.key().private)),
        host_keys={name: (pair.public, str(pair.private)) for name, pair in host_keys.items()},
    )


def variables(spec: Spec, *, image: str, key: tuple[str, str], host_keys: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Spec to Terraform variables. Pure."""
    return {
        "cluster": spec.name,
        "nodes": spec.nodes,
        "slots": spec.slots,
        "cpus": spec.cpus,
        "memory": spec.memory,
        "gpus": spec.gpus,
        "rate": spec.net,
        "image": image,
        "share": spec.share,
        "ssh_public_key": key[0],
        "ssh_private_key_file": key[1],
        "ssh_host_keys": {
            name: {"public_key": public, "private_key_file": private} for name, (public, private) in host_keys.items()
        },
        "labels": {},
        "options": providers.REGISTRY[spec.provider].site.settings(spec),
    }


def _check_states(cluster: Cluster, terraform: Terraform) -> None:
    """Raise where a stored file can't be read, before anything is changed."""
    cluster.stored_spec()
    cluster.nodes()
    cluster.record("configure")
    _ = terraform.has_state


def _check_move(cluster: Cluster, spec: Spec) -> None:
    stored = cluster.stored_spec()
    if stored and stored.get("provider") != spec.provider and cluster.nodes():
        raise UsageError(
            f"cluster {cluster.name!r} stands on {stored['provider']!r} and can't move to {spec.provider!r}",
            hint=f"`hvdctl down --name {cluster.name}` first, or choose another --name",
        )
    if stored and stored.get("share") == "auto" != spec.share and cluster.nodes():
        raise UsageError(
            f"share: a change from auto to {spec.share} would delete what is on the share of {cluster.name!r}",
            hint="`hvdctl pull` what you need, `hvdctl down`, then `hvdctl up --share`",
        )


def _check_keep(cluster: Cluster, keep_data: bool) -> None:
    if not keep_data or not cluster.exists:
        return
    provider = providers.REGISTRY[cluster.spec().provider]
    if provider.kind == "machine" and not provider.keeps_machines:
        raise UsageError(
            f"--keep-data: the share of {cluster.name!r} is on the disk of its head, which goes with it",
            hint="`hvdctl pull` what you need, then `hvdctl down`",
        )


def _check_owner(cluster: Cluster, provider: providers.Provider) -> None:
    """Refuse a name that someone else's cluster has on this site: it would be taken for a half-made one of ours."""
    if not cluster.exists and provider.site.observe(cluster.name):
        raise UsageError(
            f"cluster {cluster.name!r} runs already, and this home does not know it ({paths.home()})",
            hint="choose another --name, or set HVDCTL_HOME to the one it was made with",
        )


def _node_state(seen: str | None) -> str:
    return "running" if seen == "running" else "lost"


def _told(outcome: Outcome) -> dict[str, list[str]]:
    return {_ACTIONS.get(action, action): names for action, names in outcome.changes.items()}


@contextmanager
def _timed(progress: Progress, title: str, seconds: dict[str, float]) -> Iterator[Step]:
    started = time.monotonic()
    with progress.phase(title) as step:
        yield step
    seconds[title.lower()] = time.monotonic() - started
