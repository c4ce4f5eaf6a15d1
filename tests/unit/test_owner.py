"""Whose a thing is: one name in two homes, what older versions made, and a home that is gone. Real Terraform, a small
engine.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import engine as engine_module
from hvdctl import guards, overview, owner, pipeline
from hvdctl.cluster import Cluster
from hvdctl.errors import PhaseError, UsageError
from hvdctl.progress import Silent
from hvdctl.sites import local
from hvdctl.spec import Spec
from hvdctl.tfprovider.provider import HvdProvider
from hvdctl.tfprovider.volume import HvdVolume
from support import IMAGE, Hvdctl, stand
from test_pipeline import site
from test_tfprovider import Caller

__all__ = ["site"]
real = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")
SPEC = Spec(name="demo", nodes=1, image=IMAGE)
ADA = {"hvdctl.owner": "0123456789abcdef", "hvdctl.owner-name": "ada@lab:/home/ada/clusters"}
ALL = ["hvdctl-demo-node0"], ["hvdctl-demo-net"], ["hvdctl-demo-share"]
Home = Callable[[str], Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """`with home("b"):` is another user's terminal."""

    @contextmanager
    def use(name: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setenv("HVDCTL_HOME", str(tmp_path / name))
            yield

    return use


@pytest.fixture
def asked() -> list[str]:
    return []


def stands(engine: FakeEngine) -> tuple[list[str], list[str], list[str]]:
    return engine.names("containers"), engine.names("networks"), engine.names("volumes")


def old(engine: FakeEngine, *kinds: str) -> None:
    """The marks are taken off what stands, as if an earlier version had made it."""
    for kind in kinds or ("containers", "networks", "volumes"):
        for thing in getattr(engine, kind).values():
            for labels in (thing["Labels"], thing.get("Config", {}).get("Labels", {})):
                for name in owner.LABELS:
                    labels.pop(name, None)


# The owner itself.


def test_an_owner_is_made_once_and_outlives_every_cluster() -> None:
    assert owner.known() is None
    made = owner.this()
    assert re.fullmatch("[0-9a-f]{16}", made.id)
    assert made.name.endswith("/clusters")
    assert re.match(r"\w[\w.-]*@[\w.-]+:/", made.name)
    assert owner.this() == owner.known() == made


def test_two_that_begin_at_once_are_one_owner() -> None:
    found: list[str] = []
    together = [threading.Thread(target=lambda: found.append(owner.this().id)) for _ in range(8)]
    for one in together:
        one.start()
    for one in together:
        one.join()
    assert len(set(found)) == 1 and len(found) == 8


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "x", "name": "y"}', '{"id": 7, "name": "y"}', "{}"])
def test_a_damaged_owner_is_named_and_not_replaced(text: str) -> None:
    owner.this()
    file = Cluster("x").folder.parent / ".owner" / "owner.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"owner\.json is not what hvdctl wrote"):
        owner.this()
    assert file.read_text() == text


def test_the_words_are_such_that_every_site_takes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "my {{ clusters }}, \u00fc" / ("x" * 200)))
    assert re.fullmatch(r"[A-Za-z0-9+=._:/@-]{1,200}", owner.this().name)


def test_what_others_write_into_labels_reaches_no_terminal_and_no_path(site: FakeEngine) -> None:
    stand(site, "node0", labels={"hvdctl.owner": "../../x", "hvdctl.owner-name": "ada\x1b[2J\n@lab" + "x" * 500})
    (found,) = local.claims("demo")
    assert found.owner.startswith("ada__2J_@labxxx")
    assert len(found.owner) < 250 and found.owner.isprintable()
    assert not owner.mine("local", "demo", found.mark)
    owner.take("local", "demo", found.mark)
    assert owner.mine("local", "demo", found.mark)
    assert len(list((Cluster("x").folder.parent / ".owner" / "taken").iterdir())) == 1


# One name in two homes.


@real
def test_everything_carries_the_mark(site: FakeEngine) -> None:
    pipeline.up(Spec(name="demo", nodes=2, net=10**8, image=IMAGE), Silent())
    things = [*site.containers.values(), *site.networks.values(), *site.volumes.values()]
    assert len(things) == 4
    for thing in things:
        assert owner.this().labels.items() <= thing["Labels"].items(), thing["Name"]


