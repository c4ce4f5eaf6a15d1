"""What is refused, or asked about, before a cluster is changed."""

from __future__ import annotations

from typing import Any

import pytest
from hvdctl import configure, guards, overview, pipeline, providers
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Silent
from hvdctl.spec import Spec
from hvdctl.terraform import Outcome, Terraform
from support import IMAGE


@pytest.fixture
def known(cluster: Cluster) -> Cluster:
    cluster.store_spec(Spec(name="demo", provider="vm", nodes=2, net=10**9, options={"delay": "2ms"}))
    cluster.complete("share", 0)
    return cluster


@pytest.fixture(autouse=True)
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node is asked for its runs; test_upgrade.py has what is asked with runs."""
    monkeypatch.setattr(guards, "ending", lambda cluster: "")


def terraform(cluster: Cluster) -> Terraform:
    return Terraform(cluster.terraform, "vm", cluster.log("terraform"))


class Asked(list[str]):
    def __call__(self, question: str) -> None:
        self.append(question)


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({"replace": ["hvd_virtual_machine.node[0]", "hvd_virtual_machine.node[1]"]}, True),
        ({"delete": ["aws_instance.node[0]"]}, True),
        ({"replace": ["hvd_virtual_machine.node[1]"]}, False),
        ({"create": ["hvd_virtual_machine.node[0]"]}, False),
        ({"replace": ["hvd_virtual_machine.node[10]"], "update": ["hvd_virtual_machine.node[0]"]}, False),
        ({}, False),
    ],
)
def test_the_user_is_asked_before_the_head_goes_with_the_share(
    known: Cluster, changes: dict[str, list[str]], asks: bool
) -> None:
    asked = Asked()
    guards.head(known, Outcome(changes=changes), asked)
    assert bool(asked) == asks
    if asks:
        assert asked[0].startswith("Make node0 of 'demo' anew, with the loss of all data on its share")
        with pytest.raises(UsageError, match="Nobody can be asked here"):
            guards.head(known, Outcome(changes=changes), guards.refuse)


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({"replace": ["hvd_gpulab_job.node[0]", "hvd_gpulab_job.node[1]"]}, "Cancel 2 jobs of 'demo'"),
        ({"replace": ["hvd_gpulab_job.node[1]"], "create": ["hvd_gpulab_job.node[2]"]}, "Cancel a job of 'demo'"),
        ({"create": ["hvd_gpulab_job.node[1]"], "delete": ["hvd_gpulab_job.node[3]"]}, ""),
        ({}, ""),
    ],
)
def test_the_user_is_asked_before_jobs_that_run_queue_again(
    cluster: Cluster, changes: dict[str, list[str]], asks: str
) -> None:
    spec = cluster.spec().model_copy(update={"provider": "gpulab"})
    wanted = {"image": IMAGE, "gpus": 0, "share": "auto", "options": {}}
    assert guards.needs_plan(cluster, spec, terraform(cluster), wanted)
    assert not guards.needs_plan(Cluster("new"), spec, terraform(cluster), wanted)
    asked = Asked()
    guards.agreed(cluster, spec, Outcome(changes=changes), IMAGE, asked)
    assert [question[: len(asks)] for question in asked] == ([asks] if asks else [])


def test_up_asks_nothing_of_terraform_where_no_share_can_be_lost(known: Cluster) -> None:
    spec = known.spec()
    assert guards.share_on_head(known, spec)
    assert not guards.share_on_head(known, spec.model_copy(update={"share": "/lab"}))
    assert not guards.share_on_head(known, spec.model_copy(update={"provider": "local"}))
    assert not guards.share_on_head(known, spec.model_copy(update={"provider": "static"}))
    known.forget("share")
    assert not guards.share_on_head(known, spec)


def test_a_refused_question_changes_nothing(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl.sites import vm

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was changed")

    monkeypatch.setattr(vm, "preflight", lambda spec: None)
    monkeypatch.setattr(
        Terraform, "plan", lambda self, variables: Outcome({"replace": ["hvd_virtual_machine.node[0]"]})
    )
    monkeypatch.setattr(Terraform, "apply", never)
    before = known.spec()
    with pytest.raises(UsageError, match="Make node0 of 'demo' anew"):
        pipeline.up(before.model_copy(update={"memory": 4 * 2**30}), Silent())
    assert known.spec() == before


@pytest.mark.parametrize("left", ["nodes", "state", "thing"])
def test_a_cluster_does_not_move_while_anything_of_it_stands(
    known: Cluster, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    from hvdctl.sites import vm

    monkeypatch.setattr(vm, "leftovers", lambda cluster: ["disk hvdctl-demo-node0"] if left == "thing" else [])
    if left != "nodes":
        known.store_nodes([])
    if left == "state":
        known.terraform.mkdir()
        (known.terraform / "terraform.tfstate").write_text('{"resources": [{"type": "hvd_switch"}]}')
    with pytest.raises(UsageError, match="cluster 'demo' stands on 'vm' and can't move to 'local'"):
        guards.move(known, Spec(name="demo"), terraform(known))


def test_a_cluster_of_which_nothing_was_made_may_move(known: Cluster) -> None:
    known.store_nodes([])
    guards.move(known, Spec(name="demo"), terraform(known))


def test_data_on_machines_that_go_can_not_be_kept(known: Cluster) -> None:
    with pytest.raises(UsageError, match="--keep-data: the share of 'demo' is on the disk of its head"):
        guards.keep(known, True)
    known.store_spec(Spec(name="demo", provider="static", options={"hosts": [{"address": "h0"}, {"address": "h1"}]}))
    guards.keep(known, True)


def test_links_of_machines_are_shaped_by_ansible_and_the_next_up_mends_a_killed_bench(
    known: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        configure, "play", lambda _cluster, playbook, variables, _told: done.append((playbook, variables))
    )
    pipeline.relink(known, 10**8, Silent())
    assert done == [("net.yml", {"net_rate": 10**8, "net_delay": "2ms"})]
    assert known.record("relink")["rate"] == 10**8
    pipeline.relink(known, 10**9, Silent())
    assert known.record("relink") == {}


def test_a_site_that_can_not_be_asked_keeps_nobody_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl.sites import aws, local, vm

    def refuse() -> list[str]:
        raise HvdctlError("AWS does not take the credentials")

    monkeypatch.setattr(local, "clusters", lambda: ["a"])
    monkeypatch.setattr(vm, "clusters", lambda: ["b"])
    monkeypatch.setattr(aws, "clusters", refuse)
    unasked: list[str] = []
    found = {provider.name: names for provider, names in overview.on_sites(unasked)}
    assert found["local"] == ["a"]
    assert found["vm"] == ["b"]
    assert "aws" not in found
    assert set(found) | {"aws"} == set(providers.REGISTRY)
    assert unasked == ["aws can't be asked: AWS does not take the credentials"]
