"""What the golden cases can't say: that the programs which read the files agree with them."""

from __future__ import annotations

import base64
import json
import os
import random
from pathlib import Path

import pytest
from hvdctl import inventory, process
from hvdctl.cluster import Cluster
from support import make_nodes


def test_ssh_reads_the_configuration_as_meant(cluster: Cluster) -> None:
    told = process.capture([process.tool("ssh"), "-G", "-F", cluster.ssh_config, "node1"]).stdout
    read = dict(line.split(" ", 1) for line in told.splitlines() if " " in line)
    assert read["hostname"] == "10.99.0.3"
    assert read["port"] == "2222"
    assert read["user"] == "hvd"
    assert read["hostkeyalias"] == "node1.demo.hvdctl"
    assert read["stricthostkeychecking"] in {"true", "yes"}
    assert read["passwordauthentication"] == "no"
    assert read["userknownhostsfile"] == str(cluster.known_hosts)


def test_a_home_with_a_space_is_read_by_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "my clusters"))
    cluster = Cluster("demo")
    text = inventory.ssh_config("demo", make_nodes(1), cluster.key().private, cluster.known_hosts)
    cluster.ssh_config.write_text(text)
    told = process.capture([process.tool("ssh"), "-G", "-F", cluster.ssh_config, "node0"]).stdout
    assert f"identityfile {cluster.key().private}\n" in told


def test_every_host_key_is_known_under_its_alias(cluster: Cluster) -> None:
    for node in ("node0", "node1"):
        alias = inventory.alias("demo", node)
        found = process.capture([process.tool("ssh-keygen"), "-F", alias, "-f", str(cluster.known_hosts)]).stdout
        assert cluster.host_key(node).public in found


def test_strict_checking_stays_on_for_this_machine_and_for_the_nodes() -> None:
    nodes = make_nodes(3)
    here = inventory.ssh_config("demo", nodes, Path("key"), Path("known"))
    assert here.count("StrictHostKeyChecking yes") == 3
    there = inventory.node_ssh_config("demo", nodes)
    assert "StrictHostKeyChecking yes" in there.split("Host *")[1]
    assert "StrictHostKeyChecking no" not in here + there


def test_the_files_of_hundreds_of_nodes_fit_on_a_command_line() -> None:
    nodes = make_nodes(512)
    host_keys = {node.name: f"ssh-ed25519 {base64.b64encode(random.randbytes(51)).decode()}" for node in nodes}
    word = inventory.packed(inventory.bundle("a-name-of-two-and-thirty-letters", nodes, host_keys, "ssh-ed25519 KEY"))
    assert len(word) < 128 * 1024


@pytest.mark.parametrize("np", range(1, 13))
def test_a_layout_places_every_rank_and_no_more_than_a_node_takes(np: int) -> None:
    nodes = make_nodes(4, slots=3)
    placed = inventory.layout(nodes, np)
    assert sum(taken for _, taken in placed) == np
    assert all(0 < taken <= 3 for _, taken in placed)
    assert [name for name, _ in placed] == [node.name for node in nodes][: len(placed)]


def test_ansible_reads_the_inventory(tmp_path: Path) -> None:
    import sys

    file = tmp_path / "hosts.yml"
    file.write_text(json.dumps(inventory.inventory("demo", make_nodes(3), Path("/some where/config"))))
    program = Path(sys.executable).parent / "ansible-inventory"
    env = {**os.environ, "HOME": str(tmp_path), "ANSIBLE_HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = process.capture([program, "-i", file, "--list"], env=env)
    told = json.loads(done.stdout)
    assert told["head"]["hosts"] == ["node0"]
    assert told["workers"]["hosts"] == ["node1", "node2"]
    assert told["containers"]["hosts"] == ["node0", "node1", "node2"]
    assert told["_meta"]["hostvars"]["node1"]["ansible_ssh_common_args"] == '-F "/some where/config"'
