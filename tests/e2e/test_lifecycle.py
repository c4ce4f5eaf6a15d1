"""A cluster from nothing to nothing, and from every half-made state."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hvdctl import engine
from hvdctl.sites import local

from tests.e2e.conftest import Hvdctl, remove, wait_for

pytestmark = pytest.mark.docker


def test_up_again_scale_and_down(hvdctl: Hvdctl) -> None:
    assert "4 to create" in hvdctl("plan", "--nodes", "2").out
    assert hvdctl.left() == []

    first = hvdctl("up", "--nodes", "2", "--json").data
    assert [node["name"] for node in first["nodes"]] == ["node0", "node1"]
    assert len(hvdctl.left()) == 4, "two containers, a network and a volume"
    ids = hvdctl.ids()

    again = hvdctl("up", "--json").data
    assert again["changes"] == {}
    assert again["configured"] is False
    assert hvdctl.ids() == ids
    assert "nothing to do" in hvdctl("plan").out

    hvdctl("scale", "--nodes", "3")
    grown = hvdctl.ids()
    assert {name: grown[name] for name in ids} == ids
    assert "sum 6 of 3" in hvdctl("run", "--", "python", "allreduce.py").out

    refused = hvdctl("scale", "--nodes", "1", code=2)
    assert "-y" in refused.err
    assert hvdctl.ids() == grown
    hvdctl("scale", "--nodes", "1", "-y")
    assert hvdctl.ids() == {"node0": ids["node0"]}
    assert "sum 1 of 1" in hvdctl("run", "--", "python", "meet.py").out

    listed = json.loads(_list(hvdctl))
    assert [(row["cluster"], row["state"]) for row in listed if row["cluster"] == hvdctl.name] == [(hvdctl.name, "up")]
    assert "-y" in hvdctl("down", code=2).err
    assert "0 left" in hvdctl("down", "-y", "--verify").out
    assert hvdctl.left() == []
    assert sorted(entry.name for entry in hvdctl.folder.iterdir()) == ["runs"], "the user's results stay"
    assert "no cluster" in hvdctl("down", "-y", code=2).err


def test_a_lost_node_is_told_and_made_anew_alone(hvdctl: Hvdctl) -> None:
    hvdctl("up", "--nodes", "3")
    ids = hvdctl.ids()
    engine.client().containers.get(local.name_of(hvdctl.name, "node1")).kill()
    told = hvdctl("status", "--json", code=1)
    assert told.data["lost"] == ["node1"]
    assert "lost: node1" in told.err
    assert hvdctl("check", code=1).code == 1
    assert "lost: node1" in hvdctl("run", "--", "true", code=1).err

    made = hvdctl("up", "--json").data
    assert made["changes"] == {"made": ["hvd_container_node.node[1]"]}
    after = hvdctl.ids()
    assert after["node1"] != ids["node1"]
    assert {name: after[name] for name in ("node0", "node2")} == {name: ids[name] for name in ("node0", "node2")}
    assert "sum 6 of 3" in hvdctl("run", "--", "python", "allreduce.py").out

    # The head, and a container that is gone altogether.
    engine.client().containers.get(local.name_of(hvdctl.name, "node0")).remove(force=True)
    assert hvdctl("up", "--json").data["changes"] == {"made": ["hvd_container_node.node[0]"]}
    assert "0 left" in hvdctl("down", "-y").out


def test_the_link_rate_is_changed_in_place_and_measured(hvdctl: Hvdctl) -> None:
    slow = hvdctl("up", "--nodes", "2", "--net", "50m", "--json").data
    ids = hvdctl.ids()
    assert 0.5 * 50e6 < slow["link"]["bits"] < 1.05 * 50e6
    faster = hvdctl("up", "--net", "200m", "--json").data
    assert list(faster["changes"]) == ["changed"]
    assert hvdctl.ids() == ids
    assert 60e6 < faster["link"]["bits"] < 1.05 * 200e6
    engine.client().containers.get(local.name_of(hvdctl.name, "node1")).restart()
    healed = hvdctl("up", "--json").data
    assert healed["changes"] == {"changed": ["hvd_container_node.node[1]"]}, "a restart loses the rate, up sets it"
    free = hvdctl("up", "--net", "none", "--json").data
    assert free["link"] is None
    assert hvdctl.ids() == ids
    shown = hvdctl("exec", "--all", "--json", "--", "hvd-link", "eth0", "show").data
    assert [one["stdout"].strip() for one in shown] == ["none", "none"]


def test_cpus_and_memory_are_changed_in_place(hvdctl: Hvdctl) -> None:
    hvdctl("up", "--nodes", "1", "--cpus", "1.5", "--memory", "1g")
    ids = hvdctl.ids()

    def limits() -> tuple[int, int]:
        host = engine.client().containers.get(local.name_of(hvdctl.name, "node0")).attrs["HostConfig"]
        return host["CpuQuota"], host["Memory"]

    assert limits() == (150_000, 2**30)
    hvdctl("up", "--cpus", "0.5", "--memory", "2g")
    assert limits() == (50_000, 2**31)
    hvdctl("up", "--memory", "none")
    assert limits()[1] > 2**31
    assert hvdctl.ids() == ids


def test_keep_data(hvdctl: Hvdctl) -> None:
    hvdctl("up", "--nodes", "1")
    hvdctl("exec", "--", "sh", "-c", "echo kept > /shared/file")
    down = hvdctl("down", "-y", "--keep-data")
    assert "0 left; kept: volume" in down.out
    hvdctl("up", "--nodes", "1")
    assert hvdctl("exec", "--", "cat", "/shared/file").out == "kept\n"
    assert "0 left" in hvdctl("down", "-y").out
    assert hvdctl.left() == []


def test_a_folder_as_share(hvdctl: Hvdctl, tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o777)
    hvdctl("up", "--nodes", "2", "--share", str(share))
    hvdctl("exec", "node1", "--", "touch", "/shared/from-node1")
    assert (share / "from-node1").exists()
    # Others use the folder too: what they install there does not run in our ranks, what we install does.
    (share / "python").mkdir()
    (share / "python" / "sitecustomize.py").write_text("print('theirs')\n")
    hvdctl("exec", "node0", "--", "sh", "-c", "echo word = 1 > ~/python/of_ours.py")
    python = ("exec", "node1", "--", "python", "-c")
    assert hvdctl(*python, "import of_ours; print(of_ours.word)").out == "1\n"
    hvdctl("down", "-y")
    assert (share / "from-node1").exists()


def test_down_keeps_what_it_could_not_bring_home(hvdctl: Hvdctl, tmp_path: Path) -> None:
    hvdctl("up", "--nodes", "1")
    hvdctl("run", "--workdir", str(tmp_path), "--", "true")
    planted = "mkdir -p /shared/bench/b /shared/runs/2; echo {} >/shared/bench/b/results.jsonl; "
    planted += ": >/shared/runs/2/run.json; ln -s /root /shared/runs/99"
    hvdctl("exec", "--", "sh", "-c", planted)
    assert {row["id"]: row["state"] for row in hvdctl("jobs", "--json").data} == {1: "succeeded", 2: "unreadable"}
    engine.client().containers.get(local.name_of(hvdctl.name, "node0")).kill()
    refused = hvdctl("down", "-y", code=1)
    assert "nothing was removed" in refused.err
    assert f"hvdctl up --name {hvdctl.name}" in refused.err
    assert _engine_has(hvdctl, "volume")
    hvdctl("up")
    assert "0 left" in hvdctl("down", "-y").out
    assert (hvdctl.folder / "bench" / "b" / "results.jsonl").read_text() == "{}\n"
    assert sorted(folder.name for folder in (hvdctl.folder / "runs").iterdir()) == ["1", "2"]


def _engine_has(hvdctl: Hvdctl, kind: str) -> bool:
    return any(thing.startswith(kind) for thing in hvdctl.left())


MOMENTS: dict[str, Callable[[Hvdctl], bool]] = {
    "spec stored": lambda h: (h.folder / "spec.json").exists(),
    "network made": lambda h: _engine_has(h, "network"),
    "first node": lambda h: _engine_has(h, "container"),
    "nodes told": lambda h: (h.folder / "nodes.json").exists(),
    "configuring": lambda h: (h.folder / "ansible" / "artifacts").exists(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_up_goes_on(hvdctl: Hvdctl, moment: str) -> None:
    _kill_up(hvdctl, moment)
    report = hvdctl("up", "--json").data
    assert len(report["nodes"]) == 3, "the three nodes that the killed up was asked for"
    assert len(hvdctl.left()) == 5, "no duplicate and no orphan"
    assert hvdctl("status", "--json").data["state"] == "up"
    assert "0 left" in hvdctl("down", "-y").out


@pytest.mark.parametrize("moment", ["first node", "configuring"])
def test_a_killed_up_is_taken_down(hvdctl: Hvdctl, moment: str) -> None:
    _kill_up(hvdctl, moment)
    assert "0 left" in hvdctl("down", "-y").out
    assert hvdctl.left() == []


def _kill_up(hvdctl: Hvdctl, moment: str) -> None:
    process = hvdctl.start("up", "--nodes", "3", "--net", "100m")
    wait_for(lambda: MOMENTS[moment](hvdctl) or process.poll() is not None)
    process.kill()
    process.communicate()


def test_a_second_up_is_refused_and_names_the_holder(hvdctl: Hvdctl) -> None:
    process = hvdctl.start("up", "--nodes", "2")
    try:
        wait_for(lambda: (hvdctl.folder / "spec.json").exists())
        refused = hvdctl("up", "--nodes", "5", code=3)
        assert f"process {process.pid}" in refused.err
    finally:
        told = process.communicate(timeout=300)[0]
    assert process.returncode == 0, told
    assert len(hvdctl.ids()) == 2


@pytest.mark.parametrize("moment", ["first node", "configuring"])
def test_ctrl_c_in_up_then_up(hvdctl: Hvdctl, moment: str) -> None:
    process = hvdctl.start("up", "--nodes", "3")
    wait_for(lambda: MOMENTS[moment](hvdctl))
    process.send_signal(2)
    told = process.communicate(timeout=300)[0]
    assert process.returncode == 130, told
    assert "interrupted" in told
    assert "Exception" not in told and "Traceback" not in told
    assert len(hvdctl("up", "--json").data["nodes"]) == 3


def test_two_clusters_side_by_side(hvdctl: Hvdctl, request: pytest.FixtureRequest) -> None:
    other = Hvdctl(hvdctl.home)
    request.addfinalizer(lambda: remove(other))
    both = [one.start("up", "--nodes", "2") for one in (hvdctl, other)]
    told = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert "0 left" in other("down", "-y").out
    assert hvdctl("status", "--json").data["state"] == "up"


def test_what_another_made_is_left_alone(hvdctl: Hvdctl) -> None:
    client = engine.client()
    from hvdctl import images

    image = images.reference("pytorch")
    stranger = client.containers.create(image, name=local.name_of(hvdctl.name, "node0"))
    assert stranger.id
    try:
        failed = hvdctl("up", "--nodes", "1", code=1)
        assert "did not make" in failed.err
        assert client.containers.get(stranger.id).name == stranger.name
        assert "0 left" in hvdctl("down", "-y").out
        assert client.containers.get(stranger.id).name == stranger.name
    finally:
        stranger.remove(force=True)


def test_a_missing_image_and_missing_gpus_cost_nothing(hvdctl: Hvdctl) -> None:
    assert "'no/such:image'" in hvdctl("up", "--nodes", "1", "--image", "no/such:image", code=2).err
    assert "no folder" in hvdctl("up", "--nodes", "1", "--share", "/no/such/folder", code=2).err
    assert hvdctl.left() == []
    hvdctl("up", "--nodes", "1")
    ids = hvdctl.ids()
    assert "no/such:image" in hvdctl("up", "--image", "no/such:image", code=2).err
    if "nvidia" not in engine.client().info()["Runtimes"]:
        assert "NVIDIA" in hvdctl("up", "--gpus", "1", code=2).err
    assert "would delete" in hvdctl("up", "--share", "/no/such/folder", code=2).err
    assert hvdctl.ids() == ids
    assert hvdctl("up", "--json").data["changes"] == {}, "a refused spec is not remembered"


def test_no_engine_is_one_clear_line(hvdctl: Hvdctl) -> None:
    told = hvdctl("up", "--nodes", "1", code=4, DOCKER_HOST="unix:///no/engine.sock")
    assert "no Docker engine answers at unix:///no/engine.sock" in told.err
    assert "Traceback" not in told.err
    assert hvdctl.left() == []


def test_a_full_disk_is_one_clear_line(hvdctl: Hvdctl, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tiny], check=True)
    try:
        (tiny / "filler").write_bytes(b"x" * 40_000)
        crowded = Hvdctl(tiny / "home", hvdctl.name)
        told = crowded("up", "--nodes", "2", code=None)
        assert told.code not in (0, None)
        assert "no space left" in told.err.lower()
        assert "Traceback" not in told.err
    finally:
        subprocess.run(["umount", "-l", tiny], check=True)


def test_corrupt_state_loses_nothing(hvdctl: Hvdctl) -> None:
    hvdctl("up", "--nodes", "1")
    ids = hvdctl.ids()
    state = hvdctl.folder / "terraform" / "terraform.tfstate"
    good = state.read_text()
    state.write_text("{ not json")
    for verb in (["up"], ["plan"], ["down", "-y"]):
        told = hvdctl(*verb, code=2)
        assert str(state) in told.err
    state.write_text(good)
    assert hvdctl.ids() == ids
    state.write_text("{ not json")
    assert "0 left" in hvdctl("down", "-y", "--force").out


def test_terraform_imports_what_hvdctl_made(hvdctl: Hvdctl) -> None:
    """State lost, cluster alive: each resource can be imported, and the plan is then empty."""
    hvdctl("up", "--nodes", "1", "--net", "100m")
    ids = hvdctl.ids()
    from hvdctl import plugin, terraform
    from hvdctl.terraform import Terraform

    driver = Terraform(hvdctl.folder / "terraform", "local", hvdctl.folder / "logs" / "terraform.log")
    (hvdctl.folder / "terraform" / "terraform.tfstate").unlink()
    names = {
        "hvd_network.cluster": "net",
        "hvd_volume.share[0]": "share",
        "hvd_container_node.node[0]": "node0",
    }
    with plugin.served(driver.log) as attached:
        for address, name in names.items():
            argv = [terraform.binary(), "import", "-no-color", address, local.name_of(hvdctl.name, name)]
            env = driver._environment() | attached
            done = subprocess.run(argv, cwd=driver.folder, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    assert hvdctl.ids() == ids
    told = hvdctl("up", "--json").data["changes"]
    assert "made" not in told and "made anew" not in told and "removed" not in told
    assert hvdctl.ids() == ids


def test_progress_on_a_terminal(hvdctl: Hvdctl) -> None:
    import pexpect

    words = hvdctl.argv("up", "--nodes", "1")
    child = pexpect.spawn(words[0], words[1:], env=hvdctl.env, timeout=240, encoding="utf-8", dimensions=(40, 120))
    child.expect("✓ Provisioning")
    child.expect("✓ Configuring")
    child.expect("is up: 1 nodes|is up: 1 node")
    child.expect(pexpect.EOF)
    words = hvdctl.argv("down")
    child = pexpect.spawn(words[0], words[1:], env=hvdctl.env, timeout=240, encoding="utf-8", dimensions=(40, 120))
    child.expect(r"\[y/N\]")
    child.sendline("y")
    child.expect("0 left")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def _list(hvdctl: Hvdctl) -> str:
    import sys

    argv = [sys.executable, "-m", "hvdctl", "list", "--json"]
    return subprocess.run(argv, env=hvdctl.env, capture_output=True, text=True, check=True).stdout
