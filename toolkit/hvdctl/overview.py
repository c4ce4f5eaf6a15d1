"""What stands: of one cluster, and of all that this home or a site knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hvdctl import providers, tunnel
from hvdctl.cluster import Cluster, known
from hvdctl.errors import HvdctlError


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
        "link": cluster.record("link").get("measured"),
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
        except HvdctlError as error:
            rows.append({"cluster": cluster.name, "state": f"unreadable: {error.message}"})
    here = {row["cluster"] for row in rows}
    for provider, found in on_sites(unasked):
        rows += [
            {"cluster": name, "state": "unknown here", "provider": provider.name} for name in found if name not in here
        ]
    return rows


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


def _node_state(seen: str | None) -> str:
    return "running" if seen == "running" else "lost"
