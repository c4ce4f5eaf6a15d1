"""What the scripts of all other roles do to a machine; test_share_scripts.py has those of the share."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
import tarfile
from io import BytesIO, StringIO
from pathlib import Path

import pytest

from .scripted import PLAYBOOKS, Machine

# The container.

# The number that the containers' user has on machines.
USER = 74830
DOCKER = r"""
case "$1 $2" in
    inspect*) cat "$ROOT/inspect" 2>/dev/null ;;
    create*) printf %s "$*" | tr " " "\n" >"$ROOT/run" ;;
    "cp -") cat >"$ROOT/given.tar" ;;
    cp*:/home/hvd) mkdir "$3" && touch "$3/.profile" ;;
    cp*:/etc) tar -C "$ROOT/image" -c etc ;;
esac
"""
RUN = {"NAME": "hvdctl-demo", "IMAGE": "image:1", "IMAGE_ID": "", "SUMS": "", "RUN": "", "WAIT": "5", "BROUGHT": ""}


@pytest.fixture
def ready(machine: Machine) -> Machine:
    """A machine whose container is to be started, and is seen as it was started."""
    machine.command("docker", DOCKER)
    machine.command("stat", 'case $* in *%a*/ssh) echo "750 0:74830" ;; *) exec /usr/bin/stat "$@" ;; esac')
    machine.command("sha256sum", 'case $* in --check*) ;; *) exec /usr/bin/sha256sum "$@" ;; esac')
    machine.command("timeout", 'case $* in *2222*) echo SSH- ;; *) exec /usr/bin/timeout "$@" ;; esac')
    machine.write("etc/hvdctl/demo/ssh/key", "x")
    machine.write("etc/systemd/system/shared.mount", "x")
    (machine.root / "shared").mkdir()
    machine.write("inspect", "image sha256:1\n")
    for name in ("passwd", "group", "shadow"):
        machine.write(f"image/etc/{name}", "root:x:0:0:\nhvd:x:1000:1000:\nuser:x:1000:\n")
    done = machine.run("horovod", "container.sh", **RUN)
    assert done.returncode == 0, done.stderr
    (digest,) = re.findall(r"^hvdctl\.digest=(.*)$", (machine.root / "run").read_text(), re.MULTILINE)
    machine.write("inspect", f"container true {digest} 4711\nimage sha256:1\n")
    machine.forget()
    return machine


def seen(machine: Machine, answer: str) -> None:
    """What a look at /shared gives, from within the container 4711 too."""
    machine.command(
        "stat", f'case $* in *%a*/ssh) echo "750 0:74830" ;; *4711*) {answer} ;; *) exec /usr/bin/stat "$@" ;; esac'
    )


def test_a_unit_starts_the_container_after_engine_and_share(ready: Machine) -> None:
    unit = (ready.root / "etc" / "systemd" / "system" / "hvdctl-node.service").read_text()
    assert re.search("^After=docker.service shared.mount$", unit, re.MULTILINE)
    assert re.search("^Restart=always$", unit, re.MULTILINE)
    assert "docker start hvdctl-demo" in unit
    variables = (PLAYBOOKS / "roles" / "horovod" / "vars" / "main.yml").read_text()
    assert "'--restart=no'" in variables, "the engine must not start it before the share is there"


def test_a_container_that_sees_the_share_is_left_alone(ready: Machine) -> None:
    seen(ready, 'printf "1:2\\n1:2\\n"')
    assert ready.run("horovod", "container.sh", **RUN).stdout == ""


@pytest.mark.parametrize("answer", ['printf "1:2\\n1:3\\n"', 'echo "Stale file handle" >&2; exit 1'])
def test_a_container_with_a_lost_share_is_made_anew(ready: Machine, answer: str) -> None:
    seen(ready, answer)
    done = ready.run("horovod", "container.sh", **RUN)
    assert "changed: container hvdctl-demo started" in done.stdout, done.stderr
    order = [
        call.split()[:3]
        for call in ready.calls
        if call.startswith(("systemctl stop", "docker rm", "docker create", "docker start"))
    ]
    assert order == [
        ["systemctl", "stop", "hvdctl-node.service"],
        ["docker", "rm", "--force"],
        ["docker", "create", "--name"],
        ["docker", "start", "hvdctl-demo"],
    ]


def test_keys_in_a_folder_that_others_can_write_are_written_anew(ready: Machine) -> None:
    ready.command("stat", 'case $* in *%a*/ssh) echo "700 1000:1000" ;; *) exec /usr/bin/stat "$@" ;; esac')
    assert ready.run("horovod", "container.sh", **RUN).stdout == "needed: keys\n"


def test_the_undo_starts_an_engine_that_was_stopped(ready: Machine) -> None:
    ready.command("dockerd")
    ready.write("docker-stopped", "")
    done = ready.run("horovod", "undo.sh", NAME="hvdctl-demo", KEEP="")
    assert "changed: container hvdctl-demo removed" in done.stdout, done.stderr
    assert not ready.has("etc/systemd/system/hvdctl-node.service")
    assert not ready.has("etc/hvdctl/demo/ssh")
    assert ready.run("horovod", "undo.sh", NAME="hvdctl-demo", KEEP="").stdout == ""


def test_the_undo_fails_where_the_engine_does_not_start(ready: Machine) -> None:
    ready.command("dockerd")
    ready.write("docker-stopped", "")
    ready.write("docker-broken", "")
    done = ready.run("horovod", "undo.sh", NAME="hvdctl-demo", KEEP="")
    assert done.returncode == 1
    assert "the container hvdctl-demo can't be removed" in done.stderr
    assert ready.has("etc/hvdctl/demo/ssh"), "what tells the next try that there is a container"


def test_the_container_s_user_is_nobody_on_the_machine(ready: Machine) -> None:
    ready.write("inspect", "image sha256:1\n")
    assert ready.run("horovod", "container.sh", **RUN).returncode == 0
    assert f"--user {USER}:{USER}" in (ready.root / "run").read_text().replace("\n", " ")
    with tarfile.open(ready.root / "given.tar") as given:
        assert {entry.name for entry in given} == {"home/hvd", "home/hvd/.profile", "etc/passwd", "etc/group"}
        passwd, group = (
            (given.extractfile(f"etc/{name}") or BytesIO()).read().decode() for name in ("passwd", "group")
        )
    assert passwd == f"root:x:0:0:\nhvd:x:{USER}:{USER}:\nuser:x:1000:\n"
    assert f"\nhvd:x:{USER}:" in group
    assert [call for call in ready.calls if re.fullmatch(rf"chown -R -h {USER}:{USER} \S+/home/hvd", call)]


def test_an_account_of_that_number_is_refused(ready: Machine) -> None:
    ready.command("getent", f'[ "$2" = {USER} ] && echo "jane:x:{USER}:{USER}::/home/jane:/bin/sh"')
    done = ready.run("horovod", "container.sh", **RUN)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the user id {USER} of the containers is that of the account jane here" in done.stderr


def test_root_writes_keys_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, victim = tmp_path / "ssh", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("untouched")
    for name in ("id", ".id.part", "old"):
        (folder / name).symlink_to(victim)
    (folder / "planted").mkdir()
    owners: list[tuple[object, int, int]] = []
    monkeypatch.setattr("os.chown", lambda path, *owner: owners.append((path, *owner)))
    monkeypatch.setattr("os.fchown", lambda number, *owner: owners.append(("file", *owner)))
    monkeypatch.setattr(sys, "argv", ["keys.py", str(folder)])
    monkeypatch.setattr(sys, "stdin", StringIO(json.dumps({"id": "secret", "id.pub": "public"})))
    runpy.run_path(str(PLAYBOOKS / "roles" / "horovod" / "files" / "keys.py"))
    assert victim.read_text() == "untouched"
    assert {file.name: file.read_text() for file in folder.iterdir()} == {"id": "secret", "id.pub": "public"}
    assert not (folder / "id").is_symlink()
    assert owners == [(folder, 0, USER), ("file", USER, USER), ("file", USER, USER)]
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "id")] == [0o750, 0o600]


# Packages, limits, links, the firewall.


def test_packages_that_would_drive_out_others_are_refused(machine: Machine) -> None:
    machine.command(
        "apt-get", 'case $* in *--simulate*) echo "Remv containerd.io [1.7]"; echo "Inst docker.io" ;; esac'
    )
    done = machine.shell("add_packages docker.io rsync")
    assert done.returncode == 1
    assert "installing docker.io rsync would remove containerd.io" in done.stderr
    assert not [call for call in machine.calls if " -y " in call]

    machine.command("apt-get")
    assert machine.shell("add_packages rsync").stdout == "changed: packages installed: rsync\n"
    assert "--no-remove" in machine.calls[-1]


def test_another_that_installs_packages_is_waited_for(machine: Machine) -> None:
    locked = "dpkg: error: dpkg frontend lock was locked by another process with pid 42"
    machine.command("dpkg", f'[ "$(grep -c ^dpkg "$ROOT/calls")" -gt 3 ] || {{ echo "{locked}" >&2; exit 2; }}')
    assert machine.shell("patient dpkg --configure -a; echo done").stdout == "done\n"
    assert machine.calls.count("dpkg --configure -a") == 4

    machine.command("dpkg", "echo broken >&2; exit 1")
    failed = machine.shell("patient dpkg --configure -a; echo done")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "`dpkg --configure -a` failed: broken" in failed.stderr

    machine.command("dpkg", f'echo "{locked}" >&2; exit 2')
    machine.command("date", 'echo $(($(grep -c ^date "$ROOT/calls") * 100))')
    failed = machine.shell("patient dpkg --configure -a; echo done")
    assert "another process installs packages for more than 300 s" in failed.stderr


@pytest.mark.parametrize("can", [True, False])
def test_limits_that_root_cannot_raise_are_left_out(machine: Machine, can: bool) -> None:
    machine.write("etc/security/limits.d/hvdctl.conf", "of an earlier run")
    machine.command("prlimit", "exit 0" if can else "exit 1")
    done = machine.run("base", "apply.sh", OWNER="d1", OWNERS="", PACKAGES="sh=dash", HOSTS="192.0.2.1 node0")
    assert done.returncode == 0, done.stderr
    assert machine.has("etc/security/limits.d/hvdctl.conf") == can
    assert (machine.root / "etc/hvdctl/demo/owner").read_text() == "d1\n"
    assert ("limits stay as they are" in done.stdout) != can


LINK = """#!/bin/sh
echo "hvd-link $*" >>ROOT/calls
case "$*" in
    *show) cat ROOT/rate ;;
    *none) echo none >ROOT/rate ;;
    *) echo $2 >ROOT/rate; exit $(cat ROOT/fails) ;;