@real
def test_data_that_was_kept_is_not_taken_by_another_home(site: FakeEngine, home: Home, hvdctl: Hvdctl) -> None:
    """A keeps its data, B brings up a cluster of the same name, and takes it down."""
    with home("a"):
        pipeline.up(SPEC, Silent())
        assert pipeline.down("demo", Silent(), keep_data=True).kept == ["volume hvdctl-demo-share"]
        whose = owner.this()
    with home("b"):
        with pytest.raises(UsageError, match=r"cluster 'demo' is somebody else's: volume .* belongs to") as refused:
            pipeline.up(SPEC, Silent())
        assert whose.name in refused.value.message
        for force in (False, True):
            with pytest.raises(UsageError, match=re.escape(whose.name)):
                pipeline.down("demo", Silent(), force=force)
            assert not Cluster("demo").folder.exists()
        listed = hvdctl("list")
        assert f"demo on local belongs to {whose.name}" in listed.err
        assert "somebody else's" in listed.out
    assert site.names("volumes") == ["hvdctl-demo-share"]
    with home("a"):
        listed = hvdctl("list")
        assert "kept data" in listed.out
        assert "`hvdctl up --name demo` uses it again" in listed.err
        pipeline.up(SPEC, Silent())
        assert stands(site) == ALL
        assert pipeline.down("demo", Silent()).left == []
    assert stands(site) == ([], [], [])


@real
@pytest.mark.parametrize("failed", ["POST /networks/create", "POST /containers/create"])
def test_a_retry_removes_nothing_that_another_home_has_built_since(site: FakeEngine, home: Home, failed: str) -> None:
    """B's first `up` fails half-way, A builds a cluster of the same name, B tries again and gives up."""
    site.refuses[failed] = "the engine is in trouble"
    with home("b"), pytest.raises(PhaseError, match="the engine is in trouble"):
        pipeline.up(SPEC, Silent())
    site.refuses.clear()
    if site.networks or site.volumes:
        # What B has made so far is B's: A is told.
        with home("a"), pytest.raises(UsageError, match="is somebody else's"):
            pipeline.up(SPEC, Silent())
        site.networks.clear()
        site.volumes.clear()
    with home("a"):
        pipeline.up(SPEC, Silent())
    built = site.container("hvdctl-demo-node0")["Id"]
    with home("b"):
        with pytest.raises(UsageError, match="is somebody else's"):
            pipeline.up(SPEC, Silent())
        with pytest.raises(UsageError, match="is somebody else's"):
            pipeline.plan(SPEC, Silent())
        assert pipeline.down("demo", Silent()).left == []
        assert not Cluster("demo").exists, "its own record is gone all the same"
        assert overview.clusters([])[0]["state"] == "somebody else's"
    assert stands(site) == ALL
    assert site.container("hvdctl-demo-node0")["Id"] == built
    with home("a"):
        assert overview.status("demo")["state"] == "up"


@real
def test_terraform_itself_touches_nothing_of_another_owner(site: FakeEngine, home: Home) -> None:
    """A volume's id is its name: B's state still has one that is A's by now."""
    with home("b"):
        pipeline.up(SPEC, Silent())
    site.volumes["hvdctl-demo-share"]["Labels"] |= ADA
    with home("b"):
        assert pipeline.down("demo", Silent()).left == []
    assert stands(site) == ([], [], ["hvdctl-demo-share"])


def test_the_resources_name_the_owner_of_what_is_in_their_way(engine: FakeEngine) -> None:
    share = {"cluster": "demo", "name": "share", "labels": owner.this().labels, "id": None}
    engine_module.client().volumes.create("hvdctl-demo-share", labels={"hvdctl.cluster": "demo", **ADA})
    volume = Caller(HvdVolume(HvdProvider()))
    assert volume.create(share) is None
    assert "belongs to ada@lab:/home/ada/clusters (owner 0123456789abcdef); choose another --name" in volume.errors[0]


def test_down_force_without_a_record_removes_what_is_ours_alone(site: FakeEngine, hvdctl: Hvdctl) -> None:
    stand(site, "node0")
    stand(site, "node1", labels=ADA)
    assert hvdctl("down", "--name", "demo", "--force", "-y").code == 0
    assert site.names("containers") == ["hvdctl-demo-node1"]


def test_what_a_home_made_that_is_gone_is_removed_by_its_id(site: FakeEngine, hvdctl: Hvdctl) -> None:
    stand(site, "node0", labels=ADA)
    refused = hvdctl("down", "--name", "demo", "--force", "-y")
    assert refused.code == 2
    assert "belongs to ada@lab:/home/ada/clusters" in refused.err
    assert "`hvdctl down --name demo --force --owner 0123456789abcdef`" in refused.err
    assert "--owner needs --force" in hvdctl("down", "--name", "demo", "--owner", "0123456789abcdef", "-y").err
    assert hvdctl("down", "--name", "demo", "--force", "--owner", "f" * 16, "-y").code == 2
    assert site.names("containers") == ["hvdctl-demo-node0"]
    assert hvdctl("down", "--name", "demo", "--force", "--owner", ADA["hvdctl.owner"], "-y").code == 0
    assert site.names("containers") == []
    stand(site, "node0", labels=ADA)
    assert hvdctl("down", "--name", "demo", "--force", "-y").code == 2, "it held for that once"


