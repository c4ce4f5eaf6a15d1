"""The site `openstack`: what it refuses, finds by tag and removes, in a project that the test plays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openstack
import pytest
from hvdctl import guards, owner
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError, ToolMissing, UsageError
from hvdctl.progress import Silent
from hvdctl.sites import openstack as site
from hvdctl.spec import Spec, parse
from openstack.block_storage.v3.volume import Volume
from openstack.compute.v2.flavor import Flavor
from openstack.compute.v2.server import Server
from openstack.compute.v2.server_group import ServerGroup
from openstack.exceptions import ConflictException, HttpException
from openstack.network.v2.floating_ip import FloatingIP
from openstack.network.v2.network import Network
from openstack.network.v2.port import Port
from openstack.network.v2.router import Router
from openstack.network.v2.security_group import SecurityGroup
from openstack.network.v2.subnet import Subnet

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")

CHOSEN: dict[str, Any] = {
    "admit": "203.0.113.7",
    "flavor": "m1.large",
    "image": "debian-12",
    "external_network": "public",
}


HELD = {
    Network: (Subnet, Port),
    Subnet: (Port,),
    SecurityGroup: (Port,),
    Volume: (Server,),
    Router: (Port,),
    Port: (Server, FloatingIP),
}


class Project:
    """A project with the SDK's own resources in it. As in OpenStack, some things can't go before others have gone."""

    current_project_id = "p1"

    def __init__(self) -> None:
        self.things: list[Any] = []
        self.removed: list[str] = []
        self.leaving: list[Any] = []
        self.compute = SimpleNamespace(
            servers=self._list(Server),
            server_groups=self._list(ServerGroup),
            flavors=lambda: [Flavor(name="m1.large", vcpus=4, ram=8192), Flavor(name="m1.small", vcpus=1, ram=2048)],
            delete_server=lambda server, ignore_missing: self.leaving.append(server),
            delete_server_group=self._delete,
            wait_for_delete=lambda server, wait: self._delete(server, ignore_missing=True),
        )
        self.network = SimpleNamespace(
            ips=self._list(FloatingIP),
            ports=self._list(Port),
            routers=self._list(Router),
            subnets=self._list(Subnet),
            networks=self._networks,
            security_groups=self._list(SecurityGroup),
            remove_interface_from_router=self._detach,
            **{
                f"delete_{kind}": self._delete
                for kind in ("ip", "port", "router", "subnet", "network", "security_group")
            },
        )
        self.block_storage = SimpleNamespace(volumes=self._list(Volume), delete_volume=self._delete)
        self.image = SimpleNamespace(images=lambda status: [SimpleNamespace(name=n) for n in ("debian-12", "fedora")])
        self.services = {"compute", "network", "image", "block-storage"}
        self.externals = ["public"]

    def has_service(self, name: str) -> bool:
        return name in self.services

    def _list(self, kind: type[Any]) -> Callable[..., list[Any]]:
        def listed(tags: str | None = None, device_id: str | None = None) -> list[Any]:
            found = [thing for thing in self.things if isinstance(thing, kind)]
            found = [thing for thing in found if tags is None or tags in thing.tags]
            return [thing for thing in found if device_id is None or thing.device_id == device_id]

        return listed

    def _networks(self, tags: str | None = None, is_router_external: bool | None = None) -> list[Any]:
        if is_router_external:
            return [SimpleNamespace(name=name) for name in self.externals]
        return self._list(Network)(tags)

    def _delete(self, thing: Any, ignore_missing: bool) -> None:
        assert ignore_missing
        if isinstance(thing, Server):
            assert thing in self.leaving, "waited for before it was deleted"
        cluster = thing.name.split("-")[1]
        holders = [h for h in self.things if isinstance(h, HELD.get(type(thing), ())) and f"-{cluster}" in h.name]
        if holders:
            raise ConflictException(f"{thing.name} is in use by {holders[0].name}")
        self.things.remove(thing)
        self.removed.append(thing.name)

    def _detach(self, router: Router, subnet: None, port: str) -> None:
        self.things = [thing for thing in self.things if thing.id != port]

    def make(self, cluster: str, nodes: int = 2, mark: str | None = None, words: str = "") -> None:
        """What `up` makes of a cluster of this home, of another owner, or as older versions did (mark "")."""
        mark = owner.this().id if mark is None else mark
        tags, base = [f"hvdctl.cluster={cluster}", "team=blue"], f"hvdctl-{cluster}"
        marked = {"hvdctl.owner": mark, "hvdctl.owner-name": words or owner.this().name} if mark else {}
        tags += [f"hvdctl.owner={mark}"] if mark else []
        ours: dict[str, Any] = {"name": base, "tags": tags}
        self.things += [
            Network(id=f"{base}-net", **ours),
            Subnet(id=f"{base}-sub", **ours),
            Router(id=f"{base}-router", **ours),
            Port(
                id=f"{base}-inner",
                name=f"{base}-inner",
                device_id=f"{base}-router",
                tags=[],
                device_owner="network:router_interface",
            ),
            SecurityGroup(id=f"{base}-sg", **ours),
            ServerGroup(id=f"{base}-group", name=f"{base}.{mark}" if mark else base),
            FloatingIP(id=f"{base}-ip", name=f"198.51.100.1-{cluster}", tags=tags),
        ]
        for index in range(nodes):
            metadata = {"hvdctl.cluster": cluster, "hvdctl.name": f"node{index}", **marked}
            name = f"{base}-node{index}"
            self.things += [
                Port(id=f"{name}-port", name=name, tags=tags),
                Volume(id=f"{name}-disk", name=name, metadata=metadata),
                Server(
                    id=name,
                    name=name,
                    status="ACTIVE",
                    metadata=metadata,
                    availability_zone="nova",
                    flavor={"original_name": "m1.large", "id": "m1.large"},
                ),
            ]


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has nothing to do with OpenStack."""
    for name in [name for name in os.environ if name.startswith("OS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(site, "_FILES", (str(tmp_path / "clouds.yaml"),))


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project()
    monkeypatch.setenv("OS_CLOUD", "lab")
    monkeypatch.setattr(openstack, "connect", lambda **_: made)
    return made


def spec(*, name: str = "demo", cpus: float | None = None, memory: str = "none", **options: object) -> Spec:
    given = {"name": name, "provider": "openstack", "cpus": cpus, "memory": memory, "options": options}
    return parse(given, source="the test")


def stands(cluster: str, project: str) -> None:
    """A cluster of ours, as `up` leaves it."""
    Cluster(cluster).store_spec(spec(name=cluster, **CHOSEN))
    origin = {"attributes": {"output": {"value": {"project": project, "region": None}}}}
    state = {"resources": [{"type": "terraform_data", "name": "origin", "instances": [origin]}]}
    write(Cluster(cluster).terraform / "terraform.tfstate", json.dumps(state))


def test_preflight_takes_what_the_cloud_has(project: Project) -> None:
    site.preflight(spec(**CHOSEN, cpus=4.0, memory="8g"))
    site.preflight(spec(**{**CHOSEN, "external_network": None}))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"admit": []}, "options.admit: no address is admitted"),
        ({"flavor": None}, "options.flavor: it must be chosen; the cloud has: m1.large, m1.small"),
        ({"flavor": "huge"}, "options.flavor: 'huge' is not there; the cloud has: m1.large, m1.small"),
        ({"image": "debian-99"}, "options.image: 'debian-99' is not there; the cloud has: debian-12, fedora"),
        ({"external_network": "pubic"}, "options.external_network: 'pubic' is not there; the cloud has: public"),
        ({"cpus": 8.0}, "cpus: 8 asked, but m1.large has 4"),
        ({"memory": "16g"}, "memory: 16g asked, but m1.large has 8g"),
    ],
)
def test_preflight_refuses_what_it_has_not(project: Project, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        site.preflight(spec(**{**CHOSEN, **changed}))
    assert told in refused.value.message


def test_of_several_external_networks_one_must_be_chosen(project: Project) -> None:
    project.externals = ["public", "campus"]
    with pytest.raises(UsageError, match="external_network: it must be chosen; the cloud has: campus, public"):
        site.preflight(spec(**{**CHOSEN, "external_network": None}))
    site.preflight(spec(**{**CHOSEN, "external_network": "campus"}))


def test_a_server_group_is_one_of_novas(project: Project) -> None:
    with pytest.raises(UsageError, match=r"options\.server_group: 'near' is not valid"):
        spec(server_group="near")


def test_nodes_are_seen_by_metadata(project: Project) -> None:
    project.make("demo")
    project.make("other")
    assert site.observe("demo") == {"node0": "running", "node1": "running"}
    (worker,) = [thing for thing in project.things if isinstance(thing, Server) and thing.id == "hvdctl-demo-node1"]
    worker.status = "SHUTOFF"
    assert site.observe("demo") == {"node0": "running", "node1": "shutoff"}
    assert site.observe("demo", ["node1"]) == {"node1": "shutoff"}
    assert site.about("demo") == "m1.large in nova"
    assert site.clusters() == ["demo", "other"]


def test_everything_of_a_cluster_is_found(project: Project) -> None:
    project.make("demo", nodes=1)
    project.make("other")
    assert site.leftovers("demo") == [
        "server hvdctl-demo-node0",
        "floating-ip 198.51.100.1-demo",
        "port hvdctl-demo-node0",
        "router hvdctl-demo",
        "subnet hvdctl-demo",
        "network hvdctl-demo",
        "security-group hvdctl-demo",
        f"server-group hvdctl-demo.{owner.this().id}",
        "disk hvdctl-demo-node0",
    ]


def test_sweep_removes_this_cluster_and_nothing_else(project: Project) -> None:
    project.make("demo")
    project.make("other")
    before = site.leftovers("other")
    site.sweep("demo", keep_data=False, step=Silent())
    assert site.leftovers("demo") == []
    assert not [thing.name for thing in project.things if "demo" in thing.name], "the router's own port went as well"
    assert site.leftovers("other") == before
    assert site.clusters() == ["other"]


def test_what_openstack_refuses_to_remove_is_told_and_the_rest_goes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_PAUSE", 0)
    project.make("demo", nodes=1)
    project.things.append(Port(id="x", name="hvdctl-demo-foreign", tags=[]))
    told: list[str] = []
    step = Silent()
    step.note = told.append  # type: ignore[method-assign, assignment]
    site.sweep("demo", keep_data=False, step=step)
    assert told[0] == "router hvdctl-demo: hvdctl-demo is in use by hvdctl-demo-foreign"
    assert sorted(site.leftovers("demo")) == sorted(line.split(":")[0] for line in told)
    assert "hvdctl-demo-node0" in project.removed


def test_a_cloud_without_block_storage_has_no_disks(project: Project) -> None:
    project.make("demo", nodes=1)
    project.services.remove("block-storage")
    assert not [thing for thing in site.leftovers("demo") if thing.startswith("disk")]


def test_credentials_of_another_project_are_refused(project: Project) -> None:
    stands("demo", project="p2")
    for ask in (site.observe, site.leftovers, lambda name: site.preflight(spec(name=name, **CHOSEN))):
        with pytest.raises(UsageError, match="stands in the OpenStack project p2; the credentials are of p1"):
            ask("demo")


def test_preflight_refuses_to_make_all_a_second_time(project: Project) -> None:
    project.make("demo")
    with pytest.raises(UsageError, match="the project has 12 things of it, and Terraform's state knows of none"):
        site.preflight(spec(**CHOSEN))
    stands("demo", project="p1")
    site.preflight(spec(**CHOSEN))


def test_what_somebody_else_or_an_older_version_made_is_named_and_left_alone(project: Project) -> None:
    project.make("demo", nodes=1, mark="0123456789abcdef", words="ada@lab:/clusters")
    project.make("demo", nodes=1, mark="")
    before = [thing.id for thing in project.things]
    assert {claim.owner for claim in site.claims("demo")} == {"ada@lab:/clusters (owner 0123456789abcdef)", ""}
    assert len(site.claims("demo")) == 18
    assert site.leftovers("demo") == []
    assert site.observe("demo") == {}
    site.sweep("demo", keep_data=False, step=Silent())
    assert [thing.id for thing in project.things] == before
    with pytest.raises(UsageError, match=r"cluster 'demo' is somebody else's: .* belongs to ada@lab:/clusters"):
        guards.name(Cluster("demo"), spec(**CHOSEN))


def test_who_has_no_openstack_is_not_bothered_with_it() -> None:
    assert site.clusters() == []
    assert site.observe("demo") == {}
    assert site.about("demo") == ""
    assert site.leftovers("demo") == []
    site.sweep("demo", keep_data=False, step=Silent())


def test_without_the_sdk_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_installed", lambda: False)
    with pytest.raises(ToolMissing, match="openstacksdk") as refused:
        site.preflight(spec(**CHOSEN))
    assert refused.value.hint == "`pip install openstacksdk` in the environment of hvdctl"


def test_without_credentials_it_says_how_to_give_them() -> None:
    """What must be chosen is told before, as no cloud is needed to know it."""
    with pytest.raises(UsageError, match=r"options\.flavor and options\.image must be chosen") as refused:
        site.preflight(spec(admit="203.0.113.7"))
    assert refused.value.hint.startswith("--option flavor=NAME --option image=NAME")
    with pytest.raises(UsageError, match=r"^options\.image must be chosen"):
        site.preflight(spec(**{**CHOSEN, "image": None}))
    with pytest.raises(UsageError, match="there are no OpenStack credentials: --option cloud=NAME of a clouds"):
        site.preflight(spec(**CHOSEN))


def test_a_cloud_that_is_not_in_the_file_is_told() -> None:
    with pytest.raises(HvdctlError, match="Cloud lab was not found") as refused:
        site.preflight(spec(**CHOSEN, cloud="lab"))
    assert "--option cloud=NAME" in refused.value.hint


def test_a_cloud_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AUTH_URL": "http://127.0.0.1:9/v3", "USERNAME": "u", "PASSWORD": "p"}.items():
        monkeypatch.setenv(f"OS_{name}", value)
    for name in ("OS_PROJECT_NAME", "OS_USER_DOMAIN_NAME", "OS_PROJECT_DOMAIN_NAME"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(HvdctlError, match=r"127\.0\.0\.1:9") as refused:
        site.leftovers("demo")
    assert "OpenStack can't be reached" in refused.value.hint


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("The request you have made requires authentication. (HTTP 401)", "does not take these credentials"),
        ("Quota exceeded for cores: Requested 8, but already used 16 of 20 cores", "a smaller --option flavor"),
        ("No valid host was found. There are not enough hosts available.", "--option server_group=none"),
        ("Your query returned no results. Please change your search criteria", "openstack image list"),
        ("No more IP addresses available on network 1", "no address left to give"),
        ("Error: Invalid index", ""),
    ],
)
def test_errors_are_explained(message: str, hint: str) -> None:
    told = site.explain(message)
    assert hint in told if hint else told == ""


def test_what_openstack_refuses_is_told_in_its_words(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise HttpException("Forbidden: policy does not allow this", http_status=403)

    monkeypatch.setattr(project.network, "ips", refuse)
    with pytest.raises(HvdctlError, match="policy does not allow this") as refused:
        site.leftovers("demo")
    assert "role `member`" in refused.value.hint
