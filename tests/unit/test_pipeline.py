"""The whole line: real Terraform, provider and files; a small engine. test_configure.py has the playbooks."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_engine import FakeEngine
from hvdctl import configure, overview, pipeline, ssh
from hvdctl.cluster import Cluster
from hvdctl.errors import PhaseError, UsageError
from hvdctl.progress import Silent
from hvdctl.spec import Spec
from support import IMAGE, Hvdctl, stand

real = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")


@pytest.fixture
def site(engine: FakeEngine, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Nodes that are well as soon as the engine has made them; `unfit` names those that can't be configured."""
    monkeypatch.setattr(ssh, "wait", lambda cluster, nodes, seconds=60: None)

    def play(cluster: Cluster, playbook: str, variables: dict[str, Any], on_event: Any) -> int:
        hosts = yaml.safe_load(cluster.inventory.read_text())["all"]["hosts"]
        with (fake_nodes / "plays").open("a") as plays:
            plays.write(f"{playbook} {' '.join(hosts)}\n")
        if (fake_nodes / "unfit").exists():
            raise PhaseError(f"configuration failed: {(fake_nodes / 'unfit').read_text()} failed")
        assert json.loads(zlib.decompress(base64.b64decode(variables["node_bundle"])))["files"]
        return len(hosts)

    monkeypatch.setattr(configure, "play", play)
    (fake_nodes / "list.json").write_text("[]")
    return engine


def spec(**keys: Any) -> Spec:
    return Spec(name="demo", image=IMAGE, **keys)


def ids(engine: FakeEngine) -> dict[str, str]:
    return {name: engine.container(name)["Id"] for name in engine.names("containers")}


@real
def test_up_again_heal_scale_and_down(hvdctl: Hvdctl, site: FakeEngine, fake_nodes: Path) -> None:
    words = ["up", "--name", "demo", "--image", IMAGE, "--nodes", "2", "--net", "1g"]
    made = hvdctl(*words, "--json")
    assert made.code == 0, made.err
    report = json.loads(made.out)
    assert [node["name"] for node in report["nodes"]] == ["node0", "node1"]
    assert report["link"]["bits"] == 957e6
    assert (fake_nodes / "plays").read_text() == "up.yml node0 node1\n"
    first = ids(site)

    # Nothing to do: nothing is touched, nothing is configured or measured again.
    (fake_nodes / "ssh.log").unlink()
    (fake_nodes / "plays").unlink()
    again = hvdctl(*words)
    assert "2 nodes, 2 slots (no change)" in again.out
    assert not (fake_nodes / "ssh.log").exists()
    assert not (fake_nodes / "plays").exists()
    assert ids(site) == first
    assert json.loads(hvdctl("status", "--name", "demo", "--json").out)["state"] == "up"

    # A node killed behind its back is lost, then made anew alone.
    site.container("hvdctl-demo-node1")["State"]["Status"] = "exited"
    lost = hvdctl("status", "--name", "demo")
    assert (lost.code, "lost: node1" in lost.err) == (1, True)
    assert hvdctl("up", "--name", "demo").code == 0
    healed = ids(site)
    assert [name for name in first if healed[name] != first[name]] == ["hvdctl-demo-node1"]

    # The spec is remembered: scale changes the number alone.
    assert hvdctl("scale", "--name", "demo", "--nodes", "3", "-y").code == 0
    assert len(ids(site)) == 3
    assert {name: ids(site)[name] for name in healed} == healed
    assert Cluster("demo").spec().net == 10**9
    assert (fake_nodes / "plays").read_text() == "up.yml node0 node1\nup.yml node0 node1 node2\n"
    assert "demo" in hvdctl("list").out

    # The share is kept where that is asked.
    kept = hvdctl("down", "--name", "demo", "-y", "--keep-data")
    assert "is down: 0 left; kept: volume hvdctl-demo-share" in kept.out
    assert (site.names("containers"), site.names("networks")) == ([], [])
    assert site.names("volumes") == ["hvdctl-demo-share"]
    assert not Cluster("demo").folder.exists()


@real
def test_a_plan_changes_nothing_and_leaves_nothing(hvdctl: Hvdctl, engine: FakeEngine) -> None:
    result = hvdctl("plan", "--name", "demo", "--image", IMAGE, "--nodes", "2")
    assert result.code == 0, result.err
    assert "+ hvd_container_node.node[1]  (create)" in result.out
    assert "4 to create" in result.out
    assert (engine.containers, engine.networks, engine.volumes) == ({}, {}, {})
    assert not Cluster("demo").folder.exists()


