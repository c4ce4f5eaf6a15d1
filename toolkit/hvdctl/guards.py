"""What must be so before a cluster is changed: each raises, with the way out, before anything is made or lost."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvdctl import handover, images, jobs, owner, paths, providers
from hvdctl.cluster import Cluster, digest
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.owner import Claim
from hvdctl.spec import Spec, masked
from hvdctl.terraform import Outcome, Terraform, binary, holds, unfinished, variables

# Variables that Terraform may have to recreate a node for; it changes all others in place.
_REPLACING = ("image", "gpus", "share", "options")
_FEW, _WIDTH = 5, 60
_NODE = re.compile(r"\.node\[(\d+)\]$")

Ask = Callable[[str], None]
"""Puts a question to the user; returns where the answer is yes, raises where it is no or nobody can be asked."""


def refuse(question: str) -> None:
    """The answer of a caller that can't ask anybody."""
    raise UsageError(f"{question} Nobody can be asked here.")


def states(cluster: Cluster, terraform: Terraform) -> None:
    """Terraform is there, and every stored file can be read."""
    binary()
    cluster.stored_spec()
    cluster.nodes()
    cluster.record("configure")
    _ = terraform.has_state


def move(cluster: Cluster, spec: Spec, terraform: Terraform) -> None:
    """A cluster stays with its provider, and what is on its share where it is."""
    stored = cluster.stored_spec()
    if not stored:
        return
    old = stored.get("provider", spec.provider)
    if old != spec.provider and (cluster.nodes() or terraform.has_state or _leftovers(cluster.name, old)):
        raise UsageError(
            f"cluster {cluster.name!r} stands on {old!r} and can't move to {spec.provider!r}",
            hint=f"`hvdctl down --name {cluster.name}` first, or choose another --name",
        )
    if not cluster.nodes():
        return
    if stored.get("share") == "auto" != spec.share:
        raise UsageError(
            f"share: a change from auto to {spec.share} would delete what is on the share of {cluster.name!r}",
            hint="`hvdctl pull` what you need, `hvdctl down`, then `hvdctl up --share`",
        )
    if providers.REGISTRY[spec.provider].keeps_machines and spec.share == "auto":
        handover.check_head(cluster, spec)


def name(cluster: Cluster, spec: Spec) -> list[Claim]:
    """What stands under the name, which is not somebody else's on this site."""
    provider = providers.REGISTRY[spec.provider]
    found = provider.site.claims(cluster.name, spec)
    if theirs := owner.theirs(provider.name, cluster.name, found):
        raise _belongs(cluster.name, theirs[0], "choose another --name")
    return found


def unmarked(
    cluster: Cluster, provider: providers.Provider, claims: Sequence[Claim], ask: Ask, *, force: bool = False
) -> None:
    """The user says, once, that what has no owner mark is theirs, as older versions of hvdctl made it.

    Without a record of nodes that were made here, only data that was kept is asked about: what runs may be somebody
    else's, also after an `up` of ours that failed beside it.
    """
    loose = [claim for claim in claims if not claim.mark]
    if not loose or owner.taken(provider.name, cluster.name, ""):
        return
    if not (force or cluster.nodes()) and (runs := next((claim for claim in loose if not claim.is_data), None)):
        raise UsageError(
            f"cluster {cluster.name!r} runs already, and this home does not know it ({paths.home()}): "
            f"{runs.thing} has no owner mark",
            hint="choose another --name, or set HVDCTL_HOME to the one it was made with; if nobody uses it any more, "
            f"`hvdctl down --name {cluster.name} --force` removes it",
        )
    things = loose[0].thing if len(loose) == 1 else f"{loose[0].thing} and {len(loose) - 1} more"
    ask(
        f"An earlier version of hvdctl made {things} of cluster {cluster.name!r}, without an owner mark. "
        "Are you the one who made it?"
    )
    owner.take(provider.name, cluster.name, "")


def elsewhere(name: str, found: Sequence[tuple[str, Claim]]) -> UsageError:
    """Why `down` does not touch a cluster that this home has no record of; `found` is what the sites have."""
    ours = [claim for site, claim in found if owner.mine(site, name, claim.mark)]
    theirs = [claim for _, claim in found if claim.mark]
    if not found:
        return UsageError(f"there is no cluster {name!r}", hint="`hvdctl list` shows what there is")
    if ours:
        is_data = all(claim.is_data for claim in ours)
        return UsageError(
            f"only the kept data of cluster {name!r} is left: {ours[0].thing}"
            if is_data
            else f"this home has no record of cluster {name!r}, but {ours[0].thing} of it is yours",
            hint=f"`hvdctl down --name {name} --force` removes it"
            + (f"; `hvdctl up --name {name}` takes it again" if is_data else ""),
        )
    if theirs:
        return _belongs(name, theirs[0], "its owner removes it")
    return UsageError(
        f"cluster {name!r} is not known here, but something carries its label, without an owner mark: "
        f"{found[0][1].thing}",
        hint=f"`hvdctl down --name {name} --force` removes it",
    )


