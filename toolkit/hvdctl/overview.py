"""What stands: of one cluster, and of all that this home or a site knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hvdctl import links, owner, providers, tunnel
from hvdctl.cluster import Cluster, known
from hvdctl.errors import HvdctlError
from hvdctl.owner import Claim


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
        "spec": spec.shown(),
        "nodes": nodes,
        "lost": lost,
        "link": asdict(link) if (link := links.Measured.of(cluster)) else None,
        "about": providers.REGISTRY[spec.provider].site.about(name),
        "jupyter": {key: value for key, value in tunnel.state(cluster).items() if key in ("open", "port")},
        "folder": str(cluster.folder),
    }


def clusters(unasked: list[str]) -> list[dict[str, Any]]:
    """Every cluster with a folder here, and every one that only the sites still know of.

    `unasked` takes a line for each site that can't be asked now.
    """
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
        except (HvdctlError, OSError) as error:
            rows.append({"cluster": cluster.name, "state": f"unreadable: {_why(error)}"})
    here = {row["cluster"]: row.get("provider") for row in rows}
    for provider, found in on_sites(unasked):
        for name in found:
            try:
                rows += _apart(provider, name, known=here.get(name, "") in (None, provider.name))
            except (HvdctlError, OSError) as error:
                unasked.append(f"{provider.name} can't be asked about {name}: {_why(error)}")
    return rows


def claims(name: str) -> Iterator[tuple[str, Claim]]:
    """What every site has of this name, whoever made it, with the name of the site."""
    for provider, found in on_sites():
        if name in found:
            yield from ((provider.name, claim) for claim in provider.site.claims(name))


def on_sites(unasked: list[str] | None = None) -> Iterator[tuple[providers.Provider, list[str]]]:
    """What each site has; one elsewhere that can't be asked now keeps nobody from the others."""
    for provider in providers.REGISTRY.values():
        try:
            yield provider, provider.site.clusters()
        except HvdctlError as error:
            if provider.here:
                raise
            if unasked is not None:
                unasked.append(f"{provider.name} can't be asked: {error.message}")


def _why(error: HvdctlError | OSError) -> str:
    if isinstance(error, HvdctlError):
        return error.message
    return f"{error.strerror} ({error.filename})" if error.filename else str(error)


def _node_state(seen: str | None) -> str:
    return "running" if seen == "running" else "lost"


def _apart(provider: providers.Provider, name: str, *, known: bool) -> list[dict[str, Any]]:
    """What a site has under a name beside the cluster that this home knows: a row for each owner."""
    rows: dict[str, dict[str, Any]] = {}
    found = provider.site.claims(name)
    for claim in found:
        ours = owner.mine(provider.name, name, claim.mark)
        if known and (ours or not claim.mark):
            continue
        same = [one for one in found if one.mark == claim.mark]
        if not ours:
            state = "somebody else's" if claim.mark else "unmarked"
        else:
            state = "kept data" if all(one.is_data for one in same) else "unknown here"
        rows[claim.mark] = {
            "cluster": name,
            "state": state,
            "provider": provider.name,
            "owner": "yours" if ours else claim.owner or "not known",
        }
    return list(rows.values())
