"""What the scripts of the share do to a machine."""

from __future__ import annotations

import pytest

from .scripted import STALE, Machine

SOURCE = {"SOURCE": "192.0.2.1:/srv/hvdctl/demo", "ADDRESS": "192.0.2.2", "WAIT": "5"}


def test_only_the_clusters_own_container_waits_for_the_share(machine: Machine) -> None:
    first = machine.run("nfs", "mount.sh", **SOURCE)
    assert "mounted from 192.0.2.1" in first.stdout, first.stderr
    units = machine.root / "etc" / "systemd" / "system"
    assert "docker" not in "".join(file.read_text() for file in units.glob("*.*"))
    assert not (units / "docker.service.d").exists()
    assert machine.run("nfs", "mount.sh", **SOURCE).stdout == ""


def test_a_mount_of_a_head_that_is_gone_is_mounted_again(machine: Machine) -> None:
    machine.run("nfs", "mount.sh", **SOURCE)
    machine.command("stat", STALE)
    machine.forget()
    again = machine.run("nfs", "mount.sh", **SOURCE)
    assert again.returncode == 0, again.stderr
    assert [call for call in machine.calls if call.endswith(" shared.mount") and "is-" not in call] == [
        "systemctl stop shared.mount",
        "systemctl start shared.mount",
    ]
    assert "mounted from" in again.stdout


def test_a_share_that_does_not_answer_is_given_up_after_a_while(machine: Machine) -> None:
    machine.command("stat", "/bin/sleep 30")
    machine.command("timeout", 'shift 3; exec /usr/bin/timeout -s KILL 0.2 "$@"')
    assert machine.shell("alive /shared && echo alive || echo dead").stdout.split()[-1] == "dead"
    machine.command("stat", 'exec /usr/bin/stat "$@"')
    assert machine.shell("alive /shared && echo alive || echo dead").stdout == "alive\n"


def test_the_undo_leaves_a_mount_of_anothers_making(machine: Machine) -> None:
    machine.write("proc/mounts", "nas:/data /shared nfs4 rw 0 0\n")
    machine.write("etc/systemd/system/shared.mount", "[Mount]\nWhat=nas:/data\n")
    assert machine.run("nfs", "unmount.sh").stdout == ""
    assert machine.has("etc/systemd/system/shared.mount")
    assert machine.calls == []


def test_a_folder_that_was_lost_is_exported_again(machine: Machine) -> None:
    machine.write("active-nfs-server.service", "")
    machine.run("nfs", "serve.sh", CLIENTS="192.0.2.2")
    (machine.root / "srv" / "hvdctl" / "demo").rmdir()
    machine.forget()
    done = machine.run("nfs", "serve.sh", CLIENTS="192.0.2.2")
    assert "srv/hvdctl/demo" in done.stdout
    assert "exportfs -ra" in machine.calls
    machine.forget()
    assert machine.run("nfs", "serve.sh", CLIENTS="192.0.2.2").stdout == ""
    assert "exportfs -ra" not in machine.calls


@pytest.mark.parametrize("keep", ["", "yes"])
def test_every_machine_that_served_the_share_stops_it(machine: Machine, keep: str) -> None:
    assert machine.run("nfs", "unserve.sh", KEEP=keep).stdout == "", "a worker has nothing of it"
    machine.write("etc/exports.d/hvdctl-demo.exports", "x")
    machine.write("srv/hvdctl/demo/checkpoint", "x")
    done = machine.run("nfs", "unserve.sh", KEEP=keep)
    assert done.returncode == 0, done.stderr
    assert "exportfs -ra" in machine.calls
    assert not machine.has("etc/exports.d/hvdctl-demo.exports")
    assert machine.has("srv/hvdctl/demo/checkpoint") == bool(keep)


def test_data_that_is_kept_keeps_the_mark_of_its_owner(machine: Machine) -> None:
    """The folder with the mark goes in the teardown, and the next cluster of the name may be somebody else's."""
    machine.write("etc/hvdctl/demo/owner", "0a ada@lab:/x\n")
    machine.write("srv/hvdctl/demo/checkpoint", "x")
    assert machine.run("nfs", "unserve.sh", KEEP="yes").returncode == 0
    assert (machine.root / "srv/hvdctl/.demo.owner").read_text() == "0a ada@lab:/x\n"
    assert machine.run("nfs", "unserve.sh", KEEP="yes").stdout == ""
    assert machine.run("nfs", "unserve.sh", KEEP="").returncode == 0
    assert not machine.has("srv/hvdctl/.demo.owner")