def _belongs(name: str, claim: Claim, way: str) -> UsageError:
    return UsageError(
        f"cluster {name!r} is somebody else's: {claim.thing} belongs to {claim.owner}",
        hint=f"{way}; if that home is yours, set HVDCTL_HOME to it; if it is gone for good, "
        f"`hvdctl down --name {name} --force --owner {claim.mark}` removes what it made",
    )


def image(cluster: Cluster, spec: Spec, *, keep: bool) -> str:
    """The image for the nodes: the one that the spec stands for, or with `keep` the one that they have."""
    wanted = images.for_spec(spec)
    if not keep:
        return wanted
    has = _image(cluster)
    if not has or not cluster.nodes():
        raise UsageError(f"--keep-image: cluster {cluster.name!r} has no nodes whose image could stay")
    stored = cluster.spec()
    if changed := [key for key in ("image", "framework", "jupyter") if getattr(stored, key) != getattr(spec, key)]:
        raise UsageError(
            f"--keep-image conflicts with a new value of {' and '.join(changed)}", hint="leave one of them out"
        )
    if spec.image == "auto" and images.identity(has) is None:
        raise UsageError(
            f"--keep-image: the Docker engine has no image {has!r} any more",
            hint=f"`hvdctl up --name {cluster.name}` recreates the nodes from {wanted}",
        )
    return has


def needs_plan(cluster: Cluster, spec: Spec, terraform: Terraform, wanted: dict[str, object]) -> bool:
    """Whether what would change must be known before anything is; `wanted` are the variables for Terraform."""
    if not cluster.nodes():
        return share_on_head(cluster, spec)
    had = variables(cluster.terraform)
    had_keys, keys = _public_keys(had), _public_keys(wanted)
    return (
        providers.REGISTRY[spec.provider].expires
        or share_on_head(cluster, spec)
        or unfinished(cluster.terraform)
        or _containers_change(cluster, spec, str(wanted["image"]))
        or any(had.get(name) != wanted[name] for name in _REPLACING)
        or any(had_keys[name] != keys[name] for name in had_keys.keys() & keys.keys())
        or _stateless(cluster, spec)
        or cluster.record("provision").get("module") != terraform.version()
    )


def agreed(cluster: Cluster, spec: Spec, planned: Outcome, image: str, ask: Ask) -> None:
    """The user agrees to what would be lost."""
    if share_on_head(cluster, spec) and head(cluster, planned, ask):
        return
    if replaced(cluster, planned, ask):
        return
    if names := recreated(cluster, spec, planned, image):
        which = ", ".join(names) if len(names) <= _FEW else f"{len(names)} nodes"
        ask(f"Recreate {which} of {cluster.name!r}{_why(cluster, spec, image)}? {ending(cluster)}".rstrip())


def recreated(cluster: Cluster, spec: Spec, planned: Outcome, image: str) -> list[str]:
    """The nodes that stay in the cluster and would start again from nothing, by name."""
    found = _numbers(planned, "replace")
    if _stateless(cluster, spec):
        seen = providers.REGISTRY[spec.provider].site.observe(cluster.name)
        there = {node.name for node in cluster.nodes()} & seen.keys()
        found |= {index for index in _numbers(planned, "create") if f"node{index}" in there}
    if _containers_change(cluster, spec, image):
        found |= set(range(min(spec.nodes, len(cluster.nodes()))))
    return [f"node{index}" for index in sorted(found)]


def ending(cluster: Cluster) -> str:
    """The runs that end with their nodes, as a sentence; empty if there are none."""
    missed: list[bool] = []
    try:
        found = [row for row in jobs.rows(cluster, lambda: missed.append(True)) if row["state"] not in jobs.FINAL]
    except HvdctlError:
        found, missed = [], [True]
    if missed and cluster.nodes():
        return "The head does not answer, so runs that this would end can't be listed."
    if not found:
        return ""
    named = (f"run {row['id']} ({textwrap.shorten(str(row['command']), _WIDTH, placeholder='...')})" for row in found)
    return f"This ends {', '.join(named)}."


def containers(image: str) -> dict[str, str]:
    """What decides whether Ansible recreates the containers on machines, of which Terraform knows nothing."""
    roles = paths.asset("playbooks", "roles")
    files = [roles / "horovod" / part for part in ("defaults", "vars", "tasks/main.yml")]
    return {"image": image, "role": digest(*files, roles / "nfs" / "files" / "mount.sh")}


def _numbers(planned: Outcome, action: str) -> set[int]:
    """The numbers of the nodes that Terraform would treat in this way."""
    return {int(match[1]) for match in map(_NODE.search, planned.changes.get(action, [])) if match}


