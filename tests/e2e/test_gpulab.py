"""Clusters as jobs of GPULab: a real hvdctl, and an emulator of the service that runs each job as a real container."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from hvdctl import process
from hvdctl.gpulab.emulator import pki

from .conftest import SCRIPTS, Hvdctl, Output, Result, asked, wait_for
from .emulators import Emulator, emulator, left, plain_image, start

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("plain_image")]
__all__ = ["plain_image"]

ENDED = {"FINISHED", "FAILED", "CANCELLED", "HALTED", "DELETED"}
PHRASE = "a phrase that is nowhere else"
TINY = [
    {"name": "tiny", "cluster": 4, "gpus": 2, "cpus": 64, "memory": 256, "gpu_model": "Tesla V100", "gpu_memory": 32}
]


class Jobs(Hvdctl):
    """The command line on a cluster of jobs, with the emulator that runs them and imec's client beside it."""

    gpulab: Emulator
    faults: Path

    def up(self, *words: str, code: int = 0, **env: str) -> Result:
        return self("up", "--file", str(self.gpulab.told["spec"]), *words, code=code, **env)

    def inject(self, *faults: dict[str, Any]) -> None:
        self.faults.write_text(json.dumps(faults))

    def jobs(self) -> list[dict[str, Any]]:
        """Every job of this cluster that imec's client sees, the newest first."""
        return self._own(json.loads(self.gpulab("jobs", "--strict-user", "--raw", "--max-count", "100")))

    def now(self) -> list[dict[str, Any]]:
        """Every job of this cluster that the service lists, for a loop that waits for one."""
        return self._own(json.loads(self.gpulab.ask("jobs?page_size=100"))["items"])

    def _own(self, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [job for job in listed if job["name"].startswith(f"hvdctl-{self.name}-")]

    def active(self) -> dict[str, str]:
        """The ids of the jobs that wait or run, by the name of the node."""
        found = [job for job in self.now() if job["state"]["status"] not in ENDED]
        named = {job["name"].split("-")[-2]: job["uuid"] for job in found}
        assert len(named) == len(found), "two jobs of one node"
        return named


@contextlib.contextmanager
def cluster(gpulab: Emulator, faults: Path, home: Path) -> Iterator[Jobs]:
    made = Jobs(home)
    made.gpulab, made.faults = gpulab, faults
    yield made
    made.inject()
    if made.folder.exists():
        made("down", "-y", code=None)
    assert made.active() == {}
    assert not process.with_variable(f"HVDCTL_HOME={home}"), "no connection to the bastion is left open"


@contextlib.contextmanager
def apart(folder: Path, *words: str) -> Iterator[Jobs]:
    """A cluster on an emulator of its own."""
    faults = folder / "faults.json"
    with (
        emulator(folder / "emulator", "--faults", str(faults), *words) as gpulab,
        cluster(gpulab, faults, folder / "home") as made,
    ):
        yield made


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Emulator, Path]]:
    folder = tmp_path_factory.mktemp("lab")
    with emulator(folder / "emulator", "--faults", str(folder / "faults.json")) as made:
        yield made, folder / "faults.json"


@pytest.fixture
def hvdctl(lab: tuple[Emulator, Path], tmp_path: Path) -> Iterator[Jobs]:
    with cluster(*lab, tmp_path / "home") as made:
        yield made


def test_four_jobs_of_one_gpu(hvdctl: Jobs) -> None:
    assert "4 to create" in hvdctl("plan", "--file", str(hvdctl.gpulab.told["spec"]), "--layout", "4x1").out
    assert hvdctl.jobs() == []

    made = hvdctl.up("--layout", "4x1", "--json").data
    assert [(node["name"], node["gpus"], node["slots"]) for node in made["nodes"]] == [
        (f"node{i}", 1, 1) for i in range(4)
    ]
    assert {job["state"]["resources"]["slaveName"] for job in hvdctl.jobs()} == {"slave4A", "slave4B"}
    seen = {job["name"].split("-")[-2]: job["uuid"] for job in hvdctl.jobs()}
    assert seen == hvdctl.ids(), "imec's client and ours see the same jobs"
    for launcher in ("mpi", "torch"):
        told = hvdctl("run", "--launcher", launcher, "--", "python", "meet.py").out
        assert told.count("sum 10 of 4") == 4
    assert "an emulator, its GPUs are only counted" in hvdctl("status").out
    # Its other lines are about this machine, which may be busy.
    assert "12 of 12 pairs of nodes reach each other" in hvdctl("check", code=None).out

    # A job that is cancelled behind Terraform's back is drift.
    before = hvdctl.ids()
    hvdctl.gpulab("cancel", before["node2"])
    wait_for(lambda: "node2" not in hvdctl.active(), 30)
    assert hvdctl("status", "--json", code=1).data["lost"] == ["node2"]
    assert "lost: node2" in hvdctl("run", "--", "true", code=1).err
    assert hvdctl.up("--json").data["changes"] == {"made": ["hvd_gpulab_job.node[2]"]}
    after = hvdctl.ids()
    assert {name for name in before if before[name] != after[name]} == {"node2"}
    assert hvdctl("run", "--", "python", "allreduce.py").out.count("sum 10 of 4 by gloo") == 4

    hvdctl("scale", "--nodes", "2", "-y")
    assert hvdctl.active() == {name: after[name] for name in ("node0", "node1")}
    assert "sum 3 of 2" in hvdctl("run", "--", "python", "meet.py").out
    told = hvdctl("down", "-y").out
    assert f"0 left; kept: storage /project_ghent/hvdctl/tester/{hvdctl.name} of project demo" in told
    assert hvdctl.active() == {}


