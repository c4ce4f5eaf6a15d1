"""What the roles for machines are told, and the wait for machines that boot, refuse, end, or are someone else."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hvdctl import configure, images, machines, pipeline, process, providers
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError, PhaseError, UsageError
from hvdctl.progress import Silent
from hvdctl.spec import Spec
from support import make_nodes


def two() -> list[Node]:
    return [
        replace(node, kind="machine", address="127.0.0.1", ssh_port=4000 + index, ssh_user="hvdctl")
        for index, node in enumerate(make_nodes(2))
    ]


@pytest.fixture
def known(cluster: Cluster) -> Cluster:
    cluster.store_spec(Spec(name="demo", provider="vm", nodes=2, net=10**9, options={"delay": "2ms"}))
    cluster.store_nodes(two())
    return cluster


def test_the_roles_get_what_the_spec_and_the_provider_say(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "identity", lambda name: "sha256:1")
    told = machines.variables(known, known.spec(), two(), "x/y:1")
    assert told["net_rate"] == 10**9
    assert told["net_delay"] == "2ms"
    assert told["firewall_enabled"] is True
    assert told["nfs_share"] == "auto"
    assert told["horovod_push_command"][-2:] == ["node0.machine=10.99.0.2", "node1.machine=10.99.0.3"]
    assert "PRIVATE" not in str(told), "paths of keys, not keys"


def test_an_image_that_is_not_here_is_pulled_there(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "identity", lambda name: None)
    told = machines.variables(known, known.spec(), two(), "registry/y:1")
    assert told["horovod_push_command"] == []
    assert told["horovod_image"] == "registry/y:1"


def test_containers_need_none_of_it(cluster: Cluster) -> None:
    assert machines.variables(cluster, cluster.spec(), cluster.nodes(), "x") == {}
    assert machines.names(cluster.nodes()) == []


class Answers:
    """What ssh says to each try, by machine; the last word is repeated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **words: Sequence[str]) -> None:
        self.words = {f"{name}.machine": list(said) for name, said in words.items()}
        self.tries: dict[str, int] = dict.fromkeys(self.words, 0)
        monkeypatch.setattr(process, "gather", self.gather)
        monkeypatch.setattr(machines, "_REFUSED_PATIENCE", 0.5)
        monkeypatch.setattr(machines, "_LOOK_EVERY", 0.0)

    def gather(self, commands: Any, *, timeout: float) -> list[subprocess.CompletedProcess[str]]:
        (argv,) = list(commands)
        name = next(word for word in argv if word in self.words)
        said = self.words[name][min(self.tries[name], len(self.words[name]) - 1)]
        self.tries[name] += 1
        return [subprocess.CompletedProcess([], 255 if said else 0, "", said)]


def test_a_machine_that_boots_is_waited_for(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Answers(
        monkeypatch,
        node0=["Connection reset by peer", "System is booting up.\nConnection closed", ""],
        node1=["Permission denied (publickey).", ""],
    )
    machines.wait(known, two(), Silent(), None)
    assert asked.tries == {"node0.machine": 3, "node1.machine": 2}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Permission denied (publickey).", "refuses the key for 'hvdctl': Permission denied (publickey)."),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "shows another host key than the known one"),
        ("Host key verification failed.", "shows another host key than the known one"),
        ("No route to host", "can't be reached after 1 s: No route to host"),
    ],
)
def test_the_machine_that_can_not_be_used_is_named(
    known: Cluster, monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    Answers(monkeypatch, node0=[""], node1=[said])
    with pytest.raises(HvdctlError) as failed:
        machines.wait(known, two(), Silent(), None, patience=1)
    assert failed.value.message.startswith("node1.machine (127.0.0.1:4001) ")
    assert told in failed.value.message
    assert "node0" not in failed.value.message


def test_one_that_ended_is_not_waited_for(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, node0=[""], node1=["Connection refused"])
    with pytest.raises(HvdctlError, match=r"node1\.machine has ended"):
        machines.wait(known, two(), Silent(), lambda name: {"node0": "running"})


class Plays:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: bool = False) -> None:
        self.done: list[tuple[str, dict[str, Any], tuple[str, ...]]] = []
        self.fail = fail
        monkeypatch.setattr(configure, "play", self.play)

    def play(
        self, cluster: Cluster, book: str, variables: dict[str, Any], on_event: Any, *, limit: Sequence[str] = ()
    ) -> int:
        self.done.append((book, variables, tuple(limit)))
        if self.fail:
            raise PhaseError("configuration failed: node0.machine can't be reached")
        return 0


def test_links_of_machines_are_shaped_by_ansible_and_the_next_up_mends_a_killed_bench(
    known: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays = Plays(monkeypatch)
    pipeline.relink(known, 10**8, Silent())
    assert plays.done == [("net.yml", {"net_rate": 10**8, "net_delay": "2ms"}, ())]
    assert known.record("relink")["rate"] == 10**8
    pipeline.relink(known, 10**9, Silent())
    assert known.record("relink") == {}


def static(cluster: Cluster, count: int) -> Spec:
    hosts = [{"address": "127.0.0.1", "port": 4000 + index, "private_address": f"10.9.0.{index}"} for index in range(2)]
    spec = Spec(name="demo", provider="static", nodes=count, options={"hosts": hosts})
    cluster.store_spec(spec)
    return spec


def test_machines_that_leave_are_set_free_with_the_names_that_they_had(
    known: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays = Plays(monkeypatch)
    known.inventory.parent.mkdir(parents=True)
    known.inventory.write_text("")
    pipeline._release(known, two()[:1], Silent())
    assert plays.done == [("teardown.yml", {}, ("node1.machine",))]
    pipeline._release(known, two(), Silent())
    assert len(plays.done) == 1


def test_down_of_machines_that_stay_undoes_and_a_failure_is_told(
    known: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    static(known, 2)
    known.inventory.parent.mkdir(parents=True)
    known.inventory.write_text("")
    plays = Plays(monkeypatch, fail=True)
    failed = pipeline._undo(known, True, Silent())
    assert failed is not None
    assert "node0.machine" in failed.message
    assert plays.done == [("teardown.yml", {"nfs_keep_data": True}, ())]


def test_data_on_machines_that_go_can_not_be_kept(known: Cluster) -> None:
    with pytest.raises(UsageError, match="--keep-data: the share of 'demo' is on the disk of its head"):
        pipeline._check_keep(known, True)
    static(known, 2)
    pipeline._check_keep(known, True)


def test_a_site_that_can_not_be_asked_keeps_nobody_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl.sites import aws, local, vm

    def refuse() -> list[str]:
        raise HvdctlError("AWS does not take the credentials")

    monkeypatch.setattr(local, "clusters", lambda: ["a"])
    monkeypatch.setattr(vm, "clusters", lambda: ["b"])
    monkeypatch.setattr(aws, "clusters", refuse)
    found = {provider.name: names for provider, names in pipeline._on_sites()}
    assert found["local"] == ["a"]
    assert found["vm"] == ["b"]
    assert "aws" not in found
    assert set(found) | {"aws"} == set(providers.REGISTRY)
