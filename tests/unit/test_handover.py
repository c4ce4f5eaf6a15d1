"""Machines that stay: who they are, how they are given back, and that nobody's data goes with that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hvdctl import configure, guards, handover, keys, pipeline, rescue
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import PhaseError, UsageError
from hvdctl.progress import Silent
from hvdctl.sites import static
from hvdctl.spec import Spec, parse
from hvdctl.terraform import Terraform
from support import Hvdctl


class Plays:
    """The plays that were asked for, each (playbook, variables, hosts); those in `fail` do not succeed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, dict[str, Any], tuple[str, ...]]] = []
        self.fail: set[str] = set()
        monkeypatch.setattr(configure, "play", self.play)

    def play(
        self, cluster: Cluster, playbook: str, variables: dict[str, Any], on_event: Any, *, limit: Sequence[str] = ()
    ) -> int:
        self.done.append((playbook, variables, tuple(limit)))
        if playbook in self.fail:
            raise PhaseError("configuration failed: node1.machine can't be reached")
        return 0


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> Plays:
    return Plays(monkeypatch)


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Spec]:
    """A spec of hosts h0, h1, ... by number, in the order given, each with changes of its own."""
    folder = tmp_path_factory.mktemp("keys")

    def make(*numbers: int, share: str = "auto", **changes: dict[str, Any]) -> Spec:
        hosts = [
            {
                "address": f"h{number}.lab",
                "user": "ada",
                "private_address": f"10.9.0.{number}",
                "host_key": [keys.ensure(folder / f"h{number}").public],
            }
            | changes.get(f"h{number}", {})
            for number in numbers
        ]
        asked = {"name": "demo", "provider": "static", "nodes": len(hosts), "share": share, "options": {"hosts": hosts}}
        return parse(asked, "hvdctl.yml")

    return make


@pytest.fixture
def stands(lab: Callable[..., Spec]) -> Cluster:
    """A configured cluster on h0, h1 and h2."""
    cluster = Cluster("demo")
    spec = lab(0, 1, 2)
    cluster.store_spec(spec)
    cluster.store_nodes(static.planned(spec))
    cluster.inventory.parent.mkdir(parents=True)
    cluster.inventory.write_text("")
    cluster.complete("configure", 1.0)
    cluster.complete("share", 0)
    return cluster