def test_one_job_of_four_gpus_with_a_bench(hvdctl: Jobs) -> None:
    made = hvdctl.up("--layout", "1x4", "--json").data
    assert [(node["gpus"], node["slots"]) for node in made["nodes"]] == [(4, 4)]
    (job,) = hvdctl.jobs()
    assert len(job["state"]["resources"]["gpuIds"]) == 4
    assert hvdctl("run", "--", "python", "allreduce.py").out.count("sum 10 of 4") == 4
    assert "can't be given a rate" in hvdctl("bench", "--net", "1g", "--nodes", "1", code=2).err
    words = ["--layout", "1x1,1x2", "--model", "convnet_cifar10", "--batch", "8"]
    told = hvdctl("bench", *words, "--max-steps", "4", "--max-seconds", "10", "--no-micro", "--json", "-y").data
    assert told["measured"] == 2
    assert "0 left" in hvdctl("down", "-y").out


def test_jupyterlab_through_the_bastion(hvdctl: Jobs) -> None:
    hvdctl.up("--layout", "2x1")
    url = hvdctl("jupyter", "--json").data["url"]
    token = url.partition("token=")[2]
    assert asked(url, "/api/contents/notebooks/hello.ipynb", token) == 200
    assert asked(url, "/api/contents") == 403
    told = hvdctl(
        "exec", "--", "python", "-c", "import os, hvd_cluster as hc; print(hc.run(lambda: os.environ['HVDCTL_RANK']))"
    )
    assert "['0', '1']" in told.out
    looked = hvdctl("top", "--once", "--json").data
    assert [node["node"] for node in looked["nodes"]] == ["node0", "node1"]
    assert not [node for node in looked["nodes"] if "lost" in node]
    hvdctl("down", "-y")
    assert asked(url, "/api") == 0


def test_killed_in_the_middle_of_ten_submissions(hvdctl: Jobs) -> None:
    hvdctl.inject({"method": "POST", "path": "jobs$", "delay": 1.5, "times": -1})
    first = hvdctl.start("up", "--file", str(hvdctl.gpulab.told["spec"]), "--layout", "10x1")
    wait_for(hvdctl.now, 60)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    there = len(hvdctl.jobs())
    assert 1 <= there <= 10
    hvdctl.inject()
    hvdctl.up("--layout", "10x1")
    assert sorted(hvdctl.active()) == sorted(f"node{i}" for i in range(10))
    assert len(hvdctl.jobs()) == 10, "not one was submitted twice, not even for a moment"
    assert hvdctl("run", "--", "hostname").out.count("[rank") == 10
    assert "0 left" in hvdctl("down", "-y").out


def test_faults_of_the_service_make_it_slower_and_nothing_else(hvdctl: Jobs) -> None:
    hvdctl.inject(
        {"method": "POST", "path": "jobs$", "drop": "after"},
        {"method": "POST", "path": "jobs$", "status": 503},
        {"method": "POST", "path": "jobs$", "status": 500},
        {"method": "GET", "path": "jobs/", "status": 500, "times": 3},
        {"method": "GET", "path": "jobs", "status": 503, "times": 2},
        {"method": "GET", "path": "jobs", "status": 429, "times": 2},
        {"method": "GET", "path": "jobs", "drop": "after", "times": 2},
        {"method": "GET", "path": "jobs", "delay": 2.0, "times": 3},
        {"method": "GET", "path": "jobs", "times": -1, "extra": {"aura": {"colour": "blue"}}},
    )
    hvdctl.up("--layout", "2x1")
    hvdctl.inject()  # imec's client stumbles over unknown fields
    assert len(hvdctl.jobs()) == 2
    hvdctl.inject({"method": "PUT", "path": "jobs", "status": 500, "times": 2}, {"method": "DELETE", "status": 503})
    assert "0 left" in hvdctl("down", "-y").out


