"""The registry: one line for each provider.

A provider is a folder of infra/ with the common contract, and a module that can say what stands (`observe`), what
carries the cluster's label (`leftovers`), remove that (`sweep`) and refuse what the site can't give (`preflight`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from hvdctl.progress import Step


class Site(Protocol):
    """What a provider's module offers beside its Terraform folder."""

    def preflight(self, *, image: str, gpus: int, share: str) -> None:
        """Raise where the site can't give what is asked, before anything is made or lost."""

    def observe(self, cluster: str) -> dict[str, str]:
        """The state of each node that the site knows by the cluster's label, such as {"node0": "running"}."""

    def leftovers(self, cluster: str) -> list[str]:
        """All that carries the cluster's label, each as "kind name"."""

    def sweep(self, cluster: str, *, keep_data: bool, step: Step) -> None:
        """Remove all that carries the cluster's label, but for its data where that is to be kept."""

    def clusters(self) -> list[str]:
        """The names of all clusters that the site has something of."""


@dataclass(frozen=True)
class Provider:
    name: str
    kind: Literal["container", "machine"]
    module: str
    summary: str

    @property
    def site(self) -> Site:
        return cast(Site, importlib.import_module(self.module))


REGISTRY = {
    provider.name: provider
    for provider in (Provider("local", "container", "hvdctl.local", "Docker containers on this machine"),)
}
