"""`hvdctl stage`: what is asked of the playbook, and what each node says of its copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import configure
from hvdctl.cluster import Cluster
from support import Hvdctl, hold, stand

SAID = {
    "node0": {"said": "node0: 3 files, 12.0 MB in 0.1 s", "changed": True},
    "node1": {"said": "node1: 12.0 MB in /scratch/sets already", "changed": False},
}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The playbooks that were played, with their variables; the nodes answer in another order than theirs."""
    found: list[tuple[str, dict[str, Any]]] = []

    def play(
        cluster: Cluster,
        playbook: str,
        variables: dict[str, Any],
        on_event: Callable[[str], None],
        *,
        limit: Sequence[str] = (),
        answers: dict[str, dict[str, Any]] | None = None,
    ) -> int:
        found.append((playbook, variables))
        assert answers is not None
        answers.update(reversed(SAID.items()))
        return 1

    monkeypatch.setattr(configure, "play", play)
    return found


@pytest.mark.parametrize(
    ("words", "source", "target"),
    [
        (["sets"], "/shared/sets", ""),
        (["/shared/sets/small", "--to", "/scratch/mine"], "/shared/sets/small", "/scratch/mine"),
    ],
)
def test_every_node_says_how_fast_its_copy_was(
    hvdctl: Hvdctl,
    cluster: Cluster,
    played: list[tuple[str, dict[str, Any]]],
    words: list[str],
    source: str,
    target: str,
) -> None:
    told = hvdctl("stage", "--name", "demo", *words)
    assert told.code == 0, told.err
    assert played == [("stage.yml", {"staging_source": source, "staging_target": target})]
    assert told.out.splitlines() == [SAID["node0"]["said"], SAID["node1"]["said"]]
    assert json.loads(hvdctl("stage", "--name", "demo", "--json", *words).out) == SAID


def test_what_is_not_on_the_share_is_refused(
    hvdctl: Hvdctl, cluster: Cluster, played: list[tuple[str, dict[str, Any]]]
) -> None:
    for source in ("/etc", "../etc", "/shared/../etc"):
        refused = hvdctl("stage", "--name", "demo", source)
        assert refused.code == 2
        assert "is not on the share; write a path below /shared" in refused.err
    assert played == []


def test_a_cluster_that_has_no_node_to_copy_to_is_named(
    hvdctl: Hvdctl, cluster: Cluster, engine: FakeEngine, played: list[tuple[str, dict[str, Any]]]
) -> None:
    assert "there is no cluster 'nobody'" in hvdctl("stage", "--name", "nobody", "sets").err
    stand(engine, "node0")
    refused = hvdctl("stage", "--name", "demo", "sets")
    assert refused.code == 1
    assert "lost: node1" in refused.err and "`hvdctl up --name demo`" in refused.err
    assert played == []


def test_another_command_that_holds_the_cluster_is_not_disturbed(
    hvdctl: Hvdctl, cluster: Cluster, played: list[tuple[str, dict[str, Any]]]
) -> None:
    holder = hold()
    try:
        refused = hvdctl("stage", "--name", "demo", "sets")
    finally:
        holder.communicate("")
    assert refused.code != 0
    assert "up --nodes 10" in refused.err
    assert played == []
