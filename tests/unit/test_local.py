"""The site `local`: what it finds by label, refuses and removes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_engine import FakeEngine
from hvdctl import engine as engine_module
from hvdctl import neighbours, owner
from hvdctl.errors import HvdctlError, ToolMissing, UsageError
from hvdctl.progress import Silent
from hvdctl.sites import local
from hvdctl.spec import Spec
from support import IMAGE, Hvdctl, stand


@pytest.fixture
def half_made(engine: FakeEngine) -> FakeEngine:
    """What a killed `up` may leave of `demo`, beside another cluster and things of other programs."""
    client = engine_module.client()
    for cluster, label in (("demo", "hvdctl.cluster"), ("other", "hvdctl.cluster"), ("x", "unrelated")):
        labels = {label: cluster, "hvdctl.name": "node0", **owner.this().labels}
        client.networks.create(f"hvdctl-{cluster}-net", labels=labels)
        client.volumes.create(f"hvdctl-{cluster}-share", labels=labels)
        client.containers.create(IMAGE, name=f"hvdctl-{cluster}-node0", labels=labels)
    # A helper of hvdctl's own that has no name in the cluster.
    client.containers.create(IMAGE, name="helper", labels={"hvdctl.cluster": "demo", **owner.this().labels})
    return engine


def test_everything_with_the_label_is_found(half_made: FakeEngine) -> None:
    assert sorted(local.leftovers("demo")) == [
        "container helper",
        "container hvdctl-demo-node0",
        "network hvdctl-demo-net",
        "volume hvdctl-demo-share",
    ]
    assert local.leftovers("dem") == []
    assert local.clusters() == ["demo", "other"]
    assert local.observe("demo") == {"node0": "created"}


@pytest.mark.parametrize("keep_data", [True, False])
def test_sweep_removes_this_cluster_and_nothing_else(half_made: FakeEngine, keep_data: bool) -> None:
    local.sweep("demo", keep_data=keep_data, step=Silent())
    assert local.leftovers("demo") == (["volume hvdctl-demo-share"] if keep_data else [])
    assert len(local.leftovers("other")) == 3
    assert "hvdctl-x-node0" in half_made.names("containers")


def test_what_somebody_else_or_an_older_version_made_is_named_and_left_alone(engine: FakeEngine) -> None:
    client = engine_module.client()
    theirs = {"hvdctl.owner": "0123456789abcdef", "hvdctl.owner-name": "ada@lab:/home/ada/clusters"}
    for name, labels in (("node0", theirs), ("node1", {}), ("node2", owner.this().labels)):
        labels = {"hvdctl.cluster": "demo", "hvdctl.name": name, **labels}
        client.containers.create(IMAGE, name=f"hvdctl-demo-{name}", labels=labels)
    assert [(claim.thing, claim.owner.split(" (")[0]) for claim in local.claims("demo")] == [
        ("container hvdctl-demo-node0", "ada@lab:/home/ada/clusters"),
        ("container hvdctl-demo-node1", ""),
        ("container hvdctl-demo-node2", owner.this().name),
    ]
    assert local.leftovers("demo") == ["container hvdctl-demo-node2"]
    assert local.observe("demo") == {"node2": "created"}
    local.sweep("demo", keep_data=False, step=Silent())
    assert engine.names("containers") == ["hvdctl-demo-node0", "hvdctl-demo-node1"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "no available IPv4 addresses on this network's address pools: hvdctl-demo-net (9f86d081)",
            "the network hvdctl-demo-net has no address left for another node: use fewer --nodes; or give the engine",
        ),
        (
            "could not find an available, non-overlapping IPv4 address pool among the default address pools",
            "the engine has no free network left; `docker network prune` removes unused ones",
        ),
    ],
)
def test_a_full_network_is_not_taken_for_too_many_networks(said: str, told: str) -> None:
    assert told in local.explain(RuntimeError(said))


def test_preflight_takes_what_the_machine_has(engine: FakeEngine, tmp_path: Path) -> None:
    local.preflight(Spec(image=IMAGE, gpus=0, share="auto"))
    local.preflight(Spec(image=IMAGE, gpus=0, share=str(tmp_path)))
    engine.runtimes["nvidia"] = {}
    local.preflight(Spec(image=IMAGE, gpus=2, share="auto"))


def test_preflight_refuses_what_it_has_not(engine: FakeEngine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the engine has no image 'no/such:1'"):
        local.preflight(Spec(image="no/such:1", gpus=0, share="auto"))
    with pytest.raises(UsageError, match="gpus: 2 asked, but the engine has no NVIDIA runtime"):
        local.preflight(Spec(image=IMAGE, gpus=2, share="auto"))
    with pytest.raises(UsageError, match="share: there is no folder"):
        local.preflight(Spec(image=IMAGE, gpus=0, share=str(tmp_path / "gone")))


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the limit of a kernel, as it is without any setting."""
    file = tmp_path / "gc_thresh3"
    file.write_text("1024\n")
    monkeypatch.setattr(neighbours, "LIMIT", file)
    return file