esac
"""
SETTINGS = {"ADDRESS": "192.0.2.1", "RATE": "1000", "DELAY": "2ms"}


@pytest.fixture
def link(machine: Machine) -> Machine:
    machine.command("ip", 'echo "2: eth1 inet 192.0.2.1/24"')
    machine.command("systemd-escape", "echo eth1")
    machine.command("tc", 'cat "$ROOT/qdisc"')
    machine.write(
        "qdisc", '[{"kind":"tbf"},{"kind":"netem","options":{"limit":1,"delay":{"delay":0.0019999,"jitter":0}}}]'
    )
    machine.write("rate", "none\n")
    machine.write("fails", "0")
    return machine


def shaped(machine: Machine) -> list[str]:
    machine.forget()
    machine.run("net", "apply.sh", LINK=LINK.replace("ROOT", str(machine.root)), **SETTINGS)
    return [call for call in machine.calls if call.startswith("hvd-link") and not call.endswith("show")]


def test_a_delay_that_was_lost_is_set_again(link: Machine) -> None:
    assert shaped(link) == ["hvd-link eth1 1000 2ms"]
    assert shaped(link) == []
    link.write("qdisc", '[{"kind":"tbf"},{"kind":"ingress"}]')
    assert shaped(link) == ["hvd-link eth1 1000 2ms"]
    link.write("qdisc", '[{"kind":"netem","options":{"delay":{"delay":0.0005}}}]')
    assert shaped(link) == ["hvd-link eth1 1000 2ms"]


def test_a_link_that_could_not_be_shaped_is_put_back(link: Machine) -> None:
    link.write("fails", "1")
    assert shaped(link) == ["hvd-link eth1 1000 2ms", "hvd-link eth1 none"]
    assert not link.has("etc/systemd/system/hvdctl-link.service")


FIREWALL = {"SSH_PORT": "2022", "PORTS": "80, 443", "MACHINES": "192.0.2.1", "GUARD": "yes", "CLOSED": ""}


def rules(machine: Machine, **settings: str) -> str:
    done = machine.run("firewall", "apply.sh", **FIREWALL | settings)
    assert done.returncode == 0, done.stderr
    return (machine.root / "etc/hvdctl/demo/nftables.conf").read_text()


@pytest.mark.parametrize("port", ["", "0", "none"])
def test_no_firewall_without_the_port_of_ssh(machine: Machine, port: str) -> None:
    machine.command("nft")
    done = machine.run("firewall", "apply.sh", **FIREWALL | {"SSH_PORT": port})
    assert done.returncode == 1
    assert "the firewall is not loaded" in done.stderr
    assert machine.calls == []
    assert not machine.has("etc/hvdctl/demo/nftables.conf")
    assert "tcp dport { 2022, 80, 443 } accept" in rules(machine)


def test_jobs_are_kept_from_secrets_with_and_without_a_firewall(machine: Machine) -> None:
    """tests/e2e/test_privileges.py loads the rules."""
    machine.command("nft")
    for guard in ("yes", ""):
        written = rules(machine, GUARD=guard, CLOSED="10.0.2.0/24")
        assert ("chain input" in written) == bool(guard)
        assert f"meta skuid != {USER} accept\n        ip daddr 169.254.169.254 reject" in written
        assert "ip daddr { 10.0.2.0/24 } reject" in written
    assert "10.0.2" not in rules(machine, GUARD=""), "addresses that the cluster itself may have"
    assert [call for call in machine.calls if call.startswith("systemctl reload-or-restart")], machine.calls


# The GPUs.

GPU_DOCKER = """
case $1 in
    info) cat "$ROOT/runtimes" ;;
    ps) cat "$ROOT/running" ;;