def test_a_job_that_fails_at_its_start_shows_the_end_of_its_log(hvdctl: Jobs) -> None:
    told = hvdctl.up("--layout", "2x1", "--share", "/project_unknown/x", code=1)
    assert "is FAILED" in told.err
    assert "/project_unknown" in told.err
    assert "hvdctl-no-such-image" in hvdctl.up("--share", "auto", "--image", "hvdctl-no-such-image:1", code=1).err
    assert "0 left" in hvdctl("down", "-y").out


def test_more_jobs_than_a_user_may_run(hvdctl: Jobs, tmp_path: Path) -> None:
    others = [hvdctl.gpulab.post(name=f"other{i}") for i in range(8)]
    try:
        for uuid in others:
            hvdctl.gpulab.reaches(uuid, "RUNNING")
        told = hvdctl.up("--layout", "4x1", "--option", "wait=8 seconds", "--option", "when_short=cancel", code=1)
        assert "2 of 4 jobs run; " in told.err
        assert "user tester has 10 jobs running" in told.err
        assert "cancelled, as not all could start: node0, node1, node2, node3" in told.err
        assert hvdctl.active() == {}
        assert [hvdctl.gpulab.now(uuid)["status"] for uuid in others] == ["RUNNING"] * 8
    finally:
        hvdctl.gpulab.end(*others)
    # What is kept is gone on with as soon as there is room.
    hvdctl.up("--layout", "2x1", "--option", "when_short=keep")
    assert "12 jobs asked, but GPULab runs 10" in hvdctl.up("--nodes", "12", "--gpus", "0", code=2).err
    assert "no worker w9; there are: slave1A" in hvdctl.up("--option", "worker=w9", code=2).err


def test_jobs_that_wait_stay_and_are_taken_by_the_next_up(tmp_path: Path) -> None:
    (tmp_path / "workers.yml").write_text(json.dumps(TINY))
    with apart(tmp_path, "--workers", str(tmp_path / "workers.yml")) as hvdctl:
        blocker = hvdctl.gpulab.post()
        hvdctl.gpulab.reaches(blocker, "RUNNING")
        told = hvdctl.up("--layout", "2x1", "--option", "wait=5 seconds", code=1)
        assert "1 of 2 jobs run; node" in told.err
        assert "is QUEUED: needs 1 GPU" in told.err
        waiting = hvdctl.active()
        assert len(waiting) == 2
        assert hvdctl("status", code=1).code == 1
        hvdctl.gpulab.end(blocker)
        hvdctl.up("--layout", "2x1")
        assert hvdctl.active() == waiting


def test_nodes_that_can_not_reach_each_other_are_a_matrix(tmp_path: Path) -> None:
    with apart(tmp_path, "--isolate") as hvdctl:
        told = hvdctl.up("--layout", "2x1", code=1)
        assert "2 of 2 connections that Horovod needs are blocked" in told.err
        assert "node0    -        blocked" in told.err
        assert "--layout 1xGPUS" in told.err
        assert "is not whole yet" in hvdctl("run", "--", "true", code=1).err
        # The way out that it names.
        assert "-y to agree" in hvdctl.up("--layout", "2x1", "--option", "worker=slave4A", code=2).err
        hvdctl.up("--layout", "2x1", "--option", "worker=slave4A", "-y")
        assert "sum 3 of 2" in hvdctl("run", "--", "python", "meet.py").out


def test_a_login_that_can_not_be_used_creates_nothing(hvdctl: Jobs, tmp_path: Path) -> None:
    folder = Path(hvdctl.gpulab.told["folder"])
    expired = pki.login(folder, tmp_path / "expired.pem", days=-30)
    locked = pki.login(folder, tmp_path / "locked.pem", passphrase=PHRASE)
    stranger = tmp_path / "stranger"
    pki.ensure(stranger)
    for option, env, code, told in (
        (f"certificate={expired}", {}, 2, "expired on"),
        (f"certificate={locked}", {}, 2, "has a pass phrase, and nobody can be asked here"),
        (f"certificate={locked}", {"HVDCTL_GPULAB_PASSPHRASE": "not it"}, 2, "the pass phrase is wrong"),
        (f"certificate={stranger / 'login.pem'}", {}, 1, "a server that does not know your certificate may hang up"),
        (f"server_certificate={stranger / 'ca.pem'}", {}, 2, "another emulator answers at"),
    ):
        refused = hvdctl.up("--option", option, code=code, **env)
        assert told in refused.err
        assert "not it" not in refused.err
    assert hvdctl.jobs() == []
    assert not hvdctl.folder.exists()


