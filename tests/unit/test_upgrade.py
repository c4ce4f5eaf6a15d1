"""After an upgrade of hvdctl: nodes are recreated only if the user agrees, and running jobs are named before."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import configure, guards, images, pipeline, ssh, terraform
from hvdctl.cluster import Cluster
from hvdctl.errors import PhaseError, UsageError
from hvdctl.progress import Progress
from hvdctl.spec import Spec
from hvdctl.terraform import Outcome
from support import RECORD, Hvdctl, answer

real = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")

OLD, NEW = "hvdctl/jupyter:pytorch-old", "hvdctl/jupyter:pytorch-new"
Upgrade = Callable[[], None]


@pytest.fixture
def upgrade(engine: FakeEngine, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """Makes the code at hand want another image for the nodes, as a new version does."""
    wanted = [OLD]
    engine.images.add(OLD)

    def build(
        framework: str, progress: Progress, *, cuda: str | None = None, jupyter: bool = True, rebuild: bool = False
    ) -> images.Built:
        engine.images.add(wanted[0])
        return images.Built(wanted[0], "id", 0.0, False)

    def play(cluster: Cluster, playbook: str, variables: dict[str, Any], on_event: Any) -> int:
        return 0

    def none(cluster: Cluster, nodes: Any, seconds: float = 60) -> None:
        pass

    monkeypatch.setattr(images, "reference", lambda framework, cuda=None, *, jupyter=True: wanted[0])
    monkeypatch.setattr(images, "build", build)
    monkeypatch.setattr(configure, "play", play)
    monkeypatch.setattr(ssh, "wait", none)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    runs(fake_nodes, "python train.py")

    def happen() -> None:
        wanted[0] = NEW

    return happen


def runs(nodes: Path, command: str = "") -> None:
    rows = [{**RECORD, "id": 6, "command": "old.py"}]
    rows += [{**RECORD, "id": 7, "state": "running", "exit_code": None, "command": command}] if command else []
    answer(nodes, "list", rows)


def ids(engine: FakeEngine) -> dict[str, str]:
    return {name: engine.container(name)["Id"] for name in engine.names("containers")}


def image_of(engine: FakeEngine, node: str) -> str:
    return str(engine.container(f"hvdctl-demo-{node}")["Config"]["Image"])


@real
@pytest.mark.parametrize("words", [["up"], ["scale", "--nodes", "3"]])
def test_nodes_and_their_jobs_outlive_an_upgrade_unless_the_user_agrees(
    hvdctl: Hvdctl, engine: FakeEngine, upgrade: Upgrade, words: list[str]
) -> None:
    assert hvdctl("up", "--name", "demo", "--nodes", "2").code == 0
    before = ids(engine)
    upgrade()
    refused = hvdctl(words[0], "--name", "demo", *words[1:])
    assert refused.code == 2, refused.err
    assert "Recreate node0, node1 of 'demo'" in refused.err
    assert "This ends run 7 (python train.py)." in refused.err
    assert "old.py" not in refused.err
    assert "-y" in refused.err and "--keep-image" in refused.err
    assert (ids(engine), Cluster("demo").spec().nodes) == (before, 2)

    kept = hvdctl(words[0], "--name", "demo", *words[1:], "--keep-image")
    assert kept.code == 0, kept.err
    assert {name: ids(engine)[name] for name in before} == before
    assert {image_of(engine, node.name) for node in Cluster("demo").nodes()} == {OLD}

    agreed = hvdctl(words[0], "--name", "demo", *words[1:], "-y")
    assert agreed.code == 0, agreed.err
    assert "This ends run 7 (python train.py). Yes: -y." in agreed.err
    assert not set(ids(engine).values()) & set(before.values())
    assert {image_of(engine, node.name) for node in Cluster("demo").nodes()} == {NEW}
    assert hvdctl("up", "--name", "demo").code == 0, "nothing is left to ask"


@real
def test_plan_shows_what_an_upgrade_recreates(hvdctl: Hvdctl, engine: FakeEngine, upgrade: Upgrade) -> None:
    hvdctl("up", "--name", "demo", "--nodes", "2")
    upgrade()
    told = hvdctl("plan", "--name", "demo")
    assert "would be recreated: node0, node1. This ends run 7 (python train.py)." in told.out
    document = json.loads(hvdctl("up", "--dry-run", "--name", "demo", "--json").out)
    assert document["recreated"] == ["node0", "node1"]
    assert "run 7" in document["ends"]
    kept = hvdctl("plan", "--name", "demo", "--keep-image")
    assert "nothing to do" in kept.out, kept.out


@real
def test_an_image_that_is_gone_can_not_be_kept(hvdctl: Hvdctl, engine: FakeEngine, upgrade: Upgrade) -> None:
    hvdctl("up", "--name", "demo", "--nodes", "2")
    before = ids(engine)
    upgrade()
    engine.images.discard(OLD)
    refused = hvdctl("scale", "--name", "demo", "--nodes", "3", "--keep-image")
    assert refused.code == 2, refused.err
    assert f"has no image '{OLD}' any more" in refused.err
    assert ids(engine) == before


def test_an_image_can_be_kept_only_by_nodes_that_have_one(hvdctl: Hvdctl, cluster: Cluster, engine: FakeEngine) -> None:
    refused = hvdctl("up", "--name", "new", "--keep-image", "--image", "test/node:1")
    assert (refused.code, "has no nodes whose image could stay" in refused.err) == (2, True)
    variables = cluster.terraform / "terraform.tfvars.json"
    variables.parent.mkdir()
    variables.write_text(json.dumps({"image": "test/node:1"}))
    refused = hvdctl("up", "--name", "demo", "--keep-image", "--framework", "tensorflow")
    assert (refused.code, "--keep-image conflicts with a new value of framework" in refused.err) == (2, True)


def test_a_new_module_or_plugin_is_planned_before_it_is_applied(cluster: Cluster) -> None:
    """Also without another image: it may recreate nodes as well."""
    spec = cluster.spec()
    made = pipeline._terraform(cluster, spec)
    wanted: dict[str, object] = {"image": spec.image, "gpus": 0, "share": "auto", "options": {}}
    cluster.terraform.mkdir()
    (cluster.terraform / "terraform.tfstate").write_text('{"resources": [{}]}')
    (cluster.terraform / "terraform.tfvars.json").write_text(json.dumps(wanted))
    cluster.complete("provision", 1, module=made.version())
    assert not guards.needs_plan(cluster, spec, made, wanted)
    assert guards.needs_plan(cluster, spec, made, {**wanted, "gpus": 1})
    (cluster.terraform / "applied.tfvars.json").write_text(json.dumps({**wanted, "gpus": 1}))
    assert guards.needs_plan(cluster, spec, made, {**wanted, "gpus": 1}), "an apply failed since"
    (cluster.terraform / "applied.tfvars.json").unlink()
    cluster.complete("provision", 1, module="another")
    assert guards.needs_plan(cluster, spec, made, wanted)


def test_containers_on_machines_are_recreated_with_another_image(cluster: Cluster) -> None:
    """Ansible does that; Terraform's plan is empty."""
    spec = cluster.spec().model_copy(update={"provider": "static", "nodes": 3})
    cluster.terraform.mkdir()
    (cluster.terraform / "terraform.tfvars.json").write_text(json.dumps({"image": "old"}))
    cluster.forget("configure")
    assert guards.recreated(cluster, spec, Outcome(), "new") == [], "none were made yet"
    cluster.complete("containers", 0, **guards.containers("old"))
    assert guards.recreated(cluster, spec, Outcome(), "new") == ["node0", "node1"]
    assert guards.recreated(cluster, spec.model_copy(update={"nodes": 1}), Outcome(), "new") == ["node0"]
    assert guards.recreated(cluster, spec, Outcome(), "old") == []


