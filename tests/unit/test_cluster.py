from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hvdctl.cluster import Cluster, Node, command_line, digest, known, write
from hvdctl.errors import LockedError, UsageError
from hvdctl.spec import Spec
from support import hold, make_nodes, refuse, wait_for


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_looking_at_a_cluster_creates_nothing(tmp_path: Path) -> None:
    cluster = Cluster("demo")
    assert not cluster.exists
    assert cluster.stored_spec() is None
    assert cluster.nodes() == []
    assert cluster.record("configure") == {}
    assert known() == []
    assert not (tmp_path / "clusters").exists()


def test_what_was_stored_is_read_back() -> None:
    cluster = Cluster("demo")
    spec, nodes = Spec(name="demo", nodes=3, net=10**9), make_nodes(3)
    cluster.store_spec(spec)
    cluster.store_nodes(nodes)
    cluster.complete("configure", 1.23456, digest="x")
    again = Cluster("demo")
    assert again.spec() == spec
    assert again.nodes() == nodes
    assert again.record("configure")["digest"] == "x"
    again.forget("configure")
    assert again.record("configure") == {}


def test_only_the_owner_can_look_into_a_cluster(cluster: Cluster) -> None:
    assert mode(cluster.folder) == "0o700"
    assert mode(cluster.ssh) == "0o700"
    for file in (cluster.key().private, cluster.host_key("node0").private, cluster.folder / "spec.json"):
        assert mode(file) == "0o600", file


def test_keys_of_a_newer_version_are_passed_over(cluster: Cluster) -> None:
    spec = json.loads((cluster.folder / "spec.json").read_text())
    (cluster.folder / "spec.json").write_text(json.dumps({**spec, "later": 1}))
    nodes = json.loads((cluster.folder / "nodes.json").read_text())
    nodes["nodes"][0]["later"] = 1
    (cluster.folder / "nodes.json").write_text(json.dumps(nodes))
    assert cluster.spec().nodes == 2
    assert cluster.nodes()[0].name == "node0"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', '{"nodes": [{"name": "node0"}]}', "\x00", "{}{}"])
@pytest.mark.parametrize("name", ["spec.json", "nodes.json"])
def test_a_corrupt_file_is_named_and_kept(cluster: Cluster, name: str, text: str) -> None:
    file = cluster.folder / name
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        _ = cluster.spec(), cluster.nodes()
    assert str(file) in refused.value.message
    assert "hvdctl down --name demo --force" in refused.value.hint
    assert file.read_text() == text


@pytest.mark.parametrize("name", ["spec.json", "nodes.json", "phases.json"])
def test_a_file_that_can_not_be_read_is_named(cluster: Cluster, name: str) -> None:
    (cluster.folder / name).unlink()
    (cluster.folder / name).mkdir()
    with pytest.raises(UsageError, match=rf"{name} can't be read: Is a directory"):
        _ = cluster.spec(), cluster.nodes(), cluster.record("configure")
    assert cluster.exists


def test_a_folder_that_can_not_be_looked_into_is_known_and_what_is_no_cluster_is_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alpha", "closed", ".owner"):
        Cluster(name).store_spec(Spec(name="alpha"))
    (cluster.folder.parent / "a-file").write_text("")
    refuse(monkeypatch, Cluster("closed").folder, Cluster(".owner").folder)
    assert [one.name for one in known()] == ["alpha", "closed", "demo"]
    with pytest.raises(UsageError, match=r"closed/spec\.json can't be read: Permission denied"):
        Cluster("closed").spec()


@pytest.mark.parametrize("text", ["{", "[]", '{"configure": []}', '{"configure": "yes"}'])
def test_a_corrupt_record_of_phases_is_named(cluster: Cluster, text: str) -> None:
    (cluster.folder / "phases.json").write_text(text)
    with pytest.raises(UsageError, match=r"phases\.json is not what hvdctl wrote"):
        cluster.record("configure")


def test_the_spec_of_another_cluster_is_not_taken_for_its_own(cluster: Cluster) -> None:
    cluster.store_spec(Spec(name="other"))
    with pytest.raises(UsageError, match="it is of cluster 'other'"):
        cluster.spec()


