"""The site `static` on machines that hvdctl has set up: what stands there, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdctl import jobs, owner
from hvdctl.cluster import Cluster, Node, write
from hvdctl.progress import Silent
from hvdctl.sites import static
from hvdctl.spec import parse
from support import program


def stand(ids: str = "static/h:22/0", count: int = 2, provider: str = "static") -> Cluster:
    """The folder of a cluster on machines."""
    cluster = Cluster("demo")
    given = {"hosts": [{"address": f"h{i}"} for i in range(count)]} if provider == "static" else {}
    cluster.store_spec(parse({"name": "demo", "provider": provider, "nodes": count, "options": given}, "x"))
    made: list[dict[str, Any]] = [
        {"id": ids, "name": f"node{i}", "role": "worker" if i else "head", "kind": "machine", "address": f"h{i}"}
        | {"private_address": f"10.0.0.{i}", "ssh_user": "me", "ssh_port": 22, "ssh_proxy": None, "slots": 1, "gpus": 0}
        for i in range(count)
    ]
    cluster.store_nodes([Node.read(node) for node in made])
    write(cluster.ssh_config, "".join(f"Host node{i}.machine\n  HostName h{i}\n\nHost node{i}\n" for i in range(count)))
    return cluster


@pytest.fixture
def machines(tmp_path: Path, fake_nodes: Path, on_path: Callable[[Path], None]) -> Path:
    """Machines that have what lies in the folders `nodeN.machine` of this one, and programs to ask for it."""
    tools = tmp_path / "tools"
    at = '"$FAKE_NODES/$NODE'
    program(
        tools,
        "sudo",
        f'[ -e {at}/no-sudo" ] && exit 1\n[ "$1" = -n ] || exit 9\nshift\n'
        f'case $1 in cat) for f in "$2" "$3"; do [ ! -f {at}$f" ] || cat {at}$f"; done; exit;; '
        f'test) exec test "$2" {at}$3";; ls) exec ls {at}$2";; esac\nexec "$@"',
    )
    program(
        tools,
        "docker",
        f'[ "$1 $2 $3 $4" = "ps -a --filter label=hvdctl.cluster=demo" ] || exit 9\n[ -e {at}/docker" ] || exit 127\n'
        f'while read -r name state; do echo "$6" | sed "s/{{{{.Names}}}}/$name/; s/{{{{.State}}}}/$state/"; done'
        f' <{at}/docker"',
    )
    program(tools, "grep", f'case $3 in /proc/mounts) set -- -q "$2" {at}/mounts";; esac\nexec /bin/grep "$@"')
    program(tools, "nft", f'[ "$*" = "list table inet hvdctl" ] && [ -e {at}/nft" ]')
    program(tools, "systemctl", f'cat {at}/units"')
    on_path(tools)
    for name in ("node0.machine", "node1.machine"):
        (fake_nodes / name).mkdir()
    return fake_nodes


def test_observe_tells_the_container_of_each_machine(machines: Path) -> None:
    stand(count=4)
    for index, state in enumerate(["hvdctl-demo running\n", "hvdctl-demo exited\n", ""]):
        (machines / f"node{index}.machine").mkdir(exist_ok=True)
        (machines / f"node{index}.machine" / "docker").write_text(state)
    (machines / "down").write_text("node3.machine\n")
    assert static.observe("demo") == {
        "node0": "running",
        "node1": "exited",
        "node2": "no container",
        "node3": "unreachable",
    }


def test_one_login_answers_for_one_machine(machines: Path) -> None:
    cluster = stand(count=2)
    (machines / "node1.machine" / "docker").write_text("hvdctl-demo running\n")
    assert static.observe("demo", ["node1"]) == {"node1": "running"}
    (login,) = (machines / "ssh.log").read_text().splitlines()
    assert login.startswith("node1.machine ")
    assert jobs.lost(cluster, ["node1"]) == []
    assert len((machines / "ssh.log").read_text().splitlines()) == 2
    assert (static.observe("demo", []), static.observe("demo", ["node7"])) == ({}, {})
    assert len((machines / "ssh.log").read_text().splitlines()) == 2


def test_a_machine_without_an_engine_has_no_container(machines: Path) -> None:
    stand(count=1)
    assert static.observe("demo") == {"node0": "no container"}


def test_nothing_is_asked_for_a_cluster_that_is_not_ours(machines: Path) -> None:
    assert (static.observe("demo"), static.leftovers("demo"), static.clusters()) == ({}, [], [])
    stand(ids="i-0123456789")  # of another provider of machines
    assert (static.observe("demo"), static.leftovers("demo")) == ({}, [])
    assert not (machines / "ssh.log").exists()


def test_leftovers_are_told_by_kind_and_node(machines: Path) -> None:
    stand()
    full = machines / "node0.machine"
    for folder in ("etc/hvdctl/demo", "srv/hvdctl/demo", "etc/exports.d"):
        (full / folder).mkdir(parents=True)
    (full / "etc/exports.d/hvdctl-demo.exports").touch()
    (full / "docker").write_text("hvdctl-demo exited\n")
    (full / "mounts").write_text("head:/srv /shared nfs4 rw 0 0\n")
    (full / "nft").touch()
    (full / "units").write_text("hvdctl-link.service enabled enabled\nhvdctl-firewall.service enabled enabled\n")
    assert static.leftovers("demo") == [
        "container node0: hvdctl-demo",
        "folder node0: /etc/hvdctl/demo",
        "mount node0: /shared",
        "export node0: /etc/exports.d/hvdctl-demo.exports",
        "volume node0: /srv/hvdctl/demo",
        "table node0: inet hvdctl",
        "unit node0: hvdctl-link.service",
        "unit node0: hvdctl-firewall.service",
    ]


@pytest.mark.parametrize("file", ["etc/hvdctl/demo/owner", "srv/hvdctl/.demo.owner"])
@pytest.mark.parametrize("whose", ["ours", "older", "theirs"])
def test_what_another_owners_cluster_of_the_name_has_is_not_ours(machines: Path, whose: str, file: str) -> None:
    """The marks of earlier versions are digests of the cluster's key."""
    cluster = stand(count=2)
    cluster.key()
    marks = {"ours": " ".join(owner.this().labels.values()), "older": cluster.key_mark(), "theirs": "0a ada@lab:/x"}
    taken = machines / "node0.machine"
    for folder in ("etc/hvdctl/demo", "srv/hvdctl/demo"):
        (taken / folder).mkdir(parents=True)
    (taken / file).write_text(f"{marks[whose]}\n")
    (taken / "docker").write_text("hvdctl-demo running\n")
    (taken / "units").touch()
    (machines / "node1.machine" / "units").touch()
    assert bool(static.leftovers("demo")) == (whose != "theirs")


