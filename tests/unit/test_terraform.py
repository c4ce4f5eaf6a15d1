from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import pipeline, plugin, providers, terraform
from hvdctl.cluster import Cluster
from hvdctl.errors import PhaseError, ToolMissing, UsageError
from hvdctl.spec import Spec
from hvdctl.terraform import Terraform
from support import IMAGE

real = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")

EVENTS: list[dict[str, Any]] = [
    {"@level": "info", "type": "version", "terraform": "1.11.4"},
    {"@level": "info", "type": "resource_drift", "change": {"resource": {"addr": "hvd_container_node.node[1]"}}},
    {"type": "planned_change", "change": {"action": "create", "resource": {"addr": "hvd_network.cluster"}}},
    {"type": "planned_change", "change": {"action": "create", "resource": {"addr": "hvd_container_node.node[0]"}}},
    {"type": "planned_change", "change": {"action": "update", "resource": {"addr": "hvd_container_node.node[1]"}}},
    {"type": "change_summary", "changes": {"add": 2, "change": 1}},
    {"type": "apply_complete", "hook": {"resource": {"addr": "hvd_network.cluster"}}},
    {"type": "apply_complete", "hook": {"resource": {"addr": "hvd_container_node.node[0]"}}},
    {"type": "apply_complete", "hook": {"resource": {"addr": "hvd_container_node.node[1]"}}},
    {"type": "outputs", "outputs": {"nodes": {"sensitive": False, "value": [{"name": "node0"}]}}},
]


def say(folder: Path, command: str, events: list[Any], code: int = 0) -> None:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    (folder / f"{command}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / f"{command}.code").write_text(str(code))


@pytest.fixture
def module(tmp_path: Path) -> Terraform:
    return Terraform(tmp_path / "tf", "local", tmp_path / "terraform.log")


@pytest.fixture
def no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def served(log: Path) -> Iterator[dict[str, str]]:
        yield {"TF_REATTACH_PROVIDERS": "{}"}

    monkeypatch.setattr(plugin, "served", served)


def variables_of(cluster: Cluster, **keys: Any) -> dict[str, Any]:
    spec = Spec(name=cluster.name, image=IMAGE, **keys)
    pairs = {name: cluster.host_key(name) for name in (f"node{i}" for i in range(spec.nodes))}
    host_keys = {name: (pair.public, str(pair.private)) for name, pair in pairs.items()}
    return pipeline.variables(
        spec, image=IMAGE, key=(cluster.key().public, str(cluster.key().private)), host_keys=host_keys
    )


def diagnostic(summary: str, detail: str = "", level: str = "error") -> dict[str, Any]:
    return {"@level": level, "type": "diagnostic", "diagnostic": {"summary": summary, "detail": detail}}


def test_without_terraform_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="neither terraform nor tofu is installed") as missing:
        terraform.binary()
    assert "hvdctl check --fix" in missing.value.hint


