"""What an account of a machine, a job and the storage of the emulator get at, on a real engine."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emulator_lab import TESTER, parsed
from hvdctl import engine, imageplan
from hvdctl.gpulab.emulator import storage
from hvdctl.gpulab.emulator.containers import Containers
from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.schedule import Place
from hvdctl.gpulab.emulator.workers import DEFAULT

from tests.contract.scripted import Machine

from .emulators import IMAGE, plain_image

__all__ = ["plain_image"]

USER = 74830


def run(*argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False, timeout=120)


def image(kind: str) -> str:
    return imageplan.plan_of("pytorch").names[kind]


@pytest.fixture
def container() -> Iterator[str]:
    name = f"hvdctl-t{uuid.uuid4().hex[:8]}"
    yield name
    run("docker", "rm", "--force", "--volumes", name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def keys(machine: Machine) -> Path:
    """The folder of a node's keys on a machine, as the role makes it."""
    folder = machine.root / "etc/hvdctl/demo/ssh"
    folder.mkdir()
    for name in ("id_ed25519", "ssh_host_ed25519_key"):
        assert run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name).returncode == 0
    (folder / "authorized_keys").write_text((folder / "id_ed25519.pub").read_text())
    return folder


def give(folder: Path, user: int) -> None:
    os.chown(folder, 0, user)
    folder.chmod(0o750)
    for file in folder.iterdir():
        os.chown(file, user, user)
        file.chmod(0o600)


def read_by_account(number: int, container: str, path: str) -> subprocess.CompletedProcess[str]:
    """What an account of this machine reads through a process of the container."""
    pid = run("docker", "inspect", "-f", "{{.State.Pid}}", container).stdout.strip()
    became = ("setpriv", "--reuid", number, "--regid", number, "--clear-groups")
    return run(*became, "cat", f"/proc/{pid}/root{path}")


@pytest.mark.skipif(os.getuid() != 0, reason="becomes other users")
def test_the_first_account_of_a_machine_reads_no_keys_of_a_node(machine: Machine, keys: Path, container: str) -> None:
    tmp_path = machine.root
    (tmp_path / "bin/chown").unlink()
    machine.command("timeout", 'case $* in *2222*) echo SSH- ;; *) exec /usr/bin/timeout "$@" ;; esac')
    machine.write("etc/systemd/system/shared.mount", "x")
    shared = tmp_path / "shared"
    shared.mkdir()
    give(keys, USER)
    os.chown(shared, USER, USER)
    words = ["--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--volume={shared}:/shared"]
    words += [f"--volume={keys}:/etc/hvdctl/ssh:ro", f"--volume={tmp_path}/var/lib/hvdctl/demo:/scratch"]
    settings = {"NAME": container, "IMAGE": image("base"), "IMAGE_ID": "", "WAIT": "5", "BROUGHT": "yes"}
    sums = run("sh", "-c", f"cd {keys} && sha256sum *").stdout.strip()
    done = machine.run("horovod", "container.sh", SUMS=sums, RUN=" ".join(words), **settings)
    assert done.returncode == 0, done.stderr

    # The node is whole: its user has a name, a home and a way in.
    login = "ssh -p 2222 -i /etc/hvdctl/ssh/id_ed25519 -o StrictHostKeyChecking=accept-new hvd@127.0.0.1"
    script = (
        f"until {login} true 2>/dev/null; do sleep 0.2; done; {login} 'id -un; id -u; touch ~/mark /shared/mark; pwd'"
    )
    said = run("docker", "exec", container, "timeout", "20", "sh", "-c", script)
    assert said.stdout.split() == ["hvd", str(USER), "/home/hvd"], said.stderr
    assert (shared / "mark").stat().st_uid == USER

    key = "/etc/hvdctl/ssh/id_ed25519"
    refused = read_by_account(1000, container, key)
    assert refused.returncode != 0
    assert "Permission denied" in refused.stderr
    assert read_by_account(0, container, key).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="becomes other users")
