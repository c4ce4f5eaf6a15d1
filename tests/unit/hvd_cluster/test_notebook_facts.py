"""What the head knows of its cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hvd_cluster as hc
import pytest
from hvd_cluster.facts import facts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HVD_CLUSTER_FILE", raising=False)
    monkeypatch.setenv("HVD_CONFIG", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "name").write_text("node0\n")
    return tmp_path


def described(home: Path, text: str) -> None:
    (home / ".hvdctl").mkdir()
    (home / ".hvdctl" / "cluster.json").write_text(text)


def test_nodes_are_a_list_and_a_table(home: Path) -> None:
    nodes = [
        {"name": "node0", "role": "head", "slots": 2, "gpus": 1, "address": "10.0.0.1"},
        {"name": "node1", "role": "worker", "slots": 2, "gpus": 1, "address": "10.0.0.2"},
    ]
    described(home, json.dumps({"nodes": nodes, "net": None, "cpus": None, "interface": None}))
    found = hc.nodes()
    assert found.slots == 4
    assert found[0] == hc.Node("node0", "head", 2, 1, "10.0.0.1", here=True)
    assert [node.here for node in found] == [True, False]
    assert repr(found).splitlines() == [
        "node   role    slots  GPUs  address",
        "node0  head    2      1     10.0.0.1  this notebook",
        "node1  worker  2      1     10.0.0.2",
    ]
    assert found._repr_html_().count("<tr>") == 3


def test_names_are_no_markup(home: Path) -> None:
    described(home, json.dumps({"nodes": [{"name": "<b>", "slots": 1}]}))
    assert "<b>" not in hc.nodes()._repr_html_()


def test_without_the_file_the_hostfile_tells_the_nodes(home: Path) -> None:
    (home / "hostfile").write_text("# of hvdctl\nnode0 slots=2\n\nnode1\n")
    assert [(node.name, node.role, node.slots, node.here) for node in hc.nodes()] == [
        ("node0", "head", 2, True),
        ("node1", "worker", 1, False),
    ]
    assert facts().env == {}


def test_what_is_no_node_says_so(home: Path) -> None:
    with pytest.raises(hc.ClusterError, match=r"no node of a cluster.*hvdctl jupyter"):
        hc.nodes()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"nodes": []}', '{"nodes": [{"name": "node0"}]}'])
def test_a_file_that_is_not_hvdctls_is_named(home: Path, text: str) -> None:
    described(home, text)
    with pytest.raises(hc.ClusterError, match=r"cluster.json.*remove it: ~/hostfile serves"):
        hc.nodes()


def test_the_import_loads_nothing_that_ranks_do_without() -> None:
    heavy = {"IPython", "matplotlib", "numpy", "torch", "horovod", "cloudpickle", "pydantic", "hvdctl", "subprocess"}
    code = f"import sys, hvd_cluster; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert [name for name in hc.__all__ if not getattr(hc, name).__doc__ and "extension" not in name] == []
    with pytest.raises(AttributeError, match=r"has no 'train'; it has .*run"):
        hc.train  # noqa: B018
