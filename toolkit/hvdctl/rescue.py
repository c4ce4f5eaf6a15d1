"""Results come home before a share goes: runs, and the benches that were measured in notebooks."""

from __future__ import annotations

import os

from hvdctl import collect, incoming, providers
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, ToolMissing, UsageError
from hvdctl.progress import Step

_DONE = "collected"


def results(cluster: Cluster, step: Step, *, keep_data: bool, force: bool, limit: int = incoming.LIMIT) -> None:
    """Copy what the share has of runs and benches; raise if that fails and the share goes, unless forced.

    Nothing is removed before.
    """
    try:
        if not had_share(cluster):
            return
        stays = share_stays(cluster, keep_data)
    except UsageError:  # a file of the cluster can't be read
        if not force:
            raise
        step.note("results not collected: the cluster's files can't be read")
        return
    try:
        missing = _collect(cluster, step, limit)
        why = f"left out: {_few(missing)}" if missing else ""
        hint = _ways_out(cluster, missing)
    except (HvdctlError, OSError) as error:
        if isinstance(error, ToolMissing) and not force:
            raise
        why = error.message if isinstance(error, HvdctlError) else f"{error.strerror} ({error.filename})"
        hint = error.hint if isinstance(error, HvdctlError) else ""
        hint = hint or "fix that, then `hvdctl down` again"
    if not why:
        cluster.complete(_DONE, 0)
        return
    where = f"/shared/runs and /shared/bench of {cluster.name!r}"
    if stays or force:
        step.note(f"results not collected: {why}; " + (f"they stay in {where}" if stays else "they go with the share"))
        return
    raise HvdctlError(
        f"nothing was removed, as results in {where} could not be collected: {why}",
        hint=f"{hint}; `hvdctl down --force --name {cluster.name}` removes them with the cluster",
    )


def outdated(cluster: Cluster) -> None:
    """From now on there may be new results."""
    cluster.forget(_DONE)


def share_stays(cluster: Cluster, keep_data: bool = False) -> bool:
    """Whether what is on the share outlives `down`."""
    spec = cluster.spec()
    return keep_data or spec.share != "auto" or providers.REGISTRY[spec.provider].keeps_share


def had_share(cluster: Cluster) -> bool:
    """Whether there may be results: a cluster that was never configured has run nothing.

    If there are nodes and no records at all, the records were lost.
    """
    used = cluster.record("share") or cluster.record("configure") or (cluster.nodes() and not cluster.has_records)
    return cluster.exists and bool(used)


def _collect(cluster: Cluster, step: Step, limit: int) -> list[incoming.Left]:
    """What holds data and did not come; an error if the head can't be asked, and its share may be there."""
    site = providers.REGISTRY[cluster.spec().provider].site
    nodes = cluster.nodes()
    head = nodes[0].name if nodes else "node0"
    state = site.observe(cluster.name, [head]).get(head, "gone")
    up = f"`hvdctl up --name {cluster.name}` restores it, then `hvdctl down` again"
    if state != "running":
        # An earlier `down` brought all home and removed the head, or nothing is left of the cluster, nor of its share.
        if (cluster.record(_DONE) and state == "gone") or not site.leftovers(cluster.name):
            return []
        raise HvdctlError(f"the head {head} does not run ({state})", hint=up)
    if not nodes or not cluster.ssh_config.exists():
        raise HvdctlError(f"the way to the head {head} is not known here", hint=up)
    arrived = collect.results(cluster, limit)
    for note in arrived.notes():
        step.note(note)
    if arrived.files:
        os.sync()  # a power cut after the share has gone must not take them
    return [one for one in arrived.left if one.data]


def _few(missing: list[incoming.Left]) -> str:
    names = [f"{one.name} ({one.why})" for one in missing[:3]]
    return ", ".join(names) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")


def _ways_out(cluster: Cluster, missing: list[incoming.Left]) -> str:
    """What the user can do about results that did not come."""
    hints = list(dict.fromkeys(one.hint for one in missing if one.hint))
    folders = sorted({one.name.split("/", 1)[0] for one in missing})
    pulls = " and ".join(f"`hvdctl pull {folder} --name {cluster.name}`" for folder in folders)
    return "; ".join([*hints[:3], f"{pulls} {'copies' if len(folders) == 1 else 'copy'} them elsewhere"])
