from __future__ import annotations

import json
import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import checks, jobs, links, neighbours, providers, ssh
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError
from hvdctl.spec import Spec, parse
from support import IMAGE, Hvdctl, answer, make_nodes, stand

Usage = namedtuple("Usage", "total used free")


def states(spec: Spec) -> dict[str, str]:
    return {check.name: check.state for check in checks.run(spec)}


def test_every_check_of_a_machine_without_an_engine(fake_terraform: Path, fake_nodes: Path) -> None:
    found = {check.name: check for check in checks.run(Spec(name="demo", image=IMAGE))}
    assert list(found) == ["terraform", "ssh", "rsync", "engine", "disk", "memory", "cores"]
    assert found["engine"].state == "fail"
    assert "no Docker engine answers" in found["engine"].detail
    assert found["engine"].hint


def test_a_missing_tool_fails_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {check.name: check for check in checks.run(Spec())}
    assert found["terraform"].state == found["ssh"].state == found["rsync"].state == "fail"
    assert "apt-get install openssh-client" in found["ssh"].hint


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("Terraform v1.4.7", "fail"),
        ("Terraform v0.15.5\n\nYour version of Terraform is out of date!", "fail"),
        ("Terraform v1.5.0", "ok"),
        ("Terraform v1.11.4\non linux_amd64", "ok"),
        ("OpenTofu v1.10.0-beta1", "ok"),
    ],
)
def test_a_terraform_that_is_too_old_fails(fake_terraform: Path, said: str, state: str) -> None:
    (fake_terraform / "version.jsonl").write_text(f"{said}\n")
    for provider in providers.REGISTRY:
        found = next(checks.run(Spec(provider=provider)))
        assert (found.name, found.state) == ("terraform", state)
        assert found.detail.startswith(said.splitlines()[0])
        assert ("is too old: 1.5 or newer is needed" in found.detail) == (state == "fail")
        assert ("check --fix" in found.hint) == (state == "fail")


def test_more_ranks_than_cores_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert states(Spec(nodes=2, slots=2))["cores"] == "ok"
    assert states(Spec(nodes=5))["cores"] == "warn"


def test_a_full_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 99, 2**30))
    assert states(Spec())["disk"] == "fail"


def test_a_missing_image_of_the_users_own_fails(engine: FakeEngine) -> None:
    assert states(Spec(image=IMAGE))["image"] == "ok"
    assert states(Spec(image="no/such:1"))["image"] == "fail"


def test_machines_pull_an_image_that_is_not_here(engine: FakeEngine) -> None:
    found = {check.name: check for check in checks.run(Spec(image="no/such:1", provider="vm"))}
    assert (found["image"].state, found["image"].detail) == (
        "ok",
        "no/such:1 is not here: every machine pulls it itself",
    )


@pytest.fixture
def whole(cluster: Cluster, engine: FakeEngine, fake_nodes: Path) -> Path:
    """A cluster that stands, with nodes whose doctor is content and a share common to all."""
    stand(engine, "node0", "node1")
    (fake_nodes / "doctor.json").write_text('{"ok": true, "versions": {"horovod": "0.28.1"}}')
    return fake_nodes


def test_every_node_is_checked(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The fake nodes have no /shared: a folder takes its place.
    monkeypatch.setattr(jobs, "SHARE", whole)
    found = {check.name: check for check in checks.run(Spec(name="demo", image=IMAGE))}
    for name in ("cluster", "ssh to nodes", "horovod build", "share", "link node1"):
        assert found[name].state == "ok", found[name]
    assert "horovod 0.28.1" in found["horovod build"].detail
    assert "957 Mbit/s of 1 Gbit/s asked" in found["link node1"].detail
    assert list(whole.glob(".hvdctl-check*")) == [], "the mark is taken away"


STARTS: dict[str, Any] = {"installed": True, "wanted": True, "running": True, "answers": False, "log": []}


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({"answers": True}, "ok", "it answers"),
        ({}, "ok", "starts within a minute"),
        ({"log": ["Bad config"]}, "fail", "Bad config"),
        ({"running": False}, "fail", "it says nothing"),
        ({"running": False, "wanted": False}, "fail", "not whole yet"),
        ({"running": False, "wanted": False, "installed": False}, "warn", "the image has none"),
    ],
)
def test_jupyter_is_asked_on_the_head(whole: Path, change: dict[str, Any], state: str, said: str) -> None:
    answer(whole, "jupyter", STARTS | change)
    found = checks._jupyter(Cluster("demo"))
    assert found.state == state
    assert said in found.detail