def _stateless(cluster: Cluster, spec: Spec) -> bool:
    """Whether Terraform has lost track of nodes that it made here: creating a node clears what has its name.

    Clouds refuse that. GPULab takes a job of the same name again.
    """
    provider = providers.REGISTRY[spec.provider]
    made = bool(cluster.nodes()) and not (provider.keeps_machines or provider.expires)
    return made and not holds(cluster.terraform)


def _public_keys(document: Mapping[str, Any]) -> dict[str, str]:
    """In variables for Terraform: the host key of each node by name, and the key that may log in."""
    hosts = {name: pair["public_key"] for name, pair in document.get("ssh_host_keys", {}).items()}
    return {**hosts, "": document.get("ssh_public_key", "")}


def _containers_change(cluster: Cluster, spec: Spec, image: str) -> bool:
    if providers.REGISTRY[spec.provider].kind != "machine" or not cluster.nodes():
        return False
    made, wanted = cluster.record("containers"), containers(image)
    # Earlier versions wrote nothing down about them; and none were made if configuring never came to its end.
    return bool(made or cluster.record("configure")) and any(made.get(key) != wanted[key] for key in wanted)


def _image(cluster: Cluster) -> str:
    """The image that the nodes were last made from; empty if that is not known."""
    return str(cluster.record("containers").get("image") or variables(cluster.terraform).get("image") or "")


def _why(cluster: Cluster, spec: Spec, image: str) -> str:
    """Why nodes would be recreated, with the way to keep them."""
    if _stateless(cluster, spec):
        state = cluster.terraform / "terraform.tfstate"
        return f", as Terraform's state is gone (put {state} or its .backup back to keep them)"
    had = _image(cluster)
    if had == image:
        if _containers_change(cluster, spec, image):
            return ", as this version of hvdctl starts their containers with other settings"
        had_key = variables(cluster.terraform).get("ssh_public_key")
        new_key = had_key and had_key != cluster.key().public
        return f", as the cluster's SSH key was lost (put {cluster.key().private} back to keep them)" if new_key else ""
    stored = cluster.spec()
    if any(getattr(stored, key) != getattr(spec, key) for key in ("image", "framework", "jupyter", "gpus")):
        return f" from the image {masked(image)}"
    return f" from {masked(image)}, the image of this version of hvdctl (--keep-image keeps {masked(had)})"


def share_on_head(cluster: Cluster, spec: Spec) -> bool:
    """Whether the share lies on the disk of a machine that hvdctl made, and goes with it."""
    provider = providers.REGISTRY[spec.provider]
    stands = provider.kind == "machine" and not provider.keeps_machines and bool(cluster.record("share"))
    return stands and spec.share == "auto"


def head(cluster: Cluster, planned: Outcome, ask: Ask) -> bool:
    """The user agrees where the head would be made anew, and the share with it; the contract calls it node[0].

    Returns whether that was a question.
    """
    lost = [one for action in ("replace", "delete") for one in planned.changes.get(action, [])]
    if not any(address.endswith(".node[0]") for address in lost):
        return False
    question = f"Make node0 of {cluster.name!r} anew, with the loss of all data on its share (`hvdctl pull` saves it)?"
    ask(f"{question} {ending(cluster)}".rstrip())
    return True


def replaced(cluster: Cluster, planned: Outcome, ask: Ask) -> bool:
    """The user agrees where jobs that run would be given up for others, which queue first.

    Returns whether that was a question.
    """
    anew = [address for address in planned.changes.get("replace", []) if "_job." in address]
    if not anew:
        return False
    which = "a job" if len(anew) == 1 else f"{len(anew)} jobs"
    question = f"Cancel {which} of {cluster.name!r} and submit anew with other settings? It may have to queue again."
    ask(f"{question} {ending(cluster)}".rstrip())
    return True


def keep(cluster: Cluster, keep_data: bool) -> None:
    """Data can be kept only where it does not go with a machine."""
    if not keep_data or not cluster.exists:
        return
    provider = providers.REGISTRY[cluster.spec().provider]
    if provider.kind == "machine" and not provider.keeps_machines:
        raise UsageError(
            f"--keep-data: the share of {cluster.name!r} is on the disk of its head, which goes with it",
            hint="`hvdctl pull` what you need, then `hvdctl down`",
        )


def kept_data(cluster: Cluster, provider: providers.Provider) -> bool:
    """Whether a new cluster takes the share that `down --keep-data` left to it: it may hold results."""
    if cluster.exists or provider.kind == "machine" or provider.keeps_share:
        return False
    return bool(provider.site.leftovers(cluster.name))


def _leftovers(name: str, provider: str) -> list[str]:
    known = providers.REGISTRY.get(provider)
    return known.site.leftovers(name) if known else []