esac
"""
KNOWN = '{"nvidia":{"path":"nvidia-container-runtime"},"runc":{"path":"runc"}}'


@pytest.fixture
def gpu(machine: Machine) -> Machine:
    """A machine with driver and toolkit, of which its engine does not know yet."""
    machine.command("docker", GPU_DOCKER)
    for name in ("nvidia-smi", "nvidia-ctk", "modprobe"):
        machine.command(name)
    machine.write("runtimes", '{"runc":{"path":"runc"}}')
    machine.write("running", "hvdctl-demo\n")
    return machine


def test_the_engine_is_restarted_for_the_gpus(gpu: Machine) -> None:
    assert "missing: runtime" in gpu.run("nvidia", "look.sh").stdout
    done = gpu.run("nvidia", "runtime.sh")
    assert done.stdout == "changed: Docker knows the NVIDIA runtime\n", done.stderr
    wanted = ["nvidia-ctk runtime configure --runtime=docker", "systemctl restart docker.service"]
    assert [call for call in gpu.calls if call in wanted] == wanted

    gpu.write("runtimes", KNOWN)
    assert "missing:" not in gpu.run("nvidia", "look.sh").stdout
    gpu.forget()
    assert gpu.run("nvidia", "runtime.sh").stdout == ""
    assert not set(wanted) & set(gpu.calls)


def test_an_engine_with_containers_of_others_is_left_as_it_is(gpu: Machine) -> None:
    gpu.write("running", "hvdctl-demo\nshop\n")
    for _ in range(2):
        done = gpu.run("nvidia", "runtime.sh")
        assert done.returncode == 1
        assert "would end the containers shop" in done.stderr
        assert not [call for call in gpu.calls if call.startswith(("nvidia-ctk", "systemctl"))]

    # Told of the runtime and not restarted, it still does not know it.
    gpu.write("etc/docker/daemon.json", KNOWN)
    assert "missing: runtime" in gpu.run("nvidia", "look.sh").stdout
    assert gpu.run("nvidia", "runtime.sh").returncode == 1


# What preflight looks for.


def test_a_shared_of_the_users_own_is_seen(machine: Machine) -> None:
    assert machine.probe()["taken"] == ""
    (machine.root / "shared").mkdir()
    assert machine.probe()["taken"] == ""
    machine.write("shared/file", "")
    assert machine.probe()["taken"] == "it holds files"
    machine.write("etc/systemd/system/shared.automount", "")
    assert machine.probe()["taken"].endswith("etc/systemd/system/shared.automount is for it")
    machine.write("etc/fstab", "#/dev/sda /shared ext4\n/dev/sdb /shared/ ext4 noauto 0 0\n")
    assert machine.probe()["taken"] == "/etc/fstab has /dev/sdb for it".replace("/etc", f"{machine.root}/etc")
    machine.write("proc/mounts", f"nas:/a\\040b {machine.root}/shared nfs4 rw 0 0\n")
    assert machine.probe()["taken"] == "nas:/a040b is mounted there"
    machine.write("etc/systemd/system/shared.mount", "Description=Share of the hvdctl cluster demo\n")
    assert machine.probe()["taken"] == "", "it is ours"


def test_a_share_in_shared_is_seen(machine: Machine) -> None:
    shared = machine.root / "shared"
    (machine.root / "link").symlink_to(shared)
    assert machine.probe()["within"] == "no"
    cases = {
        "/": "yes",
        str(shared): "yes",
        f"{shared}/a/..": "yes",
        f"{shared}/a": "yes",
        str(machine.root / "link"): "yes",
    }
    cases |= {f"{shared}2": "no", "/srv/data": "no"}
    assert {share: machine.probe(HVD_SHARE=share)["within"] for share in cases} == cases


def test_a_docker_of_snap_is_seen(machine: Machine) -> None:
    machine.write("snap/bin/docker", "")
    machine.command("dockerd")
    assert machine.probe()["snap"] == "no", "there is another one"
    (machine.root / "bin" / "dockerd").unlink()
    # All commands but the engine that this machine may have.
    for name in ("awk", "cat", "df", "find", "grep", "head", "id", "ip", "ls", "readlink", "sed", "timeout", "tr"):
        (machine.root / "bin" / name).symlink_to(shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin") or "missing")
    assert machine.probe(PATH="")["snap"] == "yes"