def test_data_under_a_mount_is_not_removed(machine: Machine) -> None:
    machine.write("srv/hvdctl/demo/checkpoint", "x")
    machine.write("proc/mounts", f"/dev/vda {machine.root}/shared ext4 rw 0 0\n")
    done = machine.run("nfs", "unserve.sh", KEEP="")
    assert done.returncode == 1
    assert "is left as it is" in done.stderr
    assert machine.has("srv/hvdctl/demo/checkpoint")


def test_a_folder_with_a_percent_sign_is_mounted_and_not_what_systemd_makes_of_it(machine: Machine) -> None:
    folder = machine.root / "data" / "50%h"
    folder.mkdir(parents=True)
    machine.command("setpriv", "exit 0")  # the containers' user may write there
    done = machine.run("nfs", "mount.sh", SOURCE=str(folder), ADDRESS="192.0.2.2", WAIT="5")
    assert done.returncode == 0, done.stderr
    unit = (machine.root / "etc" / "systemd" / "system" / "shared.mount").read_text()
    assert f"\nWhat={folder.parent}/50%%h\n" in unit


def test_a_share_of_an_earlier_version_is_given_to_the_containers_user(machine: Machine) -> None:
    (machine.root / "srv/hvdctl/demo").mkdir(parents=True)
    machine.command("stat", 'case $* in "-c %u"*/srv/*) echo 1000 ;; *) exec /usr/bin/stat "$@" ;; esac')
    assert "given to user 74830" in machine.run("nfs", "serve.sh", CLIENTS="192.0.2.2").stdout
    assert f"chown -R -h --from=1000:1000 74830:74830 {machine.root}/srv/hvdctl/demo" in machine.calls


def test_a_folder_that_the_containers_user_cannot_write_to_is_refused(machine: Machine) -> None:
    data = machine.root / "data"
    data.mkdir()
    machine.command("setpriv", 'case "$*" in *74830*"test -w"*) [ -e "$ROOT/open" ] ;; *) exit 2 ;; esac')
    done = machine.run("nfs", "mount.sh", SOURCE=str(data), ADDRESS="192.0.2.1", WAIT="5")
    assert done.returncode == 1
    assert f"user 74830 can't write to {data}: `setfacl -m u:74830:rwx {data}`" in done.stderr
    machine.write("open", "")
    assert machine.run("nfs", "mount.sh", SOURCE=str(data), ADDRESS="192.0.2.1", WAIT="5").returncode == 0


@pytest.mark.parametrize("place", ["etc/hvdctl/demo/owner", "srv/hvdctl/.demo.owner"])
def test_a_machine_that_another_owner_has_taken_since_is_left_alone(machine: Machine, place: str) -> None:
    """hvdctl looked before it built images, which takes minutes."""
    settings = {"PACKAGES": "sh=dash", "HOSTS": "192.0.2.1 node0"}
    machine.write(place, "b0b somebody@else:/home\n")
    refused = machine.run("base", "apply.sh", OWNER="a11ce alice@here:/home", OWNERS="", **settings)
    assert refused.returncode == 1
    assert "part of another cluster demo by now, of somebody@else:/home" in refused.stderr
    assert (machine.root / place).read_text() == "b0b somebody@else:/home\n"
    assert (machine.root / "etc" / "hosts").read_text() == "127.0.0.1 localhost\n"
    known = machine.run("base", "apply.sh", OWNER="a11ce alice@here:/home", OWNERS="b0b", **settings)
    assert known.returncode == 0, known.stderr
    assert machine.root.joinpath("etc/hvdctl/demo/owner").read_text() == "a11ce alice@here:/home\n"


def test_an_empty_share_is_not_kept(machine: Machine) -> None:
    machine.write("etc/hvdctl/demo/owner", "a11ce alice@here:/home\n")
    share = machine.root / "srv" / "hvdctl" / "demo"
    share.mkdir(parents=True)
    machine.run("nfs", "unserve.sh", KEEP="yes")
    assert not share.exists()
    machine.write("srv/hvdctl/demo/data", "kept")
    machine.run("nfs", "unserve.sh", KEEP="yes")
    assert share.exists() and machine.has("srv/hvdctl/.demo.owner")
