"""QEMU: the command of a guest, the seed, which processes are whose, and which images are still needed."""

from __future__ import annotations

import contextlib
import io
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pycdlib
import pytest
from hvdctl import owner, paths, process, qemu
from hvdctl.errors import HvdctlError
from support import runs, wait_for


def guest(folder: Path, **changes: Any) -> qemu.Guest:
    given: dict[str, Any] = {
        "cluster": "demo",
        "name": "node1",
        "folder": folder,
        "image": qemu.Image(Path("/images/a")),
        "cpus": 2,
        "memory": 2 * 2**30,
        "ssh_port": 40022,
        "switch": Path("/run/demo.vde"),
        "macs": ("52:54:00:86:00:01", "52:54:00:87:00:01"),
    }
    return qemu.Guest(**given | changes)


def words(cluster: str, name: str, home: Path | None = None, switch: str = "/run/x.vde") -> list[str]:
    """The command line of a guest of this home, or of another one."""
    folder = (home or paths.home()) / cluster / "vm" / name
    return qemu.argv(guest(folder, cluster=cluster, name=name, switch=Path(switch)), "tcg")


def after(words: list[str], flag: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == flag]


def test_a_guest_is_reached_on_the_loopback_and_by_its_own_switch_only() -> None:
    words = qemu.argv(guest(Path("/c/vm/node1")), "tcg")
    assert after(words, "-netdev") == [
        "user,id=outside,ipv6=off,hostfwd=tcp:127.0.0.1:40022-:22",
        "vde,id=inside,sock=/run/demo.vde",
    ]
    assert after(words, "-accel") == ["tcg,thread=multi"]
    assert after(words, "-m") == ["size=2048M"]
    assert after(words, "-name") == ["guest=hvdctl-demo-node1,process=hvdctl-demo-nod"]
    assert "-daemonize" in words
    assert not {"-vnc", "-monitor", "-qmp"} & set(words), "nothing else to talk to"
    assert re.search(r"\bpanic=[1-9]", after(words, "-append")[0]), "a kernel that fell over starts again by itself"


def test_without_internet_the_guest_reaches_nobody() -> None:
    outside = after(qemu.argv(guest(Path("/c"), internet=False), "kvm"), "-netdev")[0]
    assert outside.endswith(",restrict=on")


def test_what_a_guest_flushes_is_on_the_disk() -> None:
    disk, *_ = after(qemu.argv(guest(Path("/c")), "kvm"), "-drive")
    assert "cache=writeback" in disk.split(","), "unsafe ignores flushes, and a loss of power then takes the share"


def test_a_comma_in_a_path_is_no_separator() -> None:
    drives = after(qemu.argv(guest(Path("/c/a,b")), "kvm"), "-drive")
    assert drives[0].startswith("file=/c/a,,b/disk.qcow2,")


def test_cloud_init_finds_the_seed_by_its_label_and_names(tmp_path: Path) -> None:
    file = tmp_path / "seed.iso"
    given = {"meta-data": "{}", "user-data": "#cloud-config\nä", "network-config": '{"version": 2}'}
    qemu.seed(file, given)
    assert file.stat().st_mode & 0o777 == 0o600, "it holds a private key"
    iso = pycdlib.PyCdlib()
    iso.open(str(file))
    assert iso.pvd.volume_identifier.strip() == b"cidata"
    for name, text in given.items():
        for where in ({"rr_path": f"/{name}"}, {"joliet_path": f"/{name}"}):
            read = io.BytesIO()
            iso.get_file_from_iso_fp(read, **where)
            assert read.getvalue().decode() == text
    iso.close()


def test_guests_are_known_by_the_names_of_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (11, words("my-lab", "node0")),
        (12, words("my-lab", "node12")),
        (13, words("my", "node0")),
        (14, [qemu.BINARY, "-name", "guest=someone-elses"]),
        (15, [qemu.BINARY]),
    ]
    monkeypatch.setattr(qemu, "processes", lambda program="": found)
    assert qemu.running("my-lab") == {"node0": 11, "node12": 12}
    assert qemu.running("my") == {"node0": 13}
    assert qemu.running("lab") == {}


def test_guests_of_another_home_are_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    found = [(11, words("demo", "node0")), (12, words("demo", "node0", theirs)), (13, words("demo", "node1", theirs))]
    monkeypatch.setattr(qemu, "processes", lambda program="": found)
    assert qemu.running("demo") == {"node0": 11}
    assert qemu.others() == {("demo", "node0"): theirs, ("demo", "node1"): theirs}


