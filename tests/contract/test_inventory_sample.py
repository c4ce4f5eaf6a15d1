"""inventory/example.yml is what the code gives for a cluster of three nodes, and Ansible reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml
from hvdctl import inventory
from hvdctl.cluster import Node

FOLDER = Path(__file__).parents[2] / "inventory"
EXAMPLE = FOLDER / "example.yml"
SSH_CONFIG = Path("/home/me/.local/share/hvdctl/demo/ssh/config")


def node(index: int) -> Node:
    return Node(
        id=f"id{index}",
        name=f"node{index}",
        role="worker" if index else "head",
        kind="machine",
        address=f"198.51.100.{index + 2}",
        private_address=f"192.168.0.{index + 2}",
        ssh_user="me",
        ssh_port=22,
        ssh_proxy=None,
        slots=1,
        gpus=0,
    )


def test_the_example_is_what_the_code_gives() -> None:
    hosts = inventory.inventory("demo", [node(index) for index in range(3)], SSH_CONFIG)
    assert EXAMPLE.read_text() == yaml.safe_dump(hosts, sort_keys=False)


def test_ansible_reads_the_example() -> None:
    argv: list[str | Path] = [Path(sys.executable).with_name("ansible-inventory"), "-i", EXAMPLE, "--list"]
    told = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert told["head"]["hosts"] == ["node0"]
    assert told["workers"]["hosts"] == ["node1", "node2"]
    assert told["_meta"]["hostvars"]["node2"]["hvd_role"] == "worker"


def test_every_group_and_variable_is_described() -> None:
    described = (FOLDER / "README.md").read_text()
    tree = yaml.safe_load(EXAMPLE.read_text())["all"]
    for name in (*tree["children"], *tree["hosts"]["node0"], *tree["vars"]):
        assert f"| `{name}` |" in described, name
