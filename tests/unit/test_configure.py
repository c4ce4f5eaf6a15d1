"""The real playbooks through the real ansible-runner, on nodes that are this machine."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdctl import configure, inventory, verbatim
from hvdctl.cluster import Cluster, write
from hvdctl.errors import PhaseError
from support import runs, started_with, wait_for

needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the nodes' interpreter")


def event(kind: str, **data: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": data}


def test_a_task_is_told_by_its_name() -> None:
    assert configure.describe(event("playbook_on_task_start", name="Check share", task="x")) == "Check share"
    assert configure.describe(event("runner_on_ok", name="x")) == ""
    assert configure.describe({}) == ""


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (event("runner_on_failed", host="node1", task="T", res={"msg": "no\n space"}), "node1 failed in 'T': no space"),
        (event("runner_on_failed", host="node1", task="T", res={"stderr": "err"}), "node1 failed in 'T': err"),
        (
            event("runner_on_failed", host="n", task="T", res={"rc": 1, "msg": "non-zero", "stderr": "why"}),
            "n failed in 'T': why",
        ),
        (event("runner_on_failed", host="node1", task="T"), "node1 failed in 'T': no reason given"),
        (
            event("runner_on_unreachable", host="node2", task="T", res={"msg": "timed out"}),
            "node2 can't be reached in 'T': timed out",
        ),
        (event("runner_on_failed", host="node1", task="T", ignore_errors=True, res={"msg": "x"}), ""),
        (event("runner_on_ok", host="node1", task="T"), ""),
    ],
)
def test_a_failure_names_host_task_and_reason(data: dict[str, Any], told: str) -> None:
    assert configure.failure(data) == told


@pytest.fixture
def ready(cluster: Cluster, fake_nodes: Path) -> dict[str, Any]:
    """The variables of a play on two nodes that answer well."""
    hosts = inventory.inventory("demo", cluster.nodes(), cluster.ssh_config)
    write(cluster.inventory, verbatim.dump(hosts))
    (fake_nodes / "apply.json").write_text('{"changed": true}')
    (fake_nodes / "verify.json").write_text('{"ok": true, "problems": []}')
    (fake_nodes / "jupyter.json").write_text('{"changed": true, "installed": true}')
    facts = cluster.folder / "facts.json"
    write(facts, '{"env": {"KEY": "secret-of-the-user"}}')
    return {
        "node_bundle": "PACKED+FILES==",
        "verify_nonce": "n1",
        "verify_rate": 10**9,
        "jupyter_wanted": True,
        "jupyter_facts": str(facts),
    }


@needs_python
def test_every_node_is_given_its_files_and_verified(cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]) -> None:
    told: list[str] = []
    assert configure.play(cluster, "up.yml", ready, told.append) == 3
    assert "node : Apply the cluster's host names, known hosts and hostfile" in told
    for node in ("node0", "node1"):
        assert (fake_nodes / f"apply.request.{node}").read_text() == "PACKED+FILES==\n"
    assert json.loads((fake_nodes / "verify.request.node0").read_text()) == {
        "share": "/shared",
        "nonce": "n1",
        "rate": 10**9,
        "interface": None,
        "workers": ["node1"],
    }
    log = cluster.log("ansible").read_text()
    assert "PLAY RECAP" in log


@needs_python
def test_jupyter_is_started_on_the_head_alone_and_what_it_is_told_is_in_no_file(
    cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]
) -> None:
    configure.play(cluster, "up.yml", ready, lambda _: None)
    assert json.loads((fake_nodes / "jupyter.request.node0").read_text()) == {"env": {"KEY": "secret-of-the-user"}}
    assert not (fake_nodes / "jupyter.request.node1").exists()
    facts = Path(ready["jupyter_facts"])
    for file in (one for one in cluster.folder.rglob("*") if one.is_file() and one != facts):
        assert b"secret-of-the-user" not in file.read_bytes(), file


@needs_python
def test_a_jupyter_that_does_not_start_tells_why(cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]) -> None:
    (fake_nodes / "jupyter.json").write_text('{"error": "the share is full"}')
    (fake_nodes / "jupyter.code").write_text("2")
    with pytest.raises(PhaseError, match="the share is full"):
        configure.play(cluster, "up.yml", ready, lambda _: None)


@needs_python
@pytest.mark.parametrize("wanted", [True, False])
def test_an_image_of_an_older_hvdctl_has_no_jupyter_and_that_is_no_error(
    cluster: Cluster, fake_nodes: Path, ready: dict[str, Any], wanted: bool
) -> None:
    (fake_nodes / "jupyter.json").write_text('{"error": "no verb \'jupyter\'"}')
    (fake_nodes / "jupyter.code").write_text("2")
    configure.play(cluster, "up.yml", ready | {"jupyter_wanted": wanted}, lambda _: None)


@needs_python
def test_an_agent_that_says_no_json_is_quoted(cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]) -> None:
    (fake_nodes / "jupyter.json").write_text("OSError: no space left on device")
    (fake_nodes / "jupyter.code").write_text("1")
    with pytest.raises(PhaseError, match="no space left on device"):
        configure.play(cluster, "up.yml", ready, lambda _: None)


@needs_python
def test_without_jupyter_it_is_ended(cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]) -> None:
    configure.play(cluster, "up.yml", ready | {"jupyter_wanted": False}, lambda _: None)
    assert (fake_nodes / "jupyter.words.node0").read_text() == "stop\n"


@needs_python
def test_a_node_that_fails_is_named_with_its_reason_and_the_log(
    cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]
) -> None:
    problem = "node1: the share is not common"
    (fake_nodes / "verify.json").write_text(json.dumps({"ok": False, "problems": [problem]}))
    with pytest.raises(PhaseError) as failed:
        configure.play(cluster, "verify.yml", ready, lambda _: None)
    assert f"in 'Check share, links, names and SSH on every node': {problem}" in failed.value.message
    assert failed.value.log == cluster.log("ansible")


@needs_python
def test_a_node_that_can_not_be_reached_is_named(
    cluster: Cluster, fake_nodes: Path, ready: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ansible pauses before each retry; the next test has the retries.
    settings, once = configure._environment, {"ANSIBLE_SSH_RETRIES": "0"}
    monkeypatch.setattr(configure, "_environment", lambda work, sockets: settings(work, sockets) | once)
    (fake_nodes / "down").write_text("node1\n")
    with pytest.raises(PhaseError, match=r"node1 can't be reached.*; unfinished because of that: node0$") as failed:
        configure.play(cluster, "site.yml", ready, lambda _: None)
    assert failed.value.hosts == {"node1"}


@needs_python
def test_a_login_that_a_crowded_server_cuts_is_tried_again(
    cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]
) -> None:
    (fake_nodes / "cut.node1").touch()
    assert configure.play(cluster, "up.yml", ready, lambda _: None) == 3
    assert not (fake_nodes / "cut.node1").exists()


@needs_python
def test_ctrl_c_ends_what_ansible_has_at_work(
    cluster: Cluster, fake_nodes: Path, ready: dict[str, Any], tmp_path: Path, on_path: Callable[[Path], None]
) -> None:
    agent = tmp_path / "hangs" / "hvd-agent"
    agent.parent.mkdir()
    agent.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/at-work\nexec sleep 60\n")
    agent.chmod(0o755)
    on_path(agent.parent)
    at_work = tmp_path / "at-work"

    def press() -> None:
        wait_for(lambda: at_work.exists() and len(at_work.read_text().split()) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        configure.play(cluster, "site.yml", ready, lambda _: None)
    assert not any(runs(int(pid)) for pid in at_work.read_text().split())
    assert not started_with(f"FAKE_NODES={fake_nodes}")


@needs_python
def test_a_role_refuses_variables_of_the_wrong_kind(cluster: Cluster, fake_nodes: Path, ready: dict[str, Any]) -> None:
    with pytest.raises(PhaseError, match="verify_rate"):
        configure.play(cluster, "verify.yml", {**ready, "verify_rate": "fast"}, lambda _: None)