def test_folders_of_root_alone_would_not_keep_that_account_out(tmp_path: Path, keys: Path, container: str) -> None:
    """Why the containers' user has a number of its own: a process of the same number is a way past all folders."""
    give(keys, 1000)
    tmp_path.chmod(0o700)
    words = ("--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=1000:1000")
    run("docker", "run", "-d", "--name", container, *words, f"--volume={keys}:/etc/hvdctl/ssh:ro", image("base"))
    assert run("setpriv", "--reuid", 1000, "--clear-groups", "cat", keys / "id_ed25519").returncode != 0
    assert "PRIVATE KEY" in read_by_account(1000, container, "/etc/hvdctl/ssh/id_ed25519").stdout


OPEN = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.split(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
        print(place)
    except OSError:
        pass
"""


def test_jobs_reach_neither_metadata_nor_the_loopback_of_the_host(machine: Machine, container: str) -> None:
    tmp_path = machine.root
    machine.command("nft")
    settings = {"SSH_PORT": "22", "PORTS": "", "MACHINES": "192.0.2.1", "GUARD": "", "CLOSED": "10.0.2.0/24"}
    done = machine.run("firewall", "apply.sh", **settings)
    assert done.returncode == 0, done.stderr
    (tmp_path / "open.py").write_text(OPEN)
    places = ["169.254.169.254:80", "10.0.2.2:80", "10.0.2.2:53", "127.0.0.1:80"]
    script = (
        "ip addr add 169.254.169.254/32 dev lo && ip addr add 10.0.2.2/24 dev lo && nft -f /rules || exit 1\n"
        "for port in 80 53; do python3 -m http.server $port >/dev/null 2>&1 & done\n"
        # Until both listen: root reaches all places, whatever the rules are for others.
        f"for _ in $(seq 50); do [ $(python3 /open.py {' '.join(places)} | wc -l) = {len(places)} ] && break; "
        "sleep 0.1; done\n"
        f"for user in 0 {USER}; do echo user $user\n"
        f"setpriv --reuid $user --clear-groups python3 /open.py {' '.join(places)}; done"
    )
    words = ["--network=none", "--cap-add=NET_ADMIN", "--user=0", "--entrypoint=sh", "--name", container]
    words += [
        f"--volume={tmp_path}/etc/hvdctl/demo/nftables.conf:/rules:ro",
        f"--volume={tmp_path}/open.py:/open.py:ro",
    ]
    said = run("docker", "run", *words, image("vm"), "-c", script)
    root, job = said.stdout.split(f"user {USER}\n")
    assert root.split() == ["user", "0", *places], said.stderr
    assert job.split() == ["10.0.2.2:53", "127.0.0.1:80"]


@pytest.mark.usefixtures("plain_image")
def test_a_folder_of_the_emulator_s_storage_is_mounted_and_no_link(tmp_path: Path) -> None:
    client: Any = engine.client()
    runner = Containers(f"t{uuid.uuid4().hex[:8]}", tmp_path, DEFAULT[:1])
    runner.open()
    try:
        volumes = {one.id for one in client.volumes.list()}
        mount = {"hostPath": "/project_ghent/data", "containerPath": "/p"}
        command = ["sh", "-c", "touch /p/mark; sleep 60"]
        job = Job(parsed(docker={"image": IMAGE, "command": command, "user": "root", "storage": [mount]}), TESTER)
        job.place = Place(DEFAULT[0], (0,), (0,))
        job.host = runner.host(DEFAULT[0])
        runner.start(job)
        folder = tmp_path / "storage/demo/project_ghent/data"
        for _ in range(100):
            if (folder / "mark").exists():
                break
            run("sleep", "0.1")
        assert (folder / "mark").exists()
        assert folder.stat().st_gid == storage.PROJECT_GID
        runner.remove(job.uuid)
        assert {one.id for one in client.volumes.list()} <= volumes, "a volume is left"
        assert (folder / "mark").exists()
    finally:
        runner.sweep()
        client.close()