def test_containers_on_machines_are_recreated_with_another_role(cluster: Cluster, fake_nodes: Path) -> None:
    """It stops the container to change how it is run, with the same image too."""
    answer(fake_nodes, "list", [])
    spec = cluster.spec().model_copy(update={"provider": "static", "image": "mine"})
    cluster.terraform.mkdir()
    wanted: dict[str, object] = {"image": "mine", "gpus": 0, "share": "auto", "options": {}}
    (cluster.terraform / "terraform.tfvars.json").write_text(json.dumps(wanted))
    made = pipeline._terraform(cluster, spec)
    cluster.complete("provision", 1, module=made.version())
    cluster.complete("containers", 0, **guards.containers("mine"))
    assert not guards.needs_plan(cluster, spec, made, wanted)
    cluster.complete("containers", 0, image="mine", role="an older one")
    assert guards.needs_plan(cluster, spec, made, wanted)
    asked: list[str] = []
    guards.agreed(cluster, spec, Outcome(), "mine", asked.append)
    assert asked[0].startswith(
        "Recreate node0, node1 of 'demo', as this version of hvdctl starts their containers with other settings?"
    )
    cluster.forget("containers")
    cluster.complete("configure", 1)
    assert guards.needs_plan(cluster, spec, made, wanted), "a version without that record made them"


@real
@pytest.mark.parametrize("words", [["up"], ["up", "--keep-image"]])
def test_an_upgrade_that_failed_is_asked_about_again(
    hvdctl: Hvdctl, engine: FakeEngine, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """The nodes have the image that was applied, not the one that was asked for last."""
    assert hvdctl("up", "--name", "demo", "--nodes", "2").code == 0
    before = ids(engine)
    upgrade()
    with monkeypatch.context() as broken:
        broken.setattr(terraform.Terraform, "_run", fails)
        assert hvdctl("up", "--name", "demo", "-y").code == 1
    told = hvdctl(*words, "--name", "demo")
    assert ids(engine) == before
    if "--keep-image" in words:
        assert told.code == 0, told.err
        assert {image_of(engine, node.name) for node in Cluster("demo").nodes()} == {OLD}
    else:
        assert (told.code, "Recreate node0, node1 of 'demo'" in told.err) == (2, True)


def fails(self: Any, command: str, env: Any, on_event: Any, **options: Any) -> Outcome:
    if command == "plan":
        return run(self, command, env, on_event, **options)
    raise PhaseError("terraform apply failed: no network")


run = terraform.Terraform._run


@pytest.mark.parametrize("words", [["down"], ["scale", "--nodes", "1"], ["up", "--nodes", "1"]])
def test_questions_name_the_jobs_that_would_end(
    hvdctl: Hvdctl,
    cluster: Cluster,
    engine: FakeEngine,
    fake_nodes: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    runs(fake_nodes, "python train.py " + "x" * 100)
    refused = hvdctl(words[0], "--name", "demo", *words[1:])
    assert refused.code == 2
    assert "This ends run 7 (python train.py...)." in refused.err
    runs(fake_nodes)
    assert "This ends" not in hvdctl(words[0], "--name", "demo", *words[1:]).err
    (fake_nodes / "down").write_text("node0\n")
    assert "The head does not answer" in hvdctl(words[0], "--name", "demo", *words[1:]).err


def test_nobody_is_asked_about_what_was_never_there() -> None:
    with pytest.raises(UsageError, match="has no nodes"):
        guards.image(Cluster("new"), Spec(name="new", image="x"), keep=True)
    assert guards.ending(Cluster("new")) == ""
