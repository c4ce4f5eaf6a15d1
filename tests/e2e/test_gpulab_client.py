"""imec's own client against `hvdctl gpulab emulate`, with real containers and the real ssh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdctl import engine

from .conftest import Output, interrupt, wait_for
from .emulators import CLIENT, IMAGE, SERVES, STAYS, Emulator, emulator, left, plain_image, start

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("plain_image")]
__all__ = ["plain_image"]


@pytest.fixture(scope="module")
def gpulab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("gpulab") / "emulator") as made:
        yield made


def test_clusters(gpulab: Emulator) -> None:
    table = gpulab("clusters")
    assert "GeForce GTX 1080 Ti" in table
    assert "Tesla V100-SXM3-32GB" in table
    assert 'Host "slave4A"' in gpulab("clusters", "4")
    assert "slave1A" not in gpulab("clusters", "4", "--short")
    every = gpulab("clusters", "--all", "--short")
    assert all(name in every for name in ("slave1A", "slave1B", "slave4A", "slave4B"))


def test_a_job_from_submission_to_removal(gpulab: Emulator) -> None:
    done = gpulab.run("submit", "--wait-done", given=_short("echo out; echo err >&2; exit 0"))
    uuid = done.stdout.split()[0]
    assert "Job has finished" in done.stderr
    assert gpulab.status(uuid) == "FINISHED"
    listed = gpulab.run("jobs", "-u")
    assert f"{uuid} short" in listed.stdout
    assert "Could not check" not in listed.stderr  # the version was asked for and answered
    assert "new version" not in listed.stderr
    shown = gpulab("jobs", uuid)
    assert "Status: FINISHED" in shown
    assert "Project: demo" in shown
    assert sorted(gpulab("log", uuid).split()) == ["err", "out"]
    assert "needs finished=true" in gpulab.run("rm", uuid, code=1).stderr
    gpulab("rm", "--finished", uuid)
    assert uuid not in gpulab("jobs", "-u")
    assert gpulab.status(uuid) == "DELETED"
    gpulab("rm", "--finished", "--real", uuid)
    assert "there is no job" in gpulab.run("jobs", uuid, code=1).stderr


def test_wait_hold_release_and_cancel(gpulab: Emulator) -> None:
    uuid = gpulab.submit(STAYS, "--hold")
    assert gpulab.status(uuid) == "ONHOLD"
    gpulab("release", uuid)
    assert "Job is now running" in gpulab.run("wait", "--wait-run", uuid).stderr
    assert gpulab.status(uuid) == "RUNNING"
    assert "can't be put on hold" in gpulab.run("hold", uuid, code=1).stderr
    gpulab("cancel", uuid)
    assert "Job has finished" in gpulab.run("wait", "--wait-done", uuid).stderr
    gpulab.reaches(uuid, "CANCELLED")
    assert gpulab("log", uuid) == "hello\nbye\n"


def test_a_job_that_waits_is_held_and_says_why_it_waits(gpulab: Emulator) -> None:
    uuid = gpulab.submit(resources={"gpus": 5, "clusterId": 1})
    wait_for(lambda: gpulab.now(uuid)["scheduling"]["queuedExplanations"], 20)
    reason = gpulab.job(uuid)["state"]["scheduling"]["queuedExplanations"]
    assert reason == ["needs 5 GPUs; no worker has more than 4: it can never start"]
    gpulab("hold", uuid)
    assert gpulab.status(uuid) == "ONHOLD"
    gpulab("cancel", uuid)
    assert gpulab.status(uuid) == "CANCELLED"


def test_a_halted_job_goes_on_under_another_uuid(gpulab: Emulator) -> None:
    uuid, _ = gpulab.running(scheduling={"restartable": True})
    gpulab("halt", uuid)
    gpulab.reaches(uuid, "HALTED")
    assert gpulab("log", uuid) == "hello\nbye\n"
    second = json.loads(gpulab("jobs", "--raw"))[0]
    assert second["restartInfo"] == {"initialJobUuid": uuid, "restartCount": 1}
    gpulab.reaches(second["uuid"], "RUNNING")
    gpulab.end(second["uuid"])


@pytest.mark.parametrize(
    ("docker", "reason"),
    [
        ({"image": "127.0.0.1:1/nothing:1"}, "image 127.0.0.1:1/nothing:1 is not there and can't be pulled"),
        ({"command": ["no-such-program"]}, "no-such-program"),
        ({"storage": ["/etc"]}, "there is no '/etc/' on cluster"),
    ],
)
def test_a_job_that_cannot_start_says_why(gpulab: Emulator, docker: dict[str, Any], reason: str) -> None:
    uuid = gpulab.submit(docker=docker)
    gpulab.reaches(uuid, "FAILED")
    assert reason in gpulab("log", uuid)
    told = gpulab("debug", uuid)
    assert "STATE CHANGED -> FAILED" in told
    assert reason in told


def test_a_followed_log_has_every_line_once(gpulab: Emulator) -> None:
    uuid, _ = gpulab.running("for i in $(seq 40); do echo line $i; sleep 0.05; done; echo the end")
    with subprocess.Popen([CLIENT, "log", "-f", uuid], env=gpulab.env, stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout
        lines = []
        for line in follow.stdout:
            lines.append(line.strip())
            if line.startswith("the end"):
                break
        follow.kill()
    assert lines == [*(f"line {number}" for number in range(1, 41)), "the end"]


@pytest.mark.parametrize("way", ["--no-proxy", "--proxy"])
def test_ssh_leads_into_the_container(gpulab: Emulator, way: str) -> None:
    uuid, _ = gpulab.running("echo $(hostname) > /tmp/name; " + STAYS)
    words = "cat; echo to stderr >&2; exit 5"
    done = gpulab.run("ssh", way, uuid, code=5, given=f"cat /tmp/name; hostname\n{words}\nread by cat")
    first, second, last = done.stdout.splitlines()[-3:]
    assert first == second
    assert last == "read by cat"
    assert "to stderr" in done.stderr
    full = next(line for line in gpulab("ssh", "--show", way, uuid).splitlines() if line.startswith("Full:"))
    ran = subprocess.run(
        f"{full.removeprefix('Full:').strip()} 'hostname; id -un'",
        shell=True,
        env=gpulab.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.split() == [first, "root"], ran.stderr
    gpulab.end(uuid)


def test_ssh_with_a_terminal_and_a_lot_of_data(gpulab: Emulator) -> None:
    uuid, resources = gpulab.running()
    ssh = ["ssh", "-i", str(gpulab.login), "-p", str(resources["sshPort"])]
    target = f"{resources['sshUsername']}@127.0.0.1"
    terminal = subprocess.run([*ssh, "-tt", target, "tty"], env=gpulab.env, capture_output=True, timeout=60, check=True)
    assert terminal.stdout.startswith(b"/dev/pts/")
    data = os.urandom(8 * 1024**2)
    echoed = subprocess.run(
        [*ssh, target, "cat"], env=gpulab.env, input=data, capture_output=True, timeout=60, check=True
    )
    assert echoed.stdout == data
    gpulab.end(uuid)


def test_a_port_mapping_is_on_the_worker_only_and_behind_the_bastion(gpulab: Emulator) -> None:
    uuid, resources = gpulab.running(SERVES, docker={"portMappings": [{"containerPort": 8000}]})
    mapped = resources["portMappings"][0]
    host, port = resources["slaveHost"], mapped["hostPort"]
    assert (mapped["containerPort"], mapped["hostIp"]) == (8000, host)
    ask = ["curl", "--silent", "--max-time", "5", "--noproxy", "*"]

    def got(address: str) -> str:
        return subprocess.run([*ask, f"http://{address}/it"], capture_output=True, text=True, check=False).stdout

    assert wait_for(lambda: got(f"{host}:{port}"), 20) == "served\n"
    assert got(f"127.0.0.1:{port}") == ""

    def through(target: str) -> subprocess.CompletedProcess[str]:
        bastion = [str(resources["sshProxyPort"]), f"{resources['sshProxyUsername']}@{resources['sshProxyHost']}"]
        argv = ["ssh", "-i", str(gpulab.login), "-W", target, "-p", *bastion]
        return subprocess.run(
            argv,
            env=gpulab.env,
            input="GET /it HTTP/1.0\r\n\r\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert through(f"{host}:{port}").stdout.endswith("served\n")
    refused = through(f"{host}:{port + 1}")
    assert refused.returncode == 255
    assert "no port mapping of a job that runs" in refused.stderr
    gpulab.end(uuid)


def test_jobs_on_two_workers_share_the_project_folder(gpulab: Emulator) -> None:
    docker = {"storage": [{"hostPath": "/project_ghent/x", "containerPath": "/p"}], "projectGidVariableName": "GID"}
    first = gpulab.submit(
        "echo from $GPULAB_SLAVE_HOSTNAME > /p/file", docker=docker, resources={"slaveName": "slave4A"}
    )
    gpulab.reaches(first, "FINISHED")
    second = gpulab.submit(
        "cat /p/file; echo $GPULAB_SLAVE_HOSTNAME $GPULAB_PROJECT $GPULAB_USERNAME $GID",
        docker=docker,
        resources={"slaveName": "slave1B"},
    )
    gpulab.reaches(second, "FINISHED")
    assert gpulab("log", second) == "from slave4A\nslave1B demo tester 20001\n"


def test_another_user_sees_little_and_changes_nothing(gpulab: Emulator) -> None:
    uuid = gpulab.submit(name="private", resources={"clusterId": 9})
    other = gpulab.as_user("other")
    assert "private" not in other("jobs")
    assert "is not one of user other" in other.run("cancel", uuid, code=1).stderr
    assert gpulab.status(uuid) == "QUEUED"
    gpulab("cancel", uuid)


def test_it_says_where_it_is_and_what_becomes_of_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "told"
    argv = [sys.executable, "-m", "hvdctl", "gpulab", "emulate", "--plain-http", "--folder", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        output = Output(process)
        said = output.until("gpulab-cli jobs")
        assert "GPUs are counted, not there." in said
        assert f"hvdctl up --file {folder / 'hvdctl.yml'} --layout 4x1" in said
        url = json.loads((folder / "emulator.json").read_text())["url"]
        assert f"GPULAB_API_BASE={url}" in said
        told = {"folder": str(folder), "ca": None, "url": url}
        client = Emulator(process, told, tmp_path / "client", folder / "login.pem")
        uuid = client.submit("exit 3", name="short-lived")
        states = output.until(f"{uuid.split('-')[0]}  short-lived  FAILED  the container ended with exit code 3")
        assert [word for word in states.split() if word in {"QUEUED", "ASSIGNED", "STARTING", "RUNNING"}] == [
            "QUEUED",
            "ASSIGNED",
            "STARTING",
            "RUNNING",
        ]
        interrupt(process)
        assert process.wait(60) == 0


def test_plain_http(tmp_path: Path) -> None:
    with emulator(tmp_path / "plain", "--plain-http") as plain:
        assert plain.told["url"].startswith("http://127.0.0.1:")
        uuid, _ = plain.running("echo hello; sleep 60")
        assert f"{uuid} job" in plain("jobs")
        assert plain("log", uuid) == "hello\n"
        began = time.monotonic()
    assert time.monotonic() - began < 30


def test_isolated_workers_share_port_mappings_only(tmp_path: Path) -> None:
    with emulator(tmp_path / "apart", "--isolate") as apart:
        first, resources = apart.running(SERVES, docker={"portMappings": [8000]}, resources={"slaveName": "slave4A"})
        found: Any = engine.client().containers.list(filters={"label": f"hvdctl.gpulab.job={first}"})[0]
        inside = next(iter(found.attrs["NetworkSettings"]["Networks"].values()))["IPAddress"]
        mapped = f"{resources['slaveHost']}:{resources['portMappings'][0]['hostPort']}"
        look = "import sys, urllib.request as u; print(u.urlopen('http://' + sys.argv[1] + '/it', timeout=4).read())"
        wait_for(lambda: "served" in _asked(f"{inside}:8000"), 20)
        for address, end in ((mapped, "FINISHED"), (f"{inside}:8000", "FAILED")):
            second = apart.submit(
                docker={"command": ["python3", "-c", look, address]}, resources={"slaveName": "slave4B"}
            )
            assert apart.ended(second) == end, apart("log", second)


def test_what_a_killed_emulator_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    process = start(folder)
    assert process.stdout
    killed = Emulator(process, json.loads(process.stdout.readline()), tmp_path / "client", folder / "login.pem")
    uuid, _ = killed.running()
    refused = start(folder)
    assert refused.wait(60) == 3
    process.kill()
    process.wait()
    before = set(left(folder))
    assert any(uuid.split("-")[0] in name for name in before)
    with emulator(folder) as again:
        assert not any(uuid.split("-")[0] in name for name in left(folder))
        assert again("jobs").count("\n") == 1


def _short(command: str) -> str:
    request = {
        "resources": {"cpus": 1, "gpus": 0, "cpuMemoryGb": 1},
        "docker": {"image": IMAGE, "command": ["sh", "-c", command]},
    }
    return json.dumps({"name": "short", "request": request})


def _asked(address: str) -> str:
    argv = ["curl", "--silent", "--max-time", "5", "--noproxy", "*", f"http://{address}/it"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