def test_a_pass_phrase_is_written_nowhere(hvdctl: Jobs, tmp_path: Path) -> None:
    folder = Path(hvdctl.gpulab.told["folder"])
    locked = pki.login(folder, tmp_path / "locked.pem", passphrase=PHRASE)
    spec = str(hvdctl.gpulab.told["spec"])
    words = ["--file", spec, "--layout", "1x1", "--option", f"certificate={locked}"]
    # The jump host knows the other login's key; this one's would need an agent.
    words += ["--option", f"bastion_key={folder / 'login.pem'}"]
    asked = pexpect.spawn(
        hvdctl.argv("plan")[0],
        [*hvdctl.argv("plan")[1:], *words],
        env=hvdctl.env,
        cwd=str(SCRIPTS),
        encoding="utf-8",
        timeout=60,
    )
    asked.expect("Pass phrase of .*locked.pem: ")
    asked.sendline(PHRASE)
    asked.expect("1 to create")
    asked.expect(pexpect.EOF)
    assert PHRASE not in str(asked.before)

    secret = tmp_path / "phrase"
    secret.touch(mode=0o600)
    secret.write_text(PHRASE + "\n")
    hvdctl("up", *words, "--option", f"passphrase_file={secret}")
    hvdctl("status", HVDCTL_GPULAB_PASSPHRASE=PHRASE)
    hvdctl("exec", "--", "true")
    for file in (file for file in hvdctl.folder.rglob("*") if file.is_file()):
        assert PHRASE.encode() not in file.read_bytes(), file
    assert "0 left" in hvdctl("down", "-y").out


def test_no_private_key_leaves_where_it_was_made(hvdctl: Jobs) -> None:
    hvdctl.up("--layout", "2x1")
    for job in hvdctl.jobs():
        assert "PRIVATE" not in json.dumps(job)
        assert "PRIVATE" not in hvdctl.gpulab("log", job["uuid"])
    state = (hvdctl.folder / "terraform" / "terraform.tfstate").read_text()
    assert "PRIVATE" not in state
    ours = (hvdctl.folder / "ssh" / "id_ed25519").read_text().splitlines()[2]
    listed = hvdctl(
        "exec", "--all", "--", "sh", "-c", "cat /etc/hvdctl/ssh/*; stat -c '%a %U %n' /etc/hvdctl/ssh/id*"
    ).out
    assert ours not in listed, "a node has a key of its own"
    assert listed.count("600 hvd /etc/hvdctl/ssh/id_ed25519\n") == 2
    keys = [line for line in listed.splitlines() if "ssh-ed25519" in line and line.startswith("[node0]")]
    assert len(set(keys)) >= 4, "the cluster's key, those of both nodes and the node's host key"
    # Nothing that a job runs has privileges.
    found = hvdctl("exec", "--all", "--", "grep", "-E", "Cap(Eff|Prm|Bnd)|NoNewPrivs", "/proc/self/status").out
    assert found.count("0000000000000000") == 6
    assert found.count("NoNewPrivs:\t1") == 2


def test_a_bastion_with_another_key_is_refused(hvdctl: Jobs, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text((Path(hvdctl.gpulab.told["folder"]) / "known_hosts").read_text())
    hvdctl.up("--layout", "1x1", "--option", f"known_hosts={known}")
    hvdctl("exec", "--", "true")
    other = (hvdctl.folder / "ssh" / "id_ed25519.pub").read_text()
    known.write_text(f"[127.0.0.1]:{hvdctl.gpulab.told['ssh_port']} {other}")
    assert "Host key verification failed" in hvdctl("exec", "--", "true", code=None).err
    assert stat.S_IMODE((hvdctl.folder / "ssh" / "id_ed25519").stat().st_mode) == 0o600


def test_interrupted_while_jobs_wait(tmp_path: Path) -> None:
    (tmp_path / "workers.yml").write_text(json.dumps(TINY))
    with apart(tmp_path, "--workers", str(tmp_path / "workers.yml")) as hvdctl:
        waiting = hvdctl.start("up", "--file", str(hvdctl.gpulab.told["spec"]), "--layout", "3x1", "--verbose")
        output = Output(waiting)
        output.until("2 of 3 jobs run; node")
        waiting.send_signal(signal.SIGINT)
        told = output.rest()
        assert waiting.returncode == 130, told
        assert "0 left" in hvdctl("down", "-y").out
        assert set(os.listdir(hvdctl.home)) <= {".owner"}  # noqa: PTH208


def test_what_a_killed_emulator_left_goes_with_down(tmp_path: Path) -> None:
    folder = tmp_path / "emulator"
    killed = start(folder)
    assert killed.stdout
    spec = json.loads(killed.stdout.readline())["spec"]
    hvdctl = Hvdctl(tmp_path / "home")
    hvdctl("up", "--file", spec, "--layout", "2x1")
    killed.kill()
    killed.wait(30)
    assert len(left(folder)) == 3, "two jobs and their network"
    told = hvdctl("status", code=1)
    assert "the emulator has ended" in told.out
    assert "0 left" in hvdctl("down", "-y").out
    assert left(folder) == []