def test_a_machine_that_another_owner_has_taken_is_not_undone(
    stands: Cluster, plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = ["node1"]
    monkeypatch.setattr(static, "ceded", lambda cluster: taken)
    assert handover.undo(stands, False, Silent()) is None
    assert [limit for _, _, limit in plays.done] == [("node0.machine", "node2.machine")]
    taken[:] = ["node0", "node1", "node2"]
    handover.undo(stands, False, Silent())
    assert len(plays.done) == 1


def another_key(tmp: pytest.TempPathFactory) -> str:
    return keys.ensure(tmp.mktemp("new") / "key").public


def nodes(spec: Spec) -> list[Node]:
    return static.planned(spec)


def test_a_machine_that_leaves_is_cleared_under_the_name_that_it_had_and_no_data_goes(
    stands: Cluster, lab: Callable[..., Spec], plays: Plays
) -> None:
    assert handover.release(stands, nodes(lab(0, 2)), Silent()) == []
    assert plays.done == [("teardown.yml", {"nfs_keep_data": True}, ("node1.machine",))]


def test_a_machine_that_is_written_otherwise_stays(
    stands: Cluster, lab: Callable[..., Spec], plays: Plays, tmp_path_factory: pytest.TempPathFactory
) -> None:
    renamed = lab(
        0, 1, 2, h1={"address": "192.0.2.1", "port": 2222}, h2={"address": "h2", "private_address": "10.8.0.2"}
    )
    assert handover.release(stands, nodes(renamed), Silent()) == []
    installed_anew = lab(0, 1, 2, h1={"host_key": [another_key(tmp_path_factory)]})
    assert handover.release(stands, nodes(installed_anew), Silent()) == []
    assert handover.release(stands, nodes(lab(0, 2, 1)), Silent()) == []
    assert plays.done == []
    assert handover.changes(stands, renamed) == {}


def test_a_dead_machine_that_leaves_keeps_nobody_from_going_on(
    stands: Cluster, lab: Callable[..., Spec], plays: Plays
) -> None:
    plays.fail = {"teardown.yml"}
    told = handover.release(stands, nodes(lab(0, 2)), Silent())
    assert told == ["ada@h1.lab:22: configuration failed: node1.machine can't be reached"]


def test_a_plan_names_the_machines_that_come_and_go(stands: Cluster, lab: Callable[..., Spec]) -> None:
    assert handover.changes(stands, lab(0, 1, 3)) == {"configure": ["h3.lab:22"], "undo": ["h2.lab:22"]}
    stands.forget("configure")  # as a failed `up` leaves it
    assert handover.changes(stands, lab(0, 1)) == {"undo": ["h2.lab:22"]}
    stands.inventory.unlink()
    assert handover.changes(stands, lab(0)) == {"configure": ["h0.lab:22"]}


def test_the_head_stays_where_the_share_is(stands: Cluster, lab: Callable[..., Spec]) -> None:
    def move(spec: Spec) -> None:
        guards.move(stands, spec, Terraform(stands.terraform, "static", stands.log("terraform")))

    for spec in (lab(0, 2, 1), lab(0, 1, h0={"address": "192.0.2.9"})):
        move(spec)
    with pytest.raises(
        UsageError, match=r"the share of 'demo' is on ada@h0\.lab:22, and ada@h1\.lab:22 would be"
    ) as no:
        move(lab(1, 0))
    assert "put h0.lab first again" in no.value.hint
    stands.forget("share")
    move(lab(1, 0))  # it was never there


def test_down_undoes_and_keeps_data_where_asked(stands: Cluster, plays: Plays) -> None:
    assert handover.undo(stands, True, Silent()) is None
    plays.fail = {"teardown.yml"}
    failed = handover.undo(stands, False, Silent())
    assert failed is not None
    assert "node1.machine can't be reached" in failed.message
    assert [variables for _, variables, _ in plays.done] == [{"nfs_keep_data": True}, {"nfs_keep_data": False}]


@pytest.mark.parametrize(("words", "kept"), [([], True), (["--force"], False)])
def test_data_that_an_up_found_and_never_came_to_use_stays(
    hvdctl: Hvdctl, stands: Cluster, plays: Plays, monkeypatch: pytest.MonkeyPatch, words: list[str], kept: bool
) -> None:
    """It was left by `down --keep-data`; the `up` after it failed while it configured the machines."""
    stands.forget("configure")
    stands.forget("share")
    there = ["volume node0: /srv/hvdctl/demo"] if kept else []
    monkeypatch.setattr(static, "leftovers", lambda cluster: there)
    monkeypatch.setattr(static, "ceded", lambda cluster: [])
    told = hvdctl("down", "--name", "demo", "-y", *words)
    assert told.code == 0, told.err
    assert [variables["nfs_keep_data"] for _, variables, _ in plays.done] == [kept]
    assert ("/srv/hvdctl/demo" in told.out) == kept


def test_machines_that_go_are_not_undone(stands: Cluster, plays: Plays) -> None:
    stands.store_spec(Spec(name="demo", provider="vm"))
    assert handover.undo(stands, False, Silent()) is None
    assert plays.done == []


def test_a_dead_machine_is_told_with_the_reason_and_given_up_by_force(
    hvdctl: Hvdctl, stands: Cluster, plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = "host node1: unreachable, nothing is known of it"
    monkeypatch.setattr(static, "leftovers", lambda cluster: [silent])
    monkeypatch.setattr(rescue, "results", lambda cluster, step, *, keep_data, force, limit=0: None)
    plays.fail = {"teardown.yml"}
    result = hvdctl("down", "--name", "demo", "-y")
    assert result.code == 1
    assert f"still there: {silent} (configuration failed: node1.machine can't be reached)" in result.err
    assert "--force" in result.err
    assert stands.exists
    forced = hvdctl("down", "--name", "demo", "-y", "--force")
    assert (forced.code, f"is down: 0 left; given up: {silent}" in forced.out) == (0, True)
    assert not stands.exists


def test_what_is_left_on_a_living_machine_is_not_given_up(
    hvdctl: Hvdctl, stands: Cluster, plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "leftovers", lambda cluster: ["unit node0: hvdctl-link.service"])
    assert hvdctl("down", "--name", "demo", "-y", "--force").code == 1
    assert stands.exists


def test_machines_that_were_not_cleared_are_told_in_the_end(
    stands: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    from hvdctl.cli.terminal import Terminal
    from hvdctl.cli.up import _summary

    report = pipeline.Report("demo", stands.nodes()[:1], {}, True, None, not_given_back=["ada@h1.lab:22: dead"])
    _summary(report, Terminal())
    assert "Not given back: ada@h1.lab:22: dead" in capsys.readouterr().out
    assert report.data()["not_given_back"] == ["ada@h1.lab:22: dead"]


def test_machines_that_were_cloned_are_two(stands: Cluster, lab: Callable[..., Spec], plays: Plays) -> None:
    one, other, third = stands.nodes()
    stands.store_nodes([one, replace(other, id=f"static/x/{static.host_key_mark(one)}"), third])
    handover.release(stands, nodes(lab(0, 2)), Silent())
    assert [limit for _, _, limit in plays.done] == [("node1.machine",)]


def test_another_experiment_with_the_same_private_addresses_is_another(
    stands: Cluster, lab: Callable[..., Spec], plays: Plays
) -> None:
    moved = {f"h{new}": {"private_address": f"10.9.0.{old}"} for old, new in enumerate((5, 6, 7))}
    again = lab(5, 6, 7, **moved)
    with pytest.raises(UsageError, match=r"is on ada@h0\.lab:22, and ada@h5\.lab:22 would be the head"):
        handover.check_head(stands, again)
    handover.release(stands, nodes(again), Silent())
    assert [limit for _, _, limit in plays.done] == [("node0.machine", "node1.machine", "node2.machine")]


def test_only_those_that_could_not_be_cleared_are_named(
    stands: Cluster, lab: Callable[..., Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*_: Any, **__: Any) -> int:
        raise PhaseError("configuration failed: node2.machine is dead", hosts=frozenset({"node2.machine"}))

    monkeypatch.setattr(configure, "play", play)
    (told,) = handover.release(stands, nodes(lab(0)), Silent())
    assert told.startswith("ada@h2.lab:22: ")