def test_machines_that_another_owner_has_taken_are_known(machines: Path) -> None:
    cluster = stand(count=3)
    cluster.key()
    (machines / "node2.machine").mkdir()
    for index, mark in enumerate(("0a ada@lab:/x", cluster.key_mark())):
        (machines / f"node{index}.machine/etc/hvdctl/demo").mkdir(parents=True)
        (machines / f"node{index}.machine/etc/hvdctl/demo/owner").write_text(f"{mark}\n")
    assert static.ceded("demo") == ["node0"]


def test_what_another_cluster_has_on_a_machine_is_not_ours(machines: Path) -> None:
    """Nor is a folder /shared of the machine's own."""
    stand(count=1)
    taken = machines / "node0.machine"
    (taken / "etc/hvdctl/other").mkdir(parents=True)
    (taken / "mounts").write_text("nas:/x /shared nfs4 rw 0 0\n")
    (taken / "nft").touch()
    (taken / "units").write_text("hvdctl-link.service enabled\n")
    assert static.leftovers("demo") == []


def test_a_machine_that_can_not_be_asked_counts_as_left(machines: Path) -> None:
    stand()
    (machines / "down").write_text("node0.machine\n")
    (machines / "node1.machine" / "no-sudo").touch()
    assert static.leftovers("demo") == [
        "host node0: unreachable, nothing is known of it",
        "host node1: sudo is refused, nothing is known of it",
    ]


@pytest.mark.parametrize(("provider", "count"), [("static", 2), ("local", 0)])
def test_damaged_files_do_not_hide_machines(machines: Path, provider: str, count: int) -> None:
    cluster = stand(provider=provider)
    (cluster.folder / "nodes.json").write_text("{")
    (machines / "down").write_text("node0.machine\nnode1.machine\n")
    assert len(static.leftovers("demo")) == count
    (cluster.folder / "spec.json").write_text("{")
    assert len(static.leftovers("demo")) == 2, "whose they are is not known, so they count"


def test_sweep_leaves_the_machines_alone(machines: Path) -> None:
    stand()
    static.sweep("demo", keep_data=False, step=Silent())
    assert not (machines / "ssh.log").exists()
    assert static.about("demo") == ""