def test_a_refusal_leaves_no_folder(hvdctl: Hvdctl, engine: FakeEngine) -> None:
    for verb in ("plan", "up"):
        refused = hvdctl(verb, "--name", "demo", "--image", "no/such:1")
        assert (refused.code, "the engine has no image" in refused.err) == (2, True)
        assert not Cluster("demo").folder.exists()


def test_the_log_of_a_failed_plan_stays(hvdctl: Hvdctl, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl.sites import local
    from hvdctl.terraform import Terraform

    def fail(self: Terraform, variables: Any) -> Any:
        self.log.write_text("the whole story")
        raise PhaseError("terraform plan failed: no", log=self.log)

    monkeypatch.setattr(Terraform, "plan", fail)
    monkeypatch.setattr(local, "hint", lambda message: "try another")
    failed = hvdctl("plan", "--name", "demo", "--image", IMAGE)
    assert "→ try another" in failed.err
    (log,) = [line.split("log: ")[1] for line in failed.err.splitlines() if "log: " in line]
    assert Path(log).read_text() == "the whole story"
    assert not Cluster("demo").folder.exists()


@real
def test_a_plan_is_no_part_of_what_stands(hvdctl: Hvdctl, site: FakeEngine) -> None:
    """A bench re-shapes links with what was last asked for, never with what was only planned."""
    pipeline.up(spec(nodes=1), Silent())
    assert "1 to create" in hvdctl("plan", "--name", "demo", "--nodes", "2").out
    pipeline.relink(Cluster("demo"), 10**8, Silent())
    assert site.names("containers") == ["hvdctl-demo-node0"]


@real
def test_links_get_another_rate_for_a_while_and_nothing_else_changes(site: FakeEngine) -> None:
    pipeline.up(spec(nodes=2, net="1g"), Silent())
    cluster, nodes, links = Cluster("demo"), ids(site), site.links()
    with cluster.locked("bench"):
        for net in (10**8, None):
            pipeline.relink(cluster, net, Silent())
            changed = site.links()
            assert (ids(site), set(changed)) == (nodes, set(links))
            assert all(changed[name] != links[name] for name in links)
    assert cluster.spec().net == 10**9
    assert pipeline.image(cluster)["reference"] == IMAGE
    report = pipeline.up(cluster.spec(), Silent())
    assert (ids(site), site.links()) == (nodes, links)
    assert list(report.changes) == ["changed"]


def test_links_of_a_cluster_without_its_variables_stay(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match=r"terraform\.tfvars\.json can't be read"):
        pipeline.relink(cluster, None, Silent())


@real
def test_links_of_nodes_that_another_version_made_stay(site: FakeEngine) -> None:
    """Another plugin may recreate nodes, which `up` asks about and a bench does not."""
    pipeline.up(spec(nodes=1, net="1g"), Silent())
    cluster, nodes, links = Cluster("demo"), ids(site), site.links()
    cluster.complete("provision", 1, module="another")
    with pytest.raises(UsageError, match="another version of hvdctl made the nodes of 'demo'") as refused:
        pipeline.relink(cluster, 10**8, Silent())
    assert refused.value.hint == "`hvdctl up --name demo` first"
    assert (ids(site), site.links()) == (nodes, links)
    pipeline.up(cluster.spec(), Silent())
    pipeline.relink(cluster, 10**8, Silent())


@real
def test_links_stay_after_an_up_that_did_not_complete(site: FakeEngine) -> None:
    """What was applied last as a whole has the old image: nodes that have the new one would be recreated."""
    pipeline.up(spec(nodes=1, net="1g"), Silent())
    cluster, nodes = Cluster("demo"), ids(site)
    asked = cluster.terraform / "terraform.tfvars.json"
    wanted = json.loads(asked.read_text())
    asked.write_text(json.dumps(wanted | {"image": "new"}))
    with pytest.raises(UsageError, match="the last `up` of 'demo' did not complete") as refused:
        pipeline.relink(cluster, 10**8, Silent())
    assert refused.value.hint == "`hvdctl up --name demo` first"
    assert ids(site) == nodes
    asked.write_text(json.dumps(wanted | {"rate": 10**7}))  # as a killed bench leaves it
    pipeline.relink(cluster, 10**8, Silent())


@real
def test_a_failed_configuration_is_gone_on_with(site: FakeEngine, fake_nodes: Path) -> None:
    (fake_nodes / "unfit").write_text("node1")
    with pytest.raises(PhaseError, match="node1 failed"):
        pipeline.up(spec(), Silent())
    assert overview.status("demo")["state"] == "half-made"
    first = ids(site)
    (fake_nodes / "unfit").unlink()
    report = pipeline.up(spec(), Silent())
    assert report.configured
    assert (report.changes, ids(site)) == ({}, first)
    assert overview.status("demo")["state"] == "up"


def test_a_half_made_cluster_is_cleared_from_its_label(cluster: Cluster, site: FakeEngine) -> None:
    """Containers that Terraform never heard of, as a kill leaves them."""
    stand(site, "node0", "node7")
    stand(site, "node0", cluster="other")
    removed = pipeline.down("demo", Silent())
    assert removed.left == []
    assert site.names("containers") == ["hvdctl-other-node0"]
    assert not cluster.exists


@pytest.mark.parametrize("name", ["spec.json", "nodes.json", "terraform/terraform.tfstate"])
def test_force_clears_a_cluster_whose_files_are_corrupt(cluster: Cluster, site: FakeEngine, name: str) -> None:
    stand(site, "node0", "node1")
    (cluster.folder / name).parent.mkdir(exist_ok=True)
    (cluster.folder / name).write_text("{")
    assert pipeline.down("demo", Silent(), force=True).left == []
    assert site.containers == {}
    assert not cluster.folder.exists()


def test_what_can_not_be_removed_is_named_and_the_cluster_stays_known(
    hvdctl: Hvdctl, cluster: Cluster, site: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hvdctl.sites import local

    stand(site, "node0")
    monkeypatch.setattr(local, "sweep", lambda cluster, *, keep_data, step: None)
    result = hvdctl("down", "--name", "demo", "-y")
    assert result.code == 1
    assert "still there: container hvdctl-demo-node0" in result.err
    assert cluster.exists


def test_runs_outlive_the_cluster(cluster: Cluster, site: FakeEngine) -> None:
    (cluster.runs / "1").mkdir(parents=True)
    (cluster.runs / "1" / "run.json").write_text("{}")
    pipeline.down("demo", Silent())
    assert (cluster.runs / "1" / "run.json").exists()
    assert not cluster.exists
    assert not cluster.ssh.exists(), "no key is left"


def test_down_removes_the_folder_that_an_up_left_which_was_killed_at_once(hvdctl: Hvdctl, engine: FakeEngine) -> None:
    """It had not even stored the spec."""
    folder = Cluster("demo").folder
    (folder / "logs").mkdir(parents=True)
    (folder / "lock").write_text("{}")
    told = hvdctl("down", "--name", "demo", "-y")
    assert (told.code, "is down: 0 left" in told.out) == (0, True), told.err
    assert not folder.exists()
    (folder / "runs" / "1").mkdir(parents=True)
    assert hvdctl("down", "--name", "demo", "-y").code == 2, "only results of an earlier cluster are kept"
    assert folder.exists()


def test_down_of_what_only_the_engine_knows_names_the_way(engine: FakeEngine) -> None:
    stand(engine, "node0", cluster="orphan")
    with pytest.raises(UsageError, match=r"no record of cluster 'orphan', but container .* of it is yours") as refused:
        pipeline.down("orphan", Silent())
    assert "hvdctl down --name orphan --force" in refused.value.hint
    row = {"cluster": "orphan", "state": "unknown here", "provider": "local", "owner": "yours"}
    assert row in overview.clusters([])
    with pytest.raises(UsageError, match="there is no cluster 'gone'"):
        pipeline.down("gone", Silent())


def test_a_list_is_not_stopped_by_one_corrupt_cluster(cluster: Cluster, engine: FakeEngine) -> None:
    Cluster("alpha").store_spec(Spec(name="alpha", nodes=4))
    (cluster.folder / "spec.json").write_text("{")
    rows = {row["cluster"]: row["state"] for row in overview.clusters([])}
    assert rows["alpha"] == "half-made"
    assert rows["demo"].startswith("unreadable: ")


def test_a_cluster_of_another_home_is_left_alone(
    site: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec(name="demo", nodes=1, image=IMAGE)
    pipeline.up(spec, Silent())
    stands = site.names("containers")
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "another"))
    with pytest.raises(UsageError, match="cluster 'demo' is somebody else's: container hvdctl-demo-node0 belongs to"):
        pipeline.up(spec, Silent())
    assert site.names("containers") == stands


def test_a_share_with_data_is_not_exchanged_for_a_folder(site: FakeEngine, tmp_path: Path) -> None:
    pipeline.up(Spec(name="demo", nodes=1, image=IMAGE), Silent())
    with pytest.raises(UsageError, match="would delete what is on the share"):
        pipeline.up(Spec(name="demo", nodes=1, image=IMAGE, share=str(tmp_path)), Silent())
    assert site.names("volumes") == ["hvdctl-demo-share"]