def test_a_second_process_is_refused_and_the_holder_named(tmp_path: Path) -> None:
    holder = hold()
    with pytest.raises(LockedError) as refused, Cluster("demo").locked("down"):
        raise AssertionError("two processes hold one cluster")
    assert refused.value.exit_code == 3
    assert f"`hvdctl up --nodes 10` (process {holder.pid}" in refused.value.message
    with Cluster("other").locked("up"):
        pass
    holder.communicate("")
    with Cluster("demo").locked("down"):
        pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    holder = hold()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with Cluster("demo").locked("up"):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1, "command": "up", "since": "x"}'])
def test_a_holder_that_left_no_readable_name_still_holds(tmp_path: Path, text: str) -> None:
    holder = hold()
    (Cluster("demo").folder / "lock").write_text(text)
    with pytest.raises(LockedError, match="held by another hvdctl"), Cluster("demo").locked("down"):
        pass
    holder.communicate("")


def test_remove_leaves_nothing_but_what_was_measured(cluster: Cluster) -> None:
    (cluster.runs / "1").mkdir(parents=True)
    (cluster.runs / "1" / "run.json").write_text("{}")
    (cluster.folder / "bench").mkdir()
    with cluster.locked("down"):
        cluster.remove()
    assert [entry.name for entry in cluster.folder.iterdir()] == ["runs"]
    assert not cluster.exists


def test_remove_leaves_no_empty_folder(cluster: Cluster) -> None:
    with cluster.locked("down"):
        cluster.remove()
    assert not cluster.folder.exists()


def test_the_lock_is_the_last_to_go(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes a new lock must find nothing that the old holder would still delete."""
    gone: list[str] = []
    unlink = Path.unlink

    def note(path: Path, missing_ok: bool = False) -> None:
        gone.append(path.name)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    with cluster.locked("down"):
        cluster.remove()
    assert gone[-2:] == ["spec.json", "lock"]
    assert gone.count("lock") == 1


def test_a_lock_on_a_removed_file_is_no_lock(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `down` may remove the file between our opening and our locking it; the lock would then keep nobody out."""
    flock = fcntl.flock

    def too_late(file: Any, how: int) -> None:
        flock(file, how)
        (cluster.folder / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(LockedError), cluster.locked("up"):
        pass


def test_known_lists_clusters_with_a_spec_only(cluster: Cluster) -> None:
    Cluster("alpha").store_spec(Spec(name="alpha"))
    (Cluster("refused").folder / "logs").mkdir(parents=True)
    assert [one.name for one in known()] == ["alpha", "demo"]


def test_no_cluster_has_a_name_that_is_too_long_for_a_folder() -> None:
    assert not Cluster("x" * 300).exists


def test_write_is_all_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write(file, "new \ud800")
    assert file.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hvdctl.cluster import write\n"
        f"while True: write(Path({str(tmp_path / 'f')!r}), '[' + '1,' * 200000 + '1]')"
    )
    writer = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_for((tmp_path / "f").exists)
        for _ in range(15):
            json.loads((tmp_path / "f").read_text())
    finally:
        writer.kill()
        writer.wait()
    json.loads((tmp_path / "f").read_text())


def test_a_digest_changes_with_names_and_contents_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_text("2")
    first = digest(tmp_path)
    (tmp_path / "sub" / "__pycache__").mkdir()
    (tmp_path / "sub" / "__pycache__" / "x.pyc").write_text("3")
    os.utime(tmp_path / "a", (0, 0))
    assert digest(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "c")
    assert digest(tmp_path) != first
    assert digest("ab", "c") != digest("a", "bc")
    assert digest(b"x") == digest("x")


def test_a_node_is_read_from_what_terraform_gives() -> None:
    data: dict[str, Any] = {"id": "1", "name": "n", "role": "head", "kind": "container"}
    data |= {"address": "a", "private_address": "b"}
    data |= {"ssh_user": "u", "ssh_port": 22, "ssh_proxy": None, "slots": 1, "gpus": 0, "more": True}
    assert Node.read(data).ssh_port == 22


@pytest.mark.parametrize("words", [["up", "--env", "TOKEN=hush"], ["up", "--env=TOKEN=hush", "-y"]])
def test_a_lock_keeps_no_secret(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hvdctl", *words])
    assert "hush" not in command_line()
    assert "TOKEN=..." in command_line()
