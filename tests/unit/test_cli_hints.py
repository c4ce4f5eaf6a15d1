"""Which cluster a file is for, and hints for what people write first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import configure, ssh
from hvdctl.cli import edge
from hvdctl.cluster import Cluster
from hvdctl.spec import Spec
from support import IMAGE, Hvdctl


def planned(hvdctl: Hvdctl, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Spec, str]:
    """The spec that `plan` would plan, and what was said."""
    from hvdctl import pipeline
    from hvdctl.progress import Progress
    from hvdctl.terraform import Outcome

    found: list[Spec] = []

    def plan(spec: Spec, progress: Progress, *, keep_image: bool = False) -> Outcome:
        found.append(spec)
        return Outcome()

    monkeypatch.setattr(pipeline, "plan", plan)
    told = hvdctl("plan", *words)
    assert told.code == 0, told.err
    return found[0], told.err


@pytest.mark.parametrize(("text", "name"), [("nodes: 3\n", "default"), ("name: demo\nnodes: 3\n", "demo")])
def test_a_file_changes_the_cluster_that_it_names_and_no_other(
    hvdctl: Hvdctl, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    for one in (name, "other"):
        Cluster(one).store_spec(Spec(name=one, nodes=5, image=IMAGE))
    Path("hvdctl.yml").write_text(text)
    assert planned(hvdctl, monkeypatch)[0].nodes == 3
    assert planned(hvdctl, monkeypatch, "--name", name) == (Spec(name=name, nodes=3, image=IMAGE), "")
    spec, said = planned(hvdctl, monkeypatch, "--name", "other", "--net", "1g")
    assert (spec.name, spec.nodes, spec.net) == ("other", 5, 10**9)
    assert "hvdctl.yml is of another cluster" in said and "`--file hvdctl.yml` applies them" in said
    assert planned(hvdctl, monkeypatch, "--name", "other", "--file", "hvdctl.yml")[0].nodes == 3
    spec, said = planned(hvdctl, monkeypatch, "--name", "new")
    assert (spec.name, spec.nodes, said) == ("new", 3, ""), "a new cluster begins with the file"


@pytest.mark.parametrize("verb", ["run", "exec"])
def test_options_of_a_command_without_the_dashes_are_explained(hvdctl: Hvdctl, cluster: Cluster, verb: str) -> None:
    refused = hvdctl(verb, "--name", "demo", "python", "train.py", "--epochs", "1")
    assert refused.code == 2
    assert "--epochs" in refused.err
    assert f"options of your command go after --, such as: hvdctl {verb} " in refused.err
    assert "go after --" not in hvdctl("status", "--epochs").err


def test_check_of_no_cluster_fails(hvdctl: Hvdctl, cluster: Cluster, engine: FakeEngine) -> None:
    refused = hvdctl("check", "--name", "nosuch")
    assert (refused.code, "there is no cluster 'nosuch'" in refused.err) == (2, True)


@pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")
def test_up_with_other_slots_says_that_something_changed(
    hvdctl: Hvdctl, engine: FakeEngine, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(cluster: Cluster, playbook: str, variables: dict[str, Any], on_event: Any) -> int:
        return 0

    def wait(cluster: Cluster, nodes: Any, seconds: float = 60) -> None:
        pass

    monkeypatch.setattr(configure, "play", play)
    monkeypatch.setattr(ssh, "wait", wait)
    (fake_nodes / "list.json").write_text(json.dumps([]))
    words = ["up", "--name", "demo", "--image", IMAGE, "--nodes", "1"]
    assert hvdctl(*words).code == 0
    told = hvdctl(*words, "--slots", "2")
    assert "1 node, 2 slots (the same nodes, configured again)" in told.out, told.out
    assert "(no change)" in hvdctl(*words).out


def test_ctrl_c_before_a_command_has_begun_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def start() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as left:
        edge.guarded(start)
    assert left.value.code == 130
    assert capsys.readouterr().err.splitlines()[0] == "error: interrupted"
