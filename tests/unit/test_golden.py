"""The pure steps, each held by cases in golden/: what goes in, and every byte that comes out.

UPDATE_GOLDEN=1 writes the outcomes anew; the diff is then to be read like code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hvdctl import inventory, jobs, pipeline
from hvdctl.cluster import Node
from hvdctl.spec import parse

GOLDEN = Path(__file__).parent / "golden"
PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----\nnot a key\n-----END OPENSSH PRIVATE KEY-----\n"
MARK = {"hvdctl.owner": "0123456789abcdef", "hvdctl.owner-name": "me@host:/home/me/clusters"}


def cases(step: str) -> list[Any]:
    return [pytest.param(file, id=file.stem) for file in sorted((GOLDEN / step).glob("*.json"))]


def held(file: Path, outcome: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(outcome)
    assert outcome == file.read_text(), f"{file} holds another outcome"


def as_text(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"


def read_nodes(data: list[dict[str, Any]]) -> list[Node]:
    return [Node.read(node) for node in data]


@pytest.mark.parametrize("case", cases("variables"))
def test_spec_to_terraform_variables(case: Path) -> None:
    spec = parse(json.loads(case.read_text()), source=case.name)
    host_keys = {f"node{i}": (f"ssh-ed25519 HOST{i}", f"/keys/node{i}") for i in range(spec.nodes)}
    key = ("ssh-ed25519 USER", "/keys/id")
    outcome = pipeline.variables(spec, image="registry/image:tag", key=key, host_keys=host_keys, labels=MARK)
    held(case.with_suffix(".tfvars"), as_text(outcome))


@pytest.mark.parametrize("case", cases("nodes"))
def test_nodes_to_inventory_and_files(case: Path) -> None:
    nodes = read_nodes(json.loads(case.read_text()))
    host_keys = {node.name: (node.host_key or f"ssh-ed25519 HOST-{node.name}",) for node in nodes}
    files = case.with_suffix("")
    hosts = inventory.inventory("demo", nodes, Path("/home/me/my clusters/demo/ssh/config"))
    held(files / "hosts.yml", yaml.safe_dump(hosts, sort_keys=False))
    key, known = Path("/home/me/my clusters/demo/ssh/id_ed25519"), Path("/home/me/my clusters/demo/ssh/known_hosts")
    held(files / "ssh_config", inventory.ssh_config("demo", nodes, key, known))
    held(files / "known_hosts", inventory.known_hosts("demo", host_keys))
    held(files / "hostfile", inventory.hostfile(nodes))
    held(files / "bundle", as_text(inventory.bundle("demo", nodes, host_keys, "ssh-ed25519 CLUSTER")))


@pytest.mark.parametrize("case", cases("layout"))
def test_layout(case: Path) -> None:
    asked = json.loads(case.read_text())
    nodes = [
        Node(f"id{i}", f"node{i}", "head", "container", "", "", "hvd", 22, None, slots, 0)
        for i, slots in enumerate(asked["slots"])
    ]
    outcome = {np: " ".join(f"{name}:{taken}" for name, taken in inventory.layout(nodes, np)) for np in asked["np"]}
    held(case.with_suffix(".layout"), as_text(outcome))


@pytest.mark.parametrize("case", cases("request"))
def test_request_of_a_job(case: Path) -> None:
    asked = json.loads(case.read_text())
    job = jobs.Job(**asked["job"])
    spec = parse(asked["spec"], source=case.name)
    nodes = read_nodes(asked["nodes"])
    outcome = jobs.request(job, spec, nodes, "/shared/work/project-0123abcd", asked["cores"])
    held(case.with_suffix(".request"), as_text(outcome))
