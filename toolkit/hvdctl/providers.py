"""The registry: one line for each provider.

A provider is a folder of infra/ with the common contract, and a module of sites/ that knows its own settings
(`Options`), can say what stands (`observe`), who has something of a cluster's name (`claims`), what of it is ours
(`leftovers`), remove that (`sweep`) and refuse what the site can't give (`preflight`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from hvdctl.progress import Progress, Step

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hvdctl.owner import Claim
    from hvdctl.spec import Spec


@dataclass(frozen=True)
class Access:
    """How machines that were there before hvdctl are logged in to."""

    host_keys: dict[str, tuple[str, ...]]
    """Their host keys by the name of the node, each as `type base64`."""
    key: Path | None
    """The private key that logs in; None: the user's own keys and agent."""
    known_hosts: tuple[Path, ...] = ()
    """Files with the host keys of jump hosts."""


def here(spec: Spec) -> bool:
    """Whether the nodes share the cores and the memory of this machine."""
    provider = REGISTRY[spec.provider]
    emulated = getattr(provider.site, "emulated", None)
    return provider.here or bool(emulated and emulated(spec))


def one_machine(spec: Spec) -> bool:
    """Whether the nodes are containers of this machine; virtual machines are counted as machines of their own."""
    return REGISTRY[spec.provider].kind == "container" and here(spec)


class Site(Protocol):
    """What a provider's module offers beside its Terraform folder."""

    Options: type[BaseModel]
    """The provider's own settings, the key `options` of a spec: strict, with a default for each."""

    def preflight(self, spec: Spec) -> None:
        """Raise where the site can't give what is asked, before anything is made or lost."""

    def access(self, spec: Spec) -> Access | None:
        """How the machines are logged in to; None where they get the cluster's own keys when they are made."""

    def settings(self, spec: Spec) -> dict[str, Any]:
        """The options as Terraform takes them: with every default, `auto` in them replaced by what it stands for."""

    def prepare(self, spec: Spec, progress: Progress) -> None:
        """Make here what the nodes are made from, beside the Horovod image."""

    def watch(self, spec: Spec, step: Step) -> AbstractContextManager[None]:
        """Around Terraform's work: tells what the site is busy with, and gives back a part where all was wanted."""

    def observe(self, cluster: str, nodes: Sequence[str] | None = None) -> dict[str, str]:
        """The state of each node that the site knows by the cluster's label, such as {"node0": "running"}.

        With `nodes`, only these are asked about and told of: one node costs one question, not one for each node.
        """

    def about(self, cluster: str) -> str:
        """A line on what the nodes run on, for `status`; empty where there is nothing to tell."""

    def hint(self, message: str) -> str:
        """What to do about an error that Terraform told of; empty where nothing is known."""

    def claims(self, cluster: str, spec: Spec | None = None) -> list[Claim]:
        """Everything on the site that has the cluster's name, whoever made it, with its owner.

        The site is the one that the spec names, else the one that the cluster was made on.
        """

    def leftovers(self, cluster: str) -> list[str]:
        """All of the cluster that is this home's (`owner.mine`), each as "kind name"."""

    def sweep(self, cluster: str, *, keep_data: bool, step: Step) -> None:
        """Remove all of the cluster that is this home's, but for its data if that is to be kept."""

    def clusters(self) -> list[str]:
        """The names of all clusters that the site has something of, whoever made them."""


@dataclass(frozen=True)
class Provider:
    name: str
    kind: Literal["container", "machine"]
    module: str
    summary: str
    keeps_machines: bool = False
    """The machines stay after `down`, which undoes what was configured on them."""
    keeps_share: bool = False
    """The share is a storage that was there before and stays after `down`."""
    here: bool = False
    """The nodes share the cores and the memory of this machine."""
    foreign_network: str = ""
    """Its network is not hvdctl's own: links can't be given a rate, and whether nodes reach each other is tried first.
    What to do where they don't.
    """
    expires: bool = False
    """What it runs ends by itself: `down --force` may give up what can't be asked about."""
    all_at_once: bool = False
    """Its nodes wait in a queue until there is room for them: all are asked for before any is waited for."""
    cuda: bool = True
    """An image that is built here for nodes with GPUs is one with CUDA."""

    @property
    def site(self) -> Site:
        return cast(Site, importlib.import_module(self.module))


REGISTRY = {
    provider.name: provider
    for provider in (
        Provider("local", "container", "hvdctl.sites.local", "Docker containers on this machine", here=True),
        Provider(
            "gpulab",
            "container",
            "hvdctl.sites.gpulab",
            "GPULab jobs",
            foreign_network="one job with all GPUs needs no network (--layout 1xGPUS); jobs on one worker may reach "
            "each other (--option worker=NAME, from `gpulab-cli clusters -a`); else ask GPULab's people to open ports",
            # It runs in the emulator only, whose GPUs are numbers.
            cuda=False,
            keeps_share=True,
            expires=True,
            all_at_once=True,
        ),
        Provider("vm", "machine", "hvdctl.sites.vm", "QEMU virtual machines on this machine", here=True),
        Provider("static", "machine", "hvdctl.sites.static", "Machines that you have SSH to", keeps_machines=True),
        Provider("aws", "machine", "hvdctl.sites.aws", "Amazon EC2 instances"),
        Provider("openstack", "machine", "hvdctl.sites.openstack", "OpenStack instances"),
    )
}