def test_more_nodes_than_the_kernel_has_neighbours_for_are_refused_before_anything(
    engine: FakeEngine, limit: Path, hvdctl: Hvdctl
) -> None:
    local.preflight(Spec(image=IMAGE, nodes=32))
    with pytest.raises(UsageError) as refused:
        local.preflight(Spec(image=IMAGE, nodes=33))
    assert "33 nodes need 1089 entries of the neighbour table, this kernel takes 1024" in refused.value.message
    key = "net.ipv4.neigh.default.gc_thresh"
    assert f"`sudo sysctl -w {key}2=2048 {key}3=4096`" in refused.value.hint
    engine.calls.clear()
    told = hvdctl("up", "--name", "demo", "--image", IMAGE, "--nodes", "100")
    assert (told.code, "100 nodes need 10000 entries" in told.err) == (2, True)
    assert f"{key}2=16384 {key}3=32768" in told.err
    assert not [call for call in engine.calls if call.startswith("POST")]
    limit.write_text("32768")
    local.preflight(Spec(image=IMAGE, nodes=100))


@pytest.mark.parametrize("text", [None, "", "many"])
def test_a_kernel_that_does_not_say_refuses_no_nodes(engine: FakeEngine, limit: Path, text: str | None) -> None:
    if text is None:
        limit.unlink()
    else:
        limit.write_text(text)
    local.preflight(Spec(image=IMAGE, nodes=500))


@pytest.mark.parametrize("host", ["tcp://10.0.0.1:2375", "ssh://me@lab"])
def test_the_kernel_of_a_remote_engine_is_not_this_one(limit: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert neighbours.room(500)
    monkeypatch.setenv("DOCKER_HOST", host)
    assert neighbours.room(500) is None
    neighbours.require(500)


def test_one_node_is_asked_about_without_a_look_at_the_others(engine: FakeEngine) -> None:
    stand(engine, "node0", "node1", "node2")
    engine.calls.clear()
    assert local.observe("demo", ["node1"]) == {"node1": "running"}
    (inspected,) = [call for call in engine.calls if call.endswith("/json") and call != "GET /containers/json"]
    assert engine.container("hvdctl-demo-node1")["Id"] in inspected
    assert local.observe("demo", ["node0", "node2", "node9"]) == {"node0": "running", "node2": "running"}
    assert local.observe("demo", []) == {}


def test_without_an_engine_each_question_says_so() -> None:
    for ask in (local.observe, local.leftovers, lambda _: local.clusters()):
        with pytest.raises(ToolMissing, match="no Docker engine answers at unix://"):
            ask("demo")


def test_what_the_engine_refuses_is_told_in_its_words(half_made: FakeEngine) -> None:
    half_made.refuses["DELETE /networks"] = "network hvdctl-demo-net has active endpoints"
    told: list[str] = []
    step = Silent()
    step.note = told.append  # type: ignore[method-assign, assignment]
    local.sweep("demo", keep_data=False, step=step)
    assert told[:1] == ["network hvdctl-demo-net: the Docker engine says: network hvdctl-demo-net has active endpoints"]
    assert local.leftovers("demo") == ["network hvdctl-demo-net"], "the others went"
    half_made.refuses["GET /images"] = "invalid reference format"
    with pytest.raises(HvdctlError, match="the Docker engine says: invalid reference format"):
        local.preflight(Spec(image="BAD_IMAGE", gpus=0, share="auto"))
