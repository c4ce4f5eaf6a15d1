"""Configuration files and checks of a node."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from agent_node import Node


@pytest.fixture
def home(node: Node, tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    node.env |= {"HOME": str(folder), "HVD_CONFIG": str(tmp_path / "etc")}
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_apply_writes_what_differs(node: Node, home: Path, tmp_path: Path) -> None:
    files = [
        {"path": "~/.ssh/config", "content": "Host node0\n", "mode": "0600"},
        {"path": str(tmp_path / "etc" / "deep" / "hostfile"), "content": "node0 slots=2\n", "mode": "0644"},
    ]
    assert node.ask("apply", stdin={"files": files})["changed"] is True
    assert (home / ".ssh" / "config").read_text() == "Host node0\n"
    assert (mode(home / ".ssh"), mode(home / ".ssh" / "config")) == (0o700, 0o600)
    assert node.ask("apply", stdin={"files": files}) == {"changed": False, "paths": []}
    (home / ".ssh" / "config").chmod(0o644)
    assert node.ask("apply", stdin={"files": files})["paths"] == [str(home / ".ssh" / "config")]
    assert mode(home / ".ssh" / "config") == 0o600
    assert [path.name for path in (home / ".ssh").iterdir()] == ["config"]


@pytest.mark.parametrize("path", ["/tmp/x", "~/../x", "relative", "/etc/passwd", "~/link/x"])
def test_apply_stays_in_its_folders(node: Node, home: Path, path: str) -> None:
    (home / "link").symlink_to("/tmp")
    good = {"path": "~/good", "content": "", "mode": "0644"}
    done = node.call("apply", stdin={"files": [good, {"path": path, "content": "", "mode": "0644"}]})
    assert done.returncode == 2
    assert "is neither below" in json.loads(done.stdout)["error"]
    assert not (home / "good").exists()


@pytest.mark.parametrize("entry", [{}, {"path": "~/a", "content": "", "mode": "rw"}, "x"])
def test_apply_refuses_nonsense(node: Node, home: Path, entry: Any) -> None:
    assert "a file is {path" in json.loads(node.call("apply", stdin={"files": [entry]}).stdout)["error"]


def test_apply_makes_a_link_to_a_folder_of_the_share(node: Node, home: Path, tmp_path: Path) -> None:
    share = tmp_path / "share"
    link = {"path": "~/python", "folder": str(share / "one" / "python")}
    asked = {"files": [], "links": [link]}
    assert node.ask("apply", stdin=asked) == {"changed": True, "paths": [str(home / "python")]}
    assert (home / "python").resolve() == share / "one" / "python"
    assert (home / "python").is_dir()
    assert node.ask("apply", stdin=asked) == {"changed": False, "paths": []}
    other = {"files": [], "links": [link | {"folder": str(share / "two")}]}
    assert node.ask("apply", stdin=other)["changed"] is True
    assert (home / "python").resolve() == share / "two"
    # Neither a share that can't be written to nor what the user has there is a reason to fail.
    (tmp_path / "file").touch()
    node.ask("apply", stdin={"files": [], "links": [link | {"folder": str(tmp_path / "file" / "x")}]})
    (home / "python").unlink()
    (home / "python").mkdir()
    assert node.ask("apply", stdin=asked)["changed"] is False
    assert not (home / "python").is_symlink()


@pytest.mark.parametrize("entry", [{}, "x", {"path": "/tmp/x", "folder": "/a"}, {"path": "~/x", "folder": "a"}])
def test_apply_refuses_links_that_lead_astray(node: Node, home: Path, entry: Any) -> None:
    done = node.call("apply", stdin={"files": [], "links": [entry]})
    assert done.returncode == 2
    assert list(home.iterdir()) == []


def test_apply_names_nodes_in_the_hosts_file_and_leaves_the_rest(node: Node, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n10.0.0.2 a1b2c3")
    inode = file.stat().st_ino
    node.env["HVD_HOSTS"] = str(file)
    named = {"files": [], "hosts": [["10.0.0.2", "node0"], ["10.0.0.3", "node1"]]}
    assert node.ask("apply", stdin=named) == {"changed": True, "paths": [str(file)]}
    assert node.ask("apply", stdin=named)["changed"] is False
    with file.open("a") as more:
        more.write("10.9.9.9 later\n")
    node.ask("apply", stdin={"files": [], "hosts": [["10.0.0.7", "node0"]]})
    assert [line for line in file.read_text().splitlines() if not line.startswith("#")] == [
        "127.0.0.1 localhost",
        "10.0.0.2 a1b2c3",
        "10.0.0.7 node0",
        "10.9.9.9 later",
    ]
    assert file.stat().st_ino == inode, "an engine has mounted this very file"
    node.env["HVD_HOSTS"] = str(tmp_path / "gone" / "hosts")
    assert "can't name the nodes" in json.loads(node.call("apply", stdin=named).stdout)["error"]


def test_a_node_knows_its_name_where_the_host_name_is_another(node: Node, home: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "name").write_text("node7\n")
    (tmp_path / "hostfile").touch()
    share = tmp_path / "share"
    share.mkdir()
    asked = {
        "share": str(share),
        "interface": "lo",
        "hostfile": str(tmp_path / "hostfile"),
        "nonce": "n",
        "workers": [],
    }
    node.ask("verify", stdin=asked)
    assert (share / ".hvdctl" / "n").read_text() == "node7\n"


@pytest.fixture
def wanted(node: Node, tmp_path: Path) -> dict[str, Any]:
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "hostfile").touch()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "hvd-link").write_text('#!/bin/sh\n[ "$2" = show ] && echo 100000000\n')
    (bin_folder / "hvd-link").chmod(0o755)
    node.env["PATH"] = f"{bin_folder}:{node.env['PATH']}"
    return {
        "share": str(share),
        "nonce": "abc",
        "rate": 100_000_000,
        "interface": "eth0",
        "peers": ["localhost"],
        "hostfile": str(tmp_path / "hostfile"),
    }


def test_verify(node: Node, wanted: dict[str, Any]) -> None:
    assert node.ask("verify", stdin=wanted | {"workers": []}) == {"ok": True, "problems": []}
    assert node.ask("verify", stdin=wanted) == {"ok": True, "problems": []}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nonce": "other"}, "is not the one the head writes to"),
        ({"share": "/no/such/share"}, "/no/such/share is not there"),
        ({"rate": None}, "the link rate of eth0 is 100000000, not none"),
        ({"rate": 5}, "the link rate of eth0 is 100000000, not 5"),
        ({"hostfile": "/no/hostfile"}, "/no/hostfile is missing"),
        ({"peers": ["no-such-node.invalid"]}, "the name no-such-node.invalid doesn't resolve"),
    ],
)
def test_verify_names_the_problem(node: Node, wanted: dict[str, Any], change: dict[str, Any], problem: str) -> None:
    node.ask("verify", stdin=wanted | {"workers": []})
    found = node.ask("verify", stdin=wanted | change)
    assert found["ok"] is False
    assert len(found["problems"]) == 1 and problem in found["problems"][0]


def test_the_head_asks_every_worker(node: Node, wanted: dict[str, Any], tmp_path: Path) -> None:
    """A small ssh in place of the network: what it is to run, it runs here."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(
        '#!/bin/sh\nfor last; do :; done\ncase "$*" in *127.0.0.2*) echo refused >&2; exit 255;; esac\neval "$last"\n'
    )
    ssh.chmod(0o755)
    assert node.ask("verify", stdin=wanted | {"workers": ["127.0.0.1"]}) == {"ok": True, "problems": []}
    found = node.ask("verify", stdin=wanted | {"workers": ["127.0.0.1", "127.0.0.2"], "rate": 5})
    assert found["problems"] == [
        "the link rate of eth0 is 100000000, not 5",
        "127.0.0.1: the link rate of eth0 is 100000000, not 5",
        "127.0.0.2: no answer over SSH: refused",
    ]


def test_doctor_tells_what_does_not_load(node: Node, tmp_path: Path) -> None:
    build = tmp_path / "build.json"
    node.env["HVD_BUILD"] = str(build)
    assert "No such file" in node.ask("doctor")["problems"][0]
    build.write_text('{"framework": "tensorflow"}')
    found = node.ask("doctor")
    assert (found["ok"], found["framework"]) == (False, "tensorflow")
    assert "horovod.tensorflow doesn't load" in found["problems"][0]


def test_unknown_verb_and_help(node: Node) -> None:
    assert node.call("fly").returncode == 2
    assert "submit" in node.call("--help").stdout
    assert "no JSON" in json.loads(node.call("apply").stdout)["error"]
