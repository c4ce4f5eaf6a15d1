"""hvd_gpulab_job as Terraform calls it, on an emulator whose containers are played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdctl import owner
from hvdctl.gpulab.emulator.workers import Worker
from hvdctl.tfprovider import gpulab
from hvdctl.tfprovider.gpulab import Gpulab, HvdGpulabJob
from hvdctl.tfprovider.provider import HvdProvider
from played import KEY, Played, played
from support import wait_for
from test_tfprovider import Caller

TINY = (
    Worker(name="tiny", cluster=4, gpus=2, cpus=64, memory=256, gpu_model="Tesla V100", gpu_memory=32, cuda="12.2"),
)
COMPUTED = ("id", "address", "ssh_port", "ssh_proxy", "private_address", "host_key", "user_key", "on")


def caller(lab: Played, keys: Path, wait: float = 20) -> Caller:
    provider = HvdProvider()
    config = {"gpulab_server": lab.url, "gpulab_certificate": str(keys / "login.pem"), "gpulab_wait": wait}
    provider.gpulab = Gpulab(config)
    return Caller(HvdGpulabJob(provider))


@pytest.fixture
def job(lab: Played, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setattr(gpulab, "_LOOK_FIRST", 0.02)
    return caller(lab, keys)


def planned(node: str = "node0", **more: Any) -> dict[str, Any]:
    known = {attribute.name: None for attribute in HvdGpulabJob.get_schema().attributes}
    return {
        **known,
        "cluster": "demo",
        "name": node,
        "project": "urn:publicid:IDN+ilabt.imec.be+project+demo",
        "image": "hvdctl/horovod:1",
        "slots": 1,
        "gpus": 1,
        "storage": "/project_ghent/hvdctl/demo",
        "ssh_public_key": KEY,
        "min_duration": "1 hour",
        "max_duration": "2 hours",
        **more,
    }


def test_a_job_is_made_when_its_node_has_said_who_it_is(job: Caller, lab: Played) -> None:
    made = job.create(planned())
    assert job.errors == []
    assert [made[key] for key in COMPUTED[1:]] == [
        "192.0.2.1",
        30000,
        "tester@127.0.0.1:2222",
        "172.20.0.2",
        "ssh-ed25519 HOST",
        "ssh-ed25519 USER",
        lab.jobs[0].place.worker.name,  # type: ignore[union-attr]
    ]
    assert job.read(made) == made
    assert job.update(made, {**planned(), "labels": {"a": "b"}})["id"] == made["id"]
    assert job.delete(made) is None
    assert (job.errors, lab.active) == ([], [])
    assert job.read(made) is None


def test_a_job_has_its_owner_in_its_name_and_description(job: Caller, lab: Played) -> None:
    this = owner.this()
    made = job.create(planned(labels=this.labels))
    submission = lab.active[0].submission
    assert submission.name == f"hvdctl-demo-node0-{this.id[:8]}"
    assert str(submission.description).endswith(f" for {this.name}")
    assert job.create(planned(labels=this.labels))["id"] == made["id"], "the same job, not another one"
    job.delete(made)  # again does no harm
    assert job.errors == []


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "HALTED", "CANCELLED", "DELETED", "Must Halt"])
def test_a_job_that_ended_is_drift(job: Caller, lab: Played, state: str) -> None:
    made = job.create(planned())
    lab.inject({"method": "GET", "path": f"jobs/{made['id']}$", "state": state})
    assert job.read(made) is None


def test_a_job_that_was_removed_is_drift_and_one_in_a_new_state_is_not(job: Caller, lab: Played) -> None:
    made = job.create(planned())
    lab.inject({"method": "GET", "path": f"jobs/{made['id']}$", "state": "TELEPORTING", "extra": {"x": 1}})
    assert job.read(made) == made
    lab.inject({"method": "GET", "path": f"jobs/{made['id']}$", "status": 404})
    assert job.read(made) is None


def test_a_service_at_fault_is_no_drift(job: Caller, lab: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job.create(planned())
    monkeypatch.setattr(job.resource.provider.gpulab.service, "_pauses", (0.01,))
    lab.inject({"method": "GET", "path": f"jobs/{made['id']}$", "status": 500, "times": -1})
    assert job.read(made) == made
    assert "answers 500" in job.errors[0]


def test_a_job_that_fails_at_its_start_shows_the_end_of_its_log(job: Caller) -> None:
    assert job.create(planned(image="failing:1")) is None
    assert "is FAILED" in job.errors[0]
    assert "one | two | no GPU here" in job.errors[0]


def test_an_image_that_is_not_there_is_told(job: Caller) -> None:
    assert job.create(planned(image="missing:1")) is None
    assert "image missing:1 is not there" in job.errors[0]


def test_an_image_that_is_not_hvdctls_is_told(job: Caller, lab: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpulab, "_ANNOUNCED_PATIENCE", 0.3)
    monkeypatch.setattr(lab.runner, "say", lambda uuid, said: None)
    assert job.create(planned()) is None
    assert "its image does not say what hvdctl's images say" in job.errors[0]


def test_a_job_that_waits_too_long_is_told_in_the_services_words(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpulab, "_LOOK_FIRST", 0.02)
    with played(tmp_path / "tiny", TINY) as lab:
        job = caller(lab, keys, wait=0.5)
        assert job.create(planned(gpus=3)) is None
        assert "is QUEUED: needs 3 GPUs" in job.errors[0]
        assert len(lab.active) == 1, "it stays for the next try"
        (waiting,) = lab.active
        assert caller(lab, keys, wait=0.5).create(planned(gpus=3)) is None
        assert [one.uuid for one in lab.active] == [waiting.uuid], "which is not a second submission"


def test_others_are_not_waited_for_where_one_failed(tmp_path: Path, keys: Path) -> None:
    with played(tmp_path / "tiny", TINY) as lab:
        job = caller(lab, keys, wait=60)
        job.create(planned("node0", image="failing:1"))
        job.create(planned("node1", gpus=3))
        assert "not waited for any longer" in job.errors[0]


def test_a_job_is_imported_by_its_id(job: Caller) -> None:
    made = job.create(planned())
    wait_for(lambda: job.import_(made["id"]))
    found = job.import_(made["id"])
    assert {key: found[key] for key in ("cluster", "name", *COMPUTED)} == {
        key: made[key] for key in ("cluster", "name", *COMPUTED)
    }
    assert job.import_("00000000-0000-4000-8000-000000000000") is None
    assert "there is no job" in job.errors[0]