def test_tofu_serves_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tofu").write_text("#!/bin/sh\n")
    (tmp_path / "tofu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert terraform.binary() == str(tmp_path / "tofu")


def test_events_become_an_outcome_and_progress(module: Terraform, fake_terraform: Path, no_plugin: None) -> None:
    say(fake_terraform, "apply", EVENTS)
    told: list[str] = []
    outcome = module.apply({"nodes": 2}, told.append)
    assert outcome.changes == {
        "create": ["hvd_network.cluster", "hvd_container_node.node[0]"],
        "update": ["hvd_container_node.node[1]"],
    }
    assert outcome.drift == ["hvd_container_node.node[1]"]
    assert outcome.outputs == {"nodes": [{"name": "node0"}]}
    assert told == ["1 of 3 resources", "2 of 3 resources", "3 of 3 resources"]
    assert json.loads((module.folder / "terraform.tfvars.json").read_text()) == {"nodes": 2}
    assert '"apply_complete"' in module.log.read_text()


def test_the_calls_ask_nothing_and_are_machine_readable(
    module: Terraform, fake_terraform: Path, no_plugin: None
) -> None:
    say(fake_terraform, "plan", [])
    module.plan({})
    module.plan({})
    init, *plans = (fake_terraform / "calls").read_text().splitlines()
    assert init.startswith("init ")
    assert len(plans) == 2, "init is run once for the same module"
    assert all("-json" in call.split() for call in plans)
    assert "-auto-approve" not in plans[0]


@pytest.mark.parametrize(("provider", "at_once"), [("gpulab", 110), ("local", 10), ("aws", 10)])
def test_nodes_that_queue_are_all_asked_for_at_once(
    fake_terraform: Path, no_plugin: None, provider: str, at_once: int
) -> None:
    """A wave of ten that waits for room would keep the others from being submitted."""
    assert providers.REGISTRY[provider].all_at_once == (at_once > 10)
    cluster = Cluster("demo")
    say(fake_terraform, "apply", [])
    module = pipeline._terraform(cluster, Spec(name="demo", provider=provider, nodes=100))
    module.apply({}, lambda _: None)
    (call,) = [line for line in (fake_terraform / "calls").read_text().splitlines() if line.startswith("apply")]
    assert f"-parallelism={at_once}" in call.split()


def test_the_users_own_terraform_settings_do_not_reach_ours(
    module: Terraform, fake_terraform: Path, no_plugin: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CLI_ARGS", "-no-such-flag")
    monkeypatch.setenv("TF_VAR_nodes", "99")
    say(fake_terraform, "plan", [])
    module.plan({})
    env = dict(line.split("=", 1) for line in (fake_terraform / "plan.env").read_text().splitlines() if "=" in line)
    assert not {"TF_CLI_ARGS", "TF_VAR_nodes"} & set(env)
    assert Path(env["TF_CLI_CONFIG_FILE"]).parent == module.folder
    assert env["TF_INPUT"] == "0"


def test_errors_are_told_once_each_with_the_log(module: Terraform, fake_terraform: Path, no_plugin: None) -> None:
    events = [
        diagnostic("deprecated", level="warn"),
        diagnostic("can't create container", "the name\n  is taken"),
        diagnostic("can't create container", "the name\n  is taken"),
        "panic: runtime error",
    ]
    say(fake_terraform, "apply", events, code=1)
    with pytest.raises(PhaseError) as failed:
        module.apply({}, lambda _: None)
    assert failed.value.message == (
        "terraform apply failed: can't create container the name is taken; panic: runtime error"
    )
    assert failed.value.log == module.log
    assert "deprecated" in module.log.read_text()


def test_a_silent_failure_is_a_failure(module: Terraform, fake_terraform: Path, no_plugin: None) -> None:
    say(fake_terraform, "apply", [], code=7)
    with pytest.raises(PhaseError, match="terraform apply failed: exit code 7"):
        module.apply({}, lambda _: None)


def test_a_failed_init_is_told_and_tried_again(module: Terraform, fake_terraform: Path, no_plugin: None) -> None:
    say(fake_terraform, "init", ["╷", "│ Error: no mirror", "╵"], code=1)
    with pytest.raises(PhaseError, match="terraform init failed: Error: no mirror"):
        module.plan({})
    say(fake_terraform, "init", [])
    say(fake_terraform, "plan", [])
    module.plan({})
    assert (fake_terraform / "calls").read_text().count("init ") == 2


@pytest.mark.parametrize(("text", "known"), [(None, False), ("", False), ("\n", False), ('{"resources": []}', False)])
def test_no_state_is_no_resources(module: Terraform, text: str | None, known: bool) -> None:
    if text is not None:
        module.folder.mkdir()
        (module.folder / "terraform.tfstate").write_text(text)
    assert module.has_state is known


@pytest.mark.parametrize("text", ["{", "[]", "{}", "null", "not json", "\x00\x01"])
def test_a_corrupt_state_is_named_and_kept(module: Terraform, text: str) -> None:
    module.folder.mkdir()
    file = module.folder / "terraform.tfstate"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        _ = module.has_state
    assert str(file) in refused.value.message
    assert f"{file}.backup" in refused.value.hint
    assert "hvdctl down --force" in refused.value.hint
    assert file.read_text() == text


@real
def test_the_real_line_make_change_heal_and_remove(engine: FakeEngine) -> None:
    """Real Terraform and the real provider; only the engine behind them is a small one."""
    cluster = Cluster("demo")
    cluster.folder.mkdir(parents=True)

    module = Terraform(cluster.terraform, "local", cluster.log("terraform"))
    made = module.apply(variables_of(cluster, nodes=3, net=10**9), lambda _: None)
    assert [node["name"] for node in made.outputs["nodes"]] == ["node0", "node1", "node2"]
    assert [node["role"] for node in made.outputs["nodes"]] == ["head", "worker", "worker"]
    assert engine.names("containers") == [f"hvdctl-demo-node{i}" for i in range(3)]
    assert set(engine.links().values()) == {"1000000000"}
    ids = {name: engine.container(name)["Id"] for name in engine.names("containers")}

    # Nothing changed: nothing to do.
    assert module.apply(variables_of(cluster, nodes=3, net=10**9), lambda _: None).changes == {}

    # A rate changes in place.
    changed = module.apply(variables_of(cluster, nodes=3, net=10**8), lambda _: None)
    assert set(changed.changes) == {"update"}
    assert set(engine.links().values()) == {"100000000"}
    assert {name: engine.container(name)["Id"] for name in engine.names("containers")} == ids

    # A container killed behind Terraform's back: that one is made anew.
    engine.container("hvdctl-demo-node1")["State"]["Status"] = "exited"
    healed = module.apply(variables_of(cluster, nodes=3, net=10**8), lambda _: None)
    assert healed.changes == {"create": ["hvd_container_node.node[1]"]}
    now = {name: engine.container(name)["Id"] for name in engine.names("containers")}
    assert [name for name in ids if now[name] != ids[name]] == ["hvdctl-demo-node1"]

    # No private key in what Terraform keeps.
    kept = "".join(file.read_text() for file in module.folder.iterdir() if file.is_file())
    assert "ssh-ed25519 " in kept
    assert "PRIVATE KEY" not in kept

    # The share is kept where that is asked, all else goes.
    module.destroy(lambda _: None, keep=("hvd_volume",))
    assert (engine.names("containers"), engine.names("networks")) == ([], [])
    assert engine.names("volumes") == ["hvdctl-demo-share"]


@real
def test_what_the_engine_refuses_is_one_clear_line(engine: FakeEngine) -> None:
    cluster = Cluster("demo")
    cluster.folder.mkdir(parents=True)
    engine.refuses["POST /networks/create"] = "could not find an available, non-overlapping IPv4 address pools"
    module = Terraform(cluster.terraform, "local", cluster.log("terraform"))
    with pytest.raises(PhaseError) as failed:
        module.apply(variables_of(cluster), lambda _: None)
    assert "can't create network hvdctl-demo-net: the engine has no free network left" in failed.value.message
    assert os.linesep not in failed.value.message