def test_a_switch_has_its_owner_in_its_name_and_an_old_one_is_not_taken_from_another_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = qemu.switch_folder("demo")
    assert own.name == "demo.none.vde", "asking makes no owner"
    mark = owner.this().id[:8]
    assert qemu.switch_folder("demo").name == f"demo.{mark}.vde"
    folders = {1: f"/run/demo.{mark}.vde", 2: "/run/demo.01234567.vde", 3: "/run/demo.vde"}
    running: list[tuple[int, list[str]]] = []

    def processes(program: str = qemu.BINARY) -> list[tuple[int, list[str]]]:
        if program != "vde_switch":
            return running
        return [(pid, [program, "-sock", folder]) for pid, folder in folders.items()]

    monkeypatch.setattr(qemu, "processes", processes)
    old = paths.runtime() / "demo.vde"
    folders[4] = str(old)
    old.mkdir(parents=True)
    assert list(qemu.switches("demo")) == [1], "this home has had no machine of that cluster"
    assert qemu.switch_folders("demo") == [Path(folders[1])]
    qemu.home("demo").mkdir(parents=True)
    assert list(qemu.switches("demo")) == [1, 3, 4]
    assert old in qemu.switch_folders("demo")
    running.append((8, words("demo", "node1", tmp_path / "theirs", str(old))))
    assert list(qemu.switches("demo")) == [1, 3]
    assert old not in qemu.switch_folders("demo")
    running.append((9, words("demo", "node0", tmp_path / "theirs", "/run/demo.vde")))
    assert list(qemu.switches("demo")) == [1]


def test_one_that_does_not_listen_is_killed() -> None:
    deaf = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    qemu.stop(child.pid, patience=0.3)
    assert not runs(child.pid)
    assert child.wait() == -signal.SIGKILL
    qemu.stop(child.pid)


def test_what_qemu_refuses_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / qemu.BINARY
    program.write_text("#!/bin/sh\necho 'could not set up host forwarding rule' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(process, "tool", lambda name: str(program))
    with pytest.raises(HvdctlError, match="QEMU does not start: could not set up host forwarding rule"):
        qemu.start(guest(tmp_path), "tcg")


@pytest.mark.parametrize("word", ["waiting for the disk", ""])
def test_a_qemu_that_does_not_come_up_is_ended_and_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str
) -> None:
    program = tmp_path / qemu.BINARY
    # Its child keeps all that it was given open, as one in the background does.
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/group\necho '{word}' >&2\nsleep 61\n")
    program.chmod(0o755)
    monkeypatch.setattr(process, "tool", lambda name: str(program))
    monkeypatch.setattr(qemu, "_START_PATIENCE", 1.0)
    started = time.monotonic()
    with pytest.raises(HvdctlError, match=f"is not up after 1 s: {word or 'without a word'}"):
        qemu.start(guest(tmp_path), "tcg")
    assert time.monotonic() - started < 10
    group = int((tmp_path / "group").read_text())
    wait_for(lambda: not members(group))


def members(group: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            found += [stat.parent.name] if int(its_group) == group and state != "Z" else []
    return found


def test_what_went_into_the_background_ends_with_a_start_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(words: list[str]) -> None:
        raise HvdctlError("not up")

    stopped: list[int] = []
    monkeypatch.setattr(qemu, "_run", refuse)
    monkeypatch.setattr(qemu, "stop", stopped.append)
    monkeypatch.setattr(process, "tool", lambda name: name)
    found = [(7, words("demo", "node1"))]
    monkeypatch.setattr(qemu, "processes", lambda program="": found)
    with pytest.raises(HvdctlError, match="not up"):
        qemu.start(guest(tmp_path), "tcg")
    assert stopped == [7]


def test_an_image_is_needed_by_guests_that_run_and_by_disks_of_any_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = {name: qemu.Image(tmp_path / name) for name in ("runs", "based", "free")}
    running = (7, qemu.argv(guest(Path("/c"), image=images["runs"]), "tcg"))
    monkeypatch.setattr(qemu, "processes", lambda program="": [running])
    disks = {name: tmp_path / "another home" / name for name in ("based", "free")}
    for name, folder in disks.items():
        folder.mkdir(parents=True)
        (folder / qemu.DISK).touch()
        qemu.claim(images[name], folder)
    (disks["free"] / qemu.DISK).unlink()
    assert {name: qemu.in_use(image) for name, image in images.items()} == {"runs": True, "based": True, "free": False}


def test_what_was_written_down_and_can_not_be_read_is_told(tmp_path: Path) -> None:
    assert qemu.stored(tmp_path) == {}
    for text in ("", "{", "[]"):
        (tmp_path / "machine.json").write_text(text)
        with pytest.raises(HvdctlError, match=r"machine\.json can't be read.*put it back"):
            qemu.stored(tmp_path)


def test_a_switch_is_found_by_its_cluster_wherever_its_socket_is(
    undone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "home"))
    program = tmp_path / "vde_switch"
    program.symlink_to(sys.executable)
    words = [str(program), "-c", "import time; time.sleep(60)", "-sock", "/run/user/7/x.vde"]
    child = subprocess.Popen(words)
    qemu.home("x").mkdir(parents=True)
    try:
        wait_for(lambda: qemu.switches("x") == {child.pid: Path("/run/user/7/x.vde")})
        assert qemu.switches("y") == {}
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own processes, which other tests don't see."""
    monkeypatch.undo()