# What older versions made.


@real
def test_a_cluster_of_an_older_version_is_asked_about_once_and_marked_as_it_changes(
    site: FakeEngine, asked: list[str]
) -> None:
    pipeline.up(SPEC, Silent())
    old(site)
    state = Cluster("demo").terraform / "terraform.tfstate"
    before = json.loads(state.read_text())
    for resource in before["resources"]:
        for instance in resource["instances"]:
            instance["attributes"]["labels"] = {}
    state.write_text(json.dumps(before))
    nodes = site.container("hvdctl-demo-node0")["Id"]
    assert overview.status("demo")["state"] == "up", "it is not lost because of the upgrade"
    assert [row["state"] for row in overview.clusters([])] == ["up"]
    with pytest.raises(
        UsageError, match=r"made container hvdctl-demo-node0 and 2 more of cluster 'demo', without an owner mark"
    ):
        pipeline.up(SPEC, Silent())
    report = pipeline.up(SPEC, Silent(), asked.append)
    assert len(asked) == 1
    assert site.container("hvdctl-demo-node0")["Id"] == nodes, "no node is recreated"
    assert list(report.changes) == ["changed"]
    grown = pipeline.up(SPEC.model_copy(update={"nodes": 2}), Silent())
    assert len(asked) == 1
    assert list(grown.changes) == ["made"]
    assert site.container("hvdctl-demo-node1")["Labels"]["hvdctl.owner"] == owner.this().id
    # The answer holds for the data that is kept, too.
    assert pipeline.down("demo", Silent(), keep_data=True).kept == ["volume hvdctl-demo-share"]
    pipeline.up(SPEC, Silent())
    assert pipeline.down("demo", Silent()).left == []
    assert stands(site) == ([], [], [])
    stand(site, "node0", labels={})
    assert overview.clusters([])[0]["state"] == "unmarked", "when all is gone the answer holds no longer"


@real
def test_down_asks_before_it_removes_what_has_no_mark(site: FakeEngine, hvdctl: Hvdctl) -> None:
    pipeline.up(SPEC, Silent())
    old(site)
    with pytest.raises(UsageError, match="without an owner mark"):
        pipeline.down("demo", Silent())
    assert stands(site) == ALL
    assert "0 left" in hvdctl("down", "--name", "demo", "-y").out
    assert stands(site) == ([], [], [])


@real
def test_kept_data_without_a_mark_is_asked_about(site: FakeEngine, asked: list[str]) -> None:
    pipeline.up(SPEC, Silent())
    pipeline.down("demo", Silent(), keep_data=True)
    old(site)
    with pytest.raises(UsageError, match="made volume hvdctl-demo-share of cluster 'demo', without an owner mark"):
        pipeline.up(SPEC, Silent())
    assert stands(site) == ([], [], ["hvdctl-demo-share"])
    pipeline.up(SPEC, Silent(), asked.append)
    assert (len(asked), stands(site)) == (1, ALL)


def test_what_runs_without_a_mark_is_not_taken_by_a_home_that_has_no_record_of_it(
    site: FakeEngine, asked: list[str], hvdctl: Hvdctl
) -> None:
    """B's first `up` of an older version failed, A of an older version runs: not even -y gives it to B."""
    Cluster("demo").store_spec(SPEC)
    stand(site, "node0", labels={})
    for act in (
        lambda: pipeline.up(SPEC, Silent(), asked.append),
        lambda: pipeline.down("demo", Silent(), asked.append),
    ):
        with pytest.raises(UsageError, match="runs already, and this home does not know it") as refused:
            act()
        assert "hvdctl down --name demo --force" in refused.value.hint
    assert asked == []
    assert site.names("containers") == ["hvdctl-demo-node0"]
    assert hvdctl("down", "--name", "demo", "--force").code == 2
    assert hvdctl("down", "--name", "demo", "--force", "-y").code == 0
    assert site.names("containers") == []


def test_a_guard_says_who_it_is_about(site: FakeEngine) -> None:
    stand(site, "node0", labels=ADA)
    with pytest.raises(UsageError) as refused:
        guards.name(Cluster("demo"), SPEC)
    assert refused.value.message == (
        "cluster 'demo' is somebody else's: container hvdctl-demo-node0 belongs to "
        "ada@lab:/home/ada/clusters (owner 0123456789abcdef)"
    )
    assert refused.value.hint.startswith("choose another --name; if that home is yours, set HVDCTL_HOME to it")