def test_a_share_that_can_not_be_written_fails(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SHARE", whole / "missing")
    found = {check.name: check for check in checks.run(Spec(name="demo", image=IMAGE))}
    assert found["share"].state == "fail"
    assert f"node0 can't write to {whole / 'missing'}" in found["share"].detail


def test_a_silent_node_is_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_SERVER_WAIT", 0)
    (whole / "down").write_text("node1\n")
    found = {check.name: check for check in checks.run(Spec(name="demo", image=IMAGE))}
    assert found["ssh to nodes"].state == "fail"
    assert "node1" in found["ssh to nodes"].detail


def test_a_bad_build_is_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SHARE", whole)
    (whole / "doctor.node1.json").write_text('{"ok": false, "problems": ["no Gloo"]}')
    found = {check.name: check for check in checks.run(Spec(name="demo", image=IMAGE))}
    assert found["horovod build"].state == "fail"
    assert "node1 (no Gloo)" in found["horovod build"].detail


@pytest.mark.parametrize(("provider", "at_once"), [("local", 3), ("aws", 6)])
def test_builds_are_looked_at_side_by_side_but_no_more_than_shared_cores(
    provider: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Cluster("demo")
    made.store_spec(parse({"name": "demo", "provider": provider, "nodes": 6}, "x"))
    nodes = make_nodes(6)
    meeting, lock, busy = threading.Barrier(at_once), threading.Lock(), set[str]()

    def agent(cluster: Cluster, node: str, *words: str, timeout: float) -> dict[str, Any]:
        with lock:
            busy.add(node)
            assert len(busy) <= at_once
        meeting.wait(timeout=30)  # one after the other would never end
        with lock:
            busy.remove(node)
        if node == "node4":
            raise HvdctlError("node4 gave no answer")
        return {"ok": node != "node2", "problems": ["no Gloo"], "versions": {"horovod": "0.28.1"}}

    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(ssh, "argv", lambda *_: ["true"])
    monkeypatch.setattr(ssh, "agent", agent)
    logins, builds = checks._on_all(made, nodes)
    assert (logins.state, builds.state) == ("ok", "fail")
    assert builds.detail == "not on node2 (no Gloo), node4 (node4 gave no answer)"


@pytest.mark.parametrize(("limit", "state"), [("1024\n", "ok"), ("99", "fail"), ("", None), (None, None)])
def test_the_room_for_neighbours_is_shown(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, state: str | None
) -> None:
    monkeypatch.setattr(neighbours, "LIMIT", tmp_path / "limit")
    if limit is not None:
        (tmp_path / "limit").write_text(limit)
    found = {check.name: check for check in checks.run(Spec(nodes=10))}
    assert getattr(found.get("neighbours"), "state", None) == state
    assert "neighbours" not in {check.name for check in checks.run(Spec(nodes=10, provider="vm"))}
    if state:
        told = f"10 nodes need 100 entries of the neighbour table, this kernel takes {(limit or '').strip()}"
        assert found["neighbours"].detail == told
        assert ("gc_thresh3=256" in found["neighbours"].hint) == (state == "fail")


def test_a_lost_node_fails_the_cluster(whole: Path, engine: FakeEngine) -> None:
    engine.container("hvdctl-demo-node1")["State"]["Status"] = "exited"
    found = {check.name: check for check in checks.run(Spec(name="demo", image=IMAGE))}
    assert (found["cluster"].state, found["cluster"].detail) == ("fail", "lost nodes: node1")


def test_the_command_gives_json_and_an_exit_code(hvdctl: Hvdctl) -> None:
    result = hvdctl("check", "--json")
    told = json.loads(result.out)
    assert (result.code, told["ok"]) == (1, False)
    assert {"name", "state", "detail", "hint"} == set(told["checks"][0])
    assert "✗ engine" in hvdctl("check").out


def test_the_command_takes_options_of_the_provider(hvdctl: Hvdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Spec] = []

    def run(spec: Spec) -> list[checks.Check]:
        asked.append(spec)
        return []

    monkeypatch.setattr(checks, "run", run)
    assert hvdctl("check", "--provider", "aws", "--option", "admit=203.0.113.7").code == 0
    assert [(spec.provider, spec.options) for spec in asked] == [("aws", {"admit": "203.0.113.7"})]
