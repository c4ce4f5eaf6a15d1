"""What the roles for machines are told, and the wait for machines that boot, refuse, end, or are someone else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hvdctl import images, machines, owner, process
from hvdctl.cluster import Cluster, Node
from hvdctl.errors import HvdctlError
from hvdctl.progress import Silent
from hvdctl.spec import Spec
from support import ends_at_once, make_nodes, wait_for


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


def test_packages_are_the_owners_own_where_others_use_the_share() -> None:
    assert machines.packages(Spec(), "0a") == "/shared/python"
    assert machines.packages(Spec(share="/nas/lab"), "0a") == "/shared/.hvdctl/0a/python"
    assert machines.packages(Spec(provider="gpulab"), "0a") == "/shared/.hvdctl/0a/python", "the project's storage"


def test_the_roles_get_what_the_spec_and_the_provider_say(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "identity", lambda name: "sha256:1")
    told = machines.variables(known, known.spec(), two(), "x/y:1")
    assert told["net_rate"] == 10**9
    assert told["net_delay"] == "2ms"
    assert told["firewall_enabled"] is True
    assert told["firewall_closed"] == ["10.0.2.0/24"]
    assert told["nfs_share"] == "auto"
    assert told["base_owner"] == f"{owner.this().id} {owner.this().name}"
    assert told["horovod_push_command"][-2:] == ["node0.machine=10.99.0.2", "node1.machine=10.99.0.3"]
    assert "PRIVATE" not in str(told), "paths of keys, not keys"


def test_machines_of_others_are_not_rebooted(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "identity", lambda name: None)
    assert machines.variables(known, known.spec(), two(), "x")["nvidia_reboot"] is True
    hosts = [{"address": f"10.9.0.{number}"} for number in (1, 2)]
    lent = Spec(name="demo", provider="static", nodes=2, options={"hosts": hosts})
    assert machines.variables(known, lent, two(), "x")["nvidia_reboot"] is False


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
        monkeypatch.setattr(process, "capture", self.capture)
        monkeypatch.setattr(machines, "_REFUSED_PATIENCE", 0.5)
        monkeypatch.setattr(machines, "_LOOK_EVERY", 0.0)

    def capture(self, argv: Sequence[str], *, timeout: float) -> subprocess.CompletedProcess[str]:
        name = next(word for word in argv if word in self.words)
        said = self.words[name][min(self.tries[name], len(self.words[name]) - 1)]
        self.tries[name] += 1
        return subprocess.CompletedProcess([], 255 if said else 0, "", said)


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


def test_a_refusal_for_good_is_told_without_waiting_for_the_others(
    known: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    Answers(monkeypatch, node0=["Connection refused"], node1=["Host key verification failed."])
    monkeypatch.setattr(machines, "_GRACE", 0.5)
    started = time.monotonic()
    with pytest.raises(HvdctlError) as failed:
        machines.wait(known, two(), Silent(), None)
    assert time.monotonic() - started < 10
    assert failed.value.message == (
        "node0.machine (127.0.0.1:4000) does not answer yet; "
        "node1.machine (127.0.0.1:4001) shows another host key than the known one"
    )


def test_others_that_are_refused_a_moment_later_are_named_too(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(
        monkeypatch,
        node0=["Connection refused", "Host key verification failed."],
        node1=["Host key verification failed."],
    )
    with pytest.raises(HvdctlError) as failed:
        machines.wait(known, two(), Silent(), None)
    assert failed.value.message.count("shows another host key than the known one") == 2


def test_a_site_that_does_not_answer_does_not_end_the_wait(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def refuse(name: str) -> dict[str, str]:
        looks.append(name)
        raise HvdctlError("too many requests")

    Answers(monkeypatch, node0=["Connection refused"] * 3 + [""], node1=[""])
    machines.wait(known, two(), Silent(), refuse)
    assert len(looks) >= 2, "it is asked again at the next look"


def test_the_site_is_asked_once_for_all(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def observe(name: str) -> dict[str, str]:
        looks.append(name)
        time.sleep(0.5)
        return {"node0": "running", "node1": "running"}

    asked = Answers(monkeypatch, node0=["Connection refused"] * 4 + [""], node1=["Connection refused"] * 4 + [""])
    monkeypatch.setattr(machines, "_LOOK_EVERY", 60.0)
    machines.wait(known, two(), Silent(), observe)
    assert asked.tries == {"node0.machine": 5, "node1.machine": 5}
    assert looks == ["demo"]


def test_one_that_ends_later_is_seen_at_a_later_look(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, node0=[""], node1=["Connection refused"])
    monkeypatch.setattr(machines, "_LOOK_EVERY", 0.5)
    states = iter(["running", "running"])
    with pytest.raises(HvdctlError, match=r"node1\.machine has ended"):
        machines.wait(known, two(), Silent(), lambda name: {"node1": next(states, "stopped")}, patience=20)


WAITS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_machines import two
from hvdctl import machines
from hvdctl.cluster import Cluster
from hvdctl.progress import Silent
machines.wait(Cluster("demo"), two(), Silent(), None)
"""


def test_ctrl_c_ends_the_wait_at_once(known: Cluster, tmp_path: Path, on_path: Callable[[Path], None]) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/asked\nexec sleep 29\n")
    ssh.chmod(0o755)
    on_path(ssh.parent)
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(Path(__file__).parent)], stderr=subprocess.PIPE, text=True
    )
    asked = tmp_path / "asked"
    wait_for(lambda: asked.exists() and len(asked.read_text().split()) == 2)
    ends_at_once(waiting, asked)
