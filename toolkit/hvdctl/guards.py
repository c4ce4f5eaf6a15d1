"""What must be so before a cluster is changed: each raises, with the way out, before anything is made or lost."""

from __future__ import annotations

from collections.abc import Callable

from hvdctl import handover, paths, providers
from hvdctl.cluster import Cluster
from hvdctl.errors import UsageError
from hvdctl.spec import Spec
from hvdctl.terraform import Outcome, Terraform, binary

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


def owner(cluster: Cluster, provider: providers.Provider) -> None:
    """The name is not that of someone else's cluster on this site: it would be taken for a half-made one of ours."""
    if not cluster.exists and provider.site.observe(cluster.name):
        raise UsageError(
            f"cluster {cluster.name!r} runs already, and this home does not know it ({paths.home()})",
            hint="choose another --name, or set HVDCTL_HOME to the one it was made with",
        )


def needs_plan(cluster: Cluster, spec: Spec) -> bool:
    """Whether what would change must be known before anything is."""
    jobs = providers.REGISTRY[spec.provider].expires and bool(cluster.nodes())
    return jobs or share_on_head(cluster, spec)


def agreed(cluster: Cluster, spec: Spec, planned: Outcome, ask: Ask) -> None:
    """The user agrees to what would be lost."""
    if share_on_head(cluster, spec):
        head(cluster, planned, ask)
    else:
        replaced(cluster, planned, ask)


def share_on_head(cluster: Cluster, spec: Spec) -> bool:
    """Whether the share lies on the disk of a machine that hvdctl made, and goes with it."""
    provider = providers.REGISTRY[spec.provider]
    stands = provider.kind == "machine" and not provider.keeps_machines and bool(cluster.record("share"))
    return stands and spec.share == "auto"


def head(cluster: Cluster, planned: Outcome, ask: Ask) -> None:
    """The user agrees where the head would be made anew, and the share with it; the contract calls it node[0]."""
    lost = [one for action in ("replace", "delete") for one in planned.changes.get(action, [])]
    if any(address.endswith(".node[0]") for address in lost):
        ask(f"Make node0 of {cluster.name!r} anew, with the loss of all data on its share (`hvdctl pull` saves it)?")


def replaced(cluster: Cluster, planned: Outcome, ask: Ask) -> None:
    """The user agrees where jobs that run would be given up for others, which queue first."""
    anew = [address for address in planned.changes.get("replace", []) if "_job." in address]
    if anew:
        jobs = "a job" if len(anew) == 1 else f"{len(anew)} jobs"
        ask(f"Cancel {jobs} of {cluster.name!r} and submit anew with other settings? It may have to queue again.")


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


def _leftovers(name: str, provider: str) -> list[str]:
    known = providers.REGISTRY.get(provider)
    return known.site.leftovers(name) if known else []
