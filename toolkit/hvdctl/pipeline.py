"""The straight line: spec -> terraform -> nodes -> inventory -> ansible -> links. This module alone joins the steps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from hvdctl import (
    access,
    configure,
    guards,
    handover,
    images,
    incoming,
    inventory,
    jobs,
    jupyter,
    links,
    machines,
    overview,
    owner,
    paths,
    providers,
    reach,
    rescue,
    scratch,
    ssh,
    verbatim,
)
from hvdctl.cluster import Cluster, Node, command_line, digest, write
from hvdctl.errors import HvdctlError, PhaseError, UsageError
from hvdctl.owner import Claim
from hvdctl.progress import Progress, Step
from hvdctl.spec import Spec, masked
from hvdctl.terraform import AT_ONCE, Outcome, Terraform, unfinished

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
    not_given_back: list[str] = field(default_factory=list)
    """Machines that left the cluster and could not be cleared, with the reason."""
    jupyter: bool = False

    def data(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "nodes": [asdict(node) for node in self.nodes],
            "changes": self.changes,
            "configured": self.configured,
            "link": asdict(self.link) if self.link else None,
            "seconds": {phase: round(seconds, 2) for phase, seconds in self.seconds.items()},
            "not_given_back": self.not_given_back,
            "jupyter": self.jupyter,
        }


@dataclass
class Removed:
    """What `down` found when it was done: still there; kept as asked; given up, with --force; and why that is."""

    cluster: str
    left: list[str]
    kept: list[str]
    given_up: list[str]
    why: str = ""


def plan(spec: Spec, progress: Progress, *, keep_image: bool = False) -> Outcome:
    """What `up` would change, refused where that would be; makes nothing."""
    cluster = Cluster(spec.name)
    provider = providers.REGISTRY[spec.provider]
    with _held(cluster):
        terraform = _terraform(cluster, spec)
        guards.states(cluster, terraform)
        guards.move(cluster, spec, terraform)
        provider.site.preflight(spec)
        guards.name(cluster, spec)
        image = guards.image(cluster, spec, keep=keep_image)
        outcome = _planned(spec, terraform, _variables(cluster, spec, image), progress)
        outcome.recreated = guards.recreated(cluster, spec, outcome, image)
        outcome.ending = guards.ending(cluster) if outcome.recreated else ""
        if provider.keeps_machines:
            outcome.changes |= handover.changes(cluster, spec)
        return outcome


def up(spec: Spec, progress: Progress, ask: guards.Ask = guards.refuse, *, keep_image: bool = False) -> Report:
    """Make the cluster what the spec says, going on from whatever is there.

    `ask` before the share would be lost or a node be recreated; with `keep_image` the nodes keep the image they have.
    """
    cluster = Cluster(spec.name)
    provider = providers.REGISTRY[spec.provider]
    with _held(cluster):
        terraform = _terraform(cluster, spec)
        guards.states(cluster, terraform)
        guards.move(cluster, spec, terraform)
        provider.site.preflight(spec)
        guards.unmarked(cluster, provider, guards.name(cluster, spec), ask)
        image = guards.image(cluster, spec, keep=keep_image)
        wanted = _variables(cluster, spec, image)
        if guards.needs_plan(cluster, spec, terraform, wanted):
            guards.agreed(cluster, spec, _planned(spec, terraform, wanted, progress), image, ask)
        seconds: dict[str, float] = {}
        if not keep_image:
            image = _image(spec, progress, seconds)
        provider.site.prepare(spec, progress)
        # Stored before anything is made: a killed `up` goes on with what was asked of it.
        adopts = guards.kept_data(cluster, provider)
        cluster.store_spec(spec)
        if adopts:
            cluster.complete("share", 0)
        rescue.outdated(cluster)
        with _timed(progress, "Provisioning", seconds) as step:
            outcome, not_given_back = _provision(cluster, spec, image, step)
        done = _configure(cluster, spec, image, progress, seconds)
        link, nodes = _link(cluster, spec, progress, seconds), cluster.nodes()
        lab = bool(cluster.record("configure").get("jupyter"))
        return Report(spec.name, nodes, _told(outcome), done, link, seconds, not_given_back, lab)


def down(
    name: str,
    progress: Progress,
    ask: guards.Ask = guards.refuse,
    *,
    keep_data: bool = False,
    force: bool = False,
    verify: bool = True,
    of: str = "",
    max_size: int = incoming.LIMIT,
) -> Removed:
    """Remove all that was made, from any state, then ask the site what is left.

    Results come home first. If they can't, nothing is removed, unless that is forced. `ask` before things without an
    owner mark are removed. `of` is another owner, whose things are removed as well.
    """
    cluster = Cluster(name)
    if not cluster.exists and not force:
        claims = list(overview.claims(name))
        if claims or not cluster.is_remnant:
            raise guards.elsewhere(name, claims)
        with cluster.locked(command_line()):
            if not cluster.exists:
                cluster.remove()
                return Removed(name, [], [], [])
    guards.keep(cluster, keep_data)
    with _held(cluster):
        sites = _sites(cluster, force)
        if not force:
            _ = _terraform(cluster, cluster.spec()).has_state  # one that can't be read is told before anything is done
        _claimed(cluster, sites, force, of, ask)
        with progress.phase("Collecting results") as step:
            rescue.results(cluster, step, keep_data=keep_data, force=force, limit=max_size)
        with progress.phase("Removing") as step:
            jupyter.close(cluster)
            # An `up` that failed may have found kept data on machines that stay, and never come to use it.
            keep_data = keep_data or not (force or rescue.had_share(cluster) or not _lent(sites))
            failed = handover.undo(cluster, keep_data, step) or (None if force else _destroy(cluster, keep_data, step))
            silent = {one.name: why for one in sites if (why := _sweep(one, name, keep_data, force, step))}
        if failed and not verify:
            raise failed
        asked = [provider for provider in sites if provider.name not in silent]
        left = [thing for provider in asked for thing in provider.site.leftovers(name)] if verify else []
        # The storage of a project is not ours to remove.
        kept = [thing for thing in left if thing.startswith("storage ") or (keep_data and thing.startswith("volume "))]
        # A machine that is dead for good must not keep its cluster for ever.
        given_up = [*silent.values(), *(thing for thing in left if force and thing.startswith("host "))]
        left = [thing for thing in left if thing not in (*kept, *given_up)]
        if not left:
            jupyter.close(cluster)  # once more: somebody may have opened it meanwhile
            cluster.remove()
            if not any(thing.startswith("volume ") for thing in kept):
                for one in sites:
                    owner.forget(one.name, name)
        return Removed(name, left, kept, given_up, failed.message if failed else "")


def relink(cluster: Cluster, net: int | None, step: Step) -> None:
    """Give the links of a standing cluster another rate for a while: the spec stays, and the next `up` goes back to it.

    Nothing else changes: all other variables are those that the nodes were made with. The caller holds the lock.
    """
    spec = cluster.spec()
    provider = providers.REGISTRY[spec.provider]
    if provider.foreign_network:
        return  # its links can't be given a rate, and nobody has
    if provider.kind == "container":
        terraform = _terraform(cluster, spec)
        wanted = terraform.variables() | {"rate": net}
        # Each of these may recreate nodes: `up` plans that, and asks.
        why = ""
        if cluster.record("provision").get("module") != terraform.version():
            why = f"another version of hvdctl made the nodes of {cluster.name!r}"
        elif unfinished(cluster.terraform, "rate"):
            why = f"the last `up` of {cluster.name!r} did not complete"
        if why:
            raise UsageError(f"{why}: links can't be changed", hint=f"`hvdctl up --name {cluster.name}` first")
        terraform.apply(wanted, step.update)
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
    variables = {"staging_source": folder, "staging_target": target or ""}
    with cluster.locked(command_line()):
        configure.play(cluster, "stage.yml", variables, step.update, answers=told)
    return {node.name: told.get(node.name, {}) for node in cluster.nodes()}


def image(cluster: Cluster) -> dict[str, str | None]:
    """The image that the nodes were made from, by name, and by its id where this machine has it."""
    reference = str(_terraform(cluster, cluster.spec()).variables()["image"])
    return {"reference": masked(reference), "id": images.identity(reference)}


def _image(spec: Spec, progress: Progress, seconds: dict[str, float]) -> str:
    if spec.image != "auto":
        return spec.image
    built = images.build(spec.framework, progress, cuda=images.cuda_for(spec), jupyter=spec.jupyter)
    seconds["image"] = built.seconds
    return built.reference


@contextmanager
def _held(cluster: Cluster) -> Iterator[None]:
    """Hold the cluster; where it was not there and came to nothing, leave nothing of it but the log of an error."""
    was_there = cluster.exists or cluster.terraform.exists()
    with cluster.locked(command_line()):
        scratch.sweep()
        try:
            yield
        except HvdctlError as error:
            if error.log and not was_there and not cluster.exists:
                kept = paths.private(paths.cache() / "logs") / f"{cluster.name}-{error.log.name}"
                error.log = error.log.replace(kept)
            raise
        finally:
            if not was_there and not cluster.exists:
                cluster.remove()


def _planned(spec: Spec, terraform: Terraform, wanted: dict[str, Any], progress: Progress) -> Outcome:
    with progress.phase("Planning"), _hinted(spec):
        return terraform.plan(wanted)


@contextmanager
def _hinted(spec: Spec) -> Iterator[None]:
    """Have the site say what to do about what Terraform tells."""
    try:
        yield
    except PhaseError as error:
        error.hint = error.hint or providers.REGISTRY[spec.provider].site.hint(error.message)
        raise


def _provision(cluster: Cluster, spec: Spec, image: str, step: Step) -> tuple[Outcome, list[str]]:
    """What Terraform did, and the machines that left the cluster and could not be cleared."""
    started = time.monotonic()
    with _hinted(spec), providers.REGISTRY[spec.provider].site.watch(spec, step):
        terraform = _terraform(cluster, spec)
        outcome = terraform.apply(_variables(cluster, spec, image), step.update)
    nodes = [Node.read(node) for node in outcome.outputs["nodes"]]
    not_given_back = handover.release(cluster, nodes, step) if providers.REGISTRY[spec.provider].keeps_machines else []
    # First, as nodes without any record mean that records were lost.
    cluster.complete("provision", time.monotonic() - started, module=terraform.version())
    cluster.store_nodes(nodes)
    return outcome, not_given_back


def _configure(cluster: Cluster, spec: Spec, image: str, progress: Progress, seconds: dict[str, float]) -> bool:
    """Configure and verify, unless that was done for these very nodes, files and playbooks."""
    nodes = cluster.nodes()
    host_keys = access.written(cluster, spec, nodes)
    hosts = inventory.inventory(cluster.name, nodes, cluster.ssh_config)
    write(cluster.inventory, verbatim.dump(hosts))
    document = inventory.bundle(
        cluster.name, nodes, host_keys, cluster.key().public, packages=machines.packages(spec, owner.this().id)
    )
    bundle = inventory.packed(document)
    variables = {"node_bundle": bundle, "verify_rate": spec.net, **machines.variables(cluster, spec, nodes, image)}
    facts = jupyter.facts(spec, nodes, image)
    ids = [node.id for node in nodes]
    wanted = digest(json.dumps([hosts, variables, spec.jupyter, facts]), paths.asset("playbooks"), ids)
    if cluster.record("configure").get("digest") == wanted and not cluster.record("relink"):
        return False
    cluster.forget("configure")
    variables |= jupyter.variables(cluster, spec, facts)
    if machines.names(nodes):
        with _timed(progress, "Waiting for the machines", seconds) as step:
            provider = providers.REGISTRY[spec.provider]
            machines.wait(cluster, nodes, step, None if provider.keeps_machines else provider.site.observe)
    if providers.REGISTRY[spec.provider].foreign_network and len(nodes) > 1:
        with _timed(progress, "Trying the connections", seconds):
            ssh.wait(cluster, nodes)
            reach.require(reach.probe(cluster, nodes), providers.REGISTRY[spec.provider].foreign_network)
    with _timed(progress, "Configuring", seconds) as step:
        ssh.wait(cluster, [node for node in nodes if node.kind == "container"])
        configure.play(cluster, "up.yml", {**variables, "verify_nonce": wanted}, step.update)
    if machines.names(nodes):
        cluster.complete("containers", 0, **guards.containers(image))
    lab = jupyter.there(cluster, spec)
    cluster.complete("configure", seconds["configuring"], digest=wanted, ids=ids, jupyter=lab)
    cluster.complete("share", 0)  # from now on there may be data on it
    cluster.forget("relink")
    return True


def _link(cluster: Cluster, spec: Spec, progress: Progress, seconds: dict[str, float]) -> links.Measured | None:
    """The rate that two nodes reach, measured once for each set of nodes and rate."""
    nodes = cluster.nodes()
    if spec.net is None or len(nodes) < 2:
        cluster.forget("link")
        return None
    wanted = digest([node.id for node in nodes], spec.net)
    known = links.Measured.of(cluster)
    if known and cluster.record("link").get("digest") == wanted:
        return known
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


def _lent(sites: list[providers.Provider]) -> bool:
    return all(site.keeps_machines for site in sites)


def _claimed(cluster: Cluster, sites: list[providers.Provider], force: bool, of: str, ask: guards.Ask) -> None:
    """Settle whose what stands is, before any of it goes."""
    found: list[tuple[str, Claim]] = []
    for site in sites:
        try:
            claims = site.site.claims(cluster.name)
        except HvdctlError:
            if force:
                continue  # the sweep says so, or gives it up
            raise
        for mark in {claim.mark for claim in claims if of and owner.means(of, claim.mark)}:
            owner.take(site.name, cluster.name, mark)
        guards.unmarked(cluster, site, claims, ask, force=force)
        found += [(site.name, claim) for claim in claims]
    if not cluster.exists and found and not any(owner.mine(site, cluster.name, claim.mark) for site, claim in found):
        cluster.remove()  # the lock's folder
        raise guards.elsewhere(cluster.name, found)


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


def _sweep(provider: providers.Provider, name: str, keep_data: bool, force: bool, step: Step) -> str:
    """Remove by label; why a site could not be asked, where that is not to keep the cluster for ever."""
    try:
        provider.site.sweep(name, keep_data=keep_data, step=step)
    except HvdctlError as error:
        if not (force and provider.expires):
            raise
        return f"{provider.name}: {error.message}"
    return ""


def _terraform(cluster: Cluster, spec: Spec) -> Terraform:
    cluster.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Of more than are asked for at once, the first would wait for those that were never asked for.
    at_once = AT_ONCE + (spec.nodes if providers.REGISTRY[spec.provider].all_at_once else 0)
    return Terraform(cluster.terraform, spec.provider, cluster.log("terraform"), at_once=at_once)


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
        labels=owner.this().labels,
    )


def variables(
    spec: Spec,
    *,
    image: str,
    key: tuple[str, str],
    host_keys: dict[str, tuple[str, str]],
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
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
        "labels": labels or {},
        "options": providers.REGISTRY[spec.provider].site.settings(spec),
    }


def _told(outcome: Outcome) -> dict[str, list[str]]:
    return {_ACTIONS.get(action, action): names for action, names in outcome.changes.items()}


@contextmanager
def _timed(progress: Progress, title: str, seconds: dict[str, float]) -> Iterator[Step]:
    started = time.monotonic()
    with progress.phase(title) as step:
        yield step
    seconds[title.lower()] = time.monotonic() - started
