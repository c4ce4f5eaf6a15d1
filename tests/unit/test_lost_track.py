"""Running nodes of which Terraform has no state, or whose keys are lost, are recreated only if the user agrees."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import configure, guards, pipeline, ssh
from hvdctl.cluster import Cluster
from hvdctl.sites import vm
from hvdctl.terraform import Outcome
from support import IMAGE, RECORD, Hvdctl, answer

real = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")


@pytest.fixture
def up(hvdctl: Hvdctl, engine: FakeEngine, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`up` of the cluster `demo`, which stands with two nodes and a run."""

    def play(cluster: Cluster, playbook: str, variables: dict[str, Any], on_event: Any) -> int:
        return 0

    monkeypatch.setattr(configure, "play", play)
    monkeypatch.setattr(ssh, "wait", lambda cluster, nodes, seconds=60: None)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    answer(
        fake_nodes, "list", [{**RECORD, "id": 7, "state": "running", "exit_code": None, "command": "python train.py"}]
    )

    def call(*words: str) -> Any:
        return hvdctl("up", "--name", "demo", *words)

    made = call("--nodes", "2", "--image", IMAGE)
    assert made.code == 0, made.err
    return call


def ids(engine: FakeEngine) -> dict[str, str]:
    return {name: engine.container(name)["Id"] for name in engine.names("containers")}


@real
@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_nodes_that_terraform_has_no_state_of_stay_unless_the_user_agrees(
    up: Callable[..., Any], hvdctl: Hvdctl, engine: FakeEngine, lost: str
) -> None:
    before, state = ids(engine), Cluster("demo").terraform / "terraform.tfstate"
    state.unlink() if lost == "gone" else state.write_text("")
    refused = up("--nodes", "3")
    assert refused.code == 2, refused.err
    assert "Recreate node0, node1 of 'demo', as Terraform's state is gone (put " in refused.err
    assert "This ends run 7 (python train.py)." in refused.err
    assert ids(engine) == before
    assert json.loads(hvdctl("plan", "--name", "demo", "--json").out)["recreated"] == ["node0", "node1"]
    assert up("-y").code == 0
    assert not set(ids(engine).values()) & set(before.values())
    assert up().code == 0, "nothing is left to ask"


@real
def test_nothing_is_asked_if_the_nodes_are_gone_as_well(up: Callable[..., Any], engine: FakeEngine) -> None:
    (Cluster("demo").terraform / "terraform.tfstate").unlink()
    engine.containers.clear()
    again = up()
    assert again.code == 0, again.err
    assert len(ids(engine)) == 2


@real
@pytest.mark.parametrize("lost", ["id_ed25519", "host_keys/node1"])
def test_nodes_outlive_the_loss_of_a_key_unless_the_user_agrees(
    up: Callable[..., Any], engine: FakeEngine, lost: str
) -> None:
    before, kept = ids(engine), {}
    for file in (Cluster("demo").ssh / lost, Cluster("demo").ssh / f"{lost}.pub"):
        kept[file] = file.read_bytes()
        file.unlink()
    refused = up()
    assert refused.code == 2, refused.err
    assert ("as the cluster's SSH key was lost (put " in refused.err) == (lost == "id_ed25519")
    assert f"Recreate {'node0, node1' if lost == 'id_ed25519' else 'node1'} of 'demo'" in refused.err
    assert "This ends run 7" in refused.err
    assert ids(engine) == before
    assert up().code == 2, "the key that was made meanwhile is no answer"
    for file, content in kept.items():
        file.write_bytes(content)
    again = up()
    assert (again.code, ids(engine)) == (0, before), again.err


@real
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_keys_of_nodes_that_come_and_go_need_no_plan(up: Callable[..., Any], nodes: int) -> None:
    cluster = Cluster("demo")
    spec = cluster.spec().model_copy(update={"nodes": nodes})
    terraform = pipeline._terraform(cluster, spec)
    assert not guards.needs_plan(cluster, spec, terraform, pipeline._variables(cluster, spec, IMAGE))


def test_virtual_machines_that_terraform_has_no_state_of_are_asked_about(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = cluster.spec().model_copy(update={"provider": "vm"})
    cluster.complete("containers", 0, **guards.containers(IMAGE))
    planned = Outcome({"create": ["hvd_switch.cluster", *(f"hvd_virtual_machine.node[{i}]" for i in range(3))]})
    monkeypatch.setattr(vm, "observe", lambda cluster: {"node0": "running", "node2": "running"})
    assert guards.recreated(cluster, spec, planned, IMAGE) == ["node0"], "node1 has ended, node2 was never finished"
    static = spec.model_copy(update={"provider": "static"})
    assert guards.recreated(cluster, static, planned, IMAGE) == [], "Terraform makes nothing of them"
