"""The client against an emulator whose containers are played: what is repeated, what never is, and what is told."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.gpulab.service import Account, Service, Silent, address
from played import Played, wanted
from support import wait_for


def test_a_job_from_its_submission_to_its_removal(service: Service, lab: Played) -> None:
    job = service.submit(wanted())
    assert job.name.startswith("hvdctl-demo-node0-")
    wait_for(lambda: service.job(job.uuid).status == "RUNNING")  # type: ignore[union-attr]
    running = service.job(job.uuid)
    assert running is not None
    assert (running.host, running.ports, running.proxy) == ("192.0.2.1", {2222: 30000}, "tester@127.0.0.1:2222")
    wait_for(lambda: "hvd-node:" in service.log(job.uuid))
    assert [one.uuid for one in service.jobs()] == [job.uuid]
    service.remove([running])
    assert service.jobs() == []
    assert lab.active == []
    service.remove([running])  # again does no harm
    assert service.job("00000000-0000-4000-8000-000000000000") is None


def test_one_wish_is_one_job(service: Service, lab: Played) -> None:
    first = service.submit(wanted())
    assert service.submit(wanted()).uuid == first.uuid
    assert service.submit(wanted("node1")).uuid != first.uuid
    assert len(lab.jobs) == 2


def test_a_job_that_was_asked_for_in_another_way_is_replaced(service: Service, lab: Played) -> None:
    first = service.submit(wanted())
    second = service.submit(wanted(gpus=2))
    assert second.uuid != first.uuid
    assert [job.uuid for job in lab.active] == [second.uuid]


def test_a_list_that_may_not_be_whole_is_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdctl.gpulab.service._PAGE", 2)
    service.submit(wanted())
    assert len(service.jobs()) == 1
    with pytest.raises(HvdctlError, match="GPULab lists 2 jobs of yours, and there may be more"):
        service.submit(wanted("node1"))


def test_one_that_can_not_be_cancelled_does_not_keep_the_others(service: Service, lab: Played) -> None:
    jobs = [service.submit(wanted(f"node{i}")) for i in range(3)]
    lab.inject({"method": "PUT", "path": f"jobs/{jobs[0].uuid}/", "status": 403, "body": "no", "times": -1})
    with pytest.raises(HvdctlError, match=r"\(403\): no"):
        service.remove(jobs)
    wait_for(lambda: [job.uuid for job in lab.active] == [jobs[0].uuid])


def test_a_job_that_has_ended_is_no_hindrance(service: Service, lab: Played) -> None:
    first = service.submit(wanted())
    service.cancel([first])
    assert service.submit(wanted()).uuid != first.uuid
    assert len(lab.active) == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"drop": "after"},
        {"drop": "before"},
        {"status": 500, "times": 2},
        {"status": 503, "times": 3},
        {"status": 429},
    ],
)
def test_no_fault_makes_a_second_job(service: Service, lab: Played, fault: dict[str, object]) -> None:
    lab.inject({"method": "POST", "path": "jobs$", **fault})
    job = service.submit(wanted())
    assert [one.uuid for one in lab.jobs] == [job.uuid]


def test_of_two_that_came_about_the_older_stays(service: Service, lab: Played) -> None:
    """An answer that is lost, and a service that lists the job only later."""
    first = service.submit(wanted())
    lab.inject({"method": "GET", "path": "jobs$", "times": 1, "state": "CANCELLED"})
    job = service.submit(wanted())
    assert job.uuid == first.uuid
    wait_for(lambda: len(lab.active) == 1)
    assert len(lab.jobs) == 2


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_questions_are_asked_again(service: Service, lab: Played, status: int) -> None:
    job = service.submit(wanted())
    lab.inject({"method": "GET|PUT|DELETE", "path": "jobs", "status": status, "times": 3})
    assert service.job(job.uuid)
    lab.inject({"method": "PUT", "path": "jobs", "status": status, "times": 3})
    service.remove([job])
    assert lab.active == []


def test_a_dropped_answer_to_a_question_is_asked_for_again(service: Service, lab: Played) -> None:
    lab.inject({"method": "GET", "path": "jobs", "drop": "after", "times": 2})
    assert service.jobs() == []


def test_a_service_that_stays_at_fault_is_told(service: Service, lab: Played) -> None:
    lab.inject({"method": "GET", "path": "jobs", "status": 503, "body": "maintenance", "times": -1})
    with pytest.raises(Silent, match="answers 503 to GET jobs: maintenance") as told:
        service.jobs()
    assert "try again later" in told.value.hint
    assert told.value.exit_code == 1


def test_what_is_refused_is_told_once(service: Service, lab: Played) -> None:
    began = time.monotonic()
    lab.inject({"method": "POST", "path": "jobs$", "status": 403, "body": "not your project", "times": -1})
    with pytest.raises(HvdctlError, match=r"refuses POST jobs \(403\): not your project") as told:
        service.submit(wanted())
    assert "project=NAME" in told.value.hint
    assert time.monotonic() - began < 5
    assert lab.jobs == []


def test_unknown_fields_and_states_do_no_harm(service: Service, lab: Played) -> None:
    job = service.submit(wanted())
    lab.inject({"method": "GET", "path": "jobs", "times": -1, "extra": {"aura": {"colour": 1}}, "state": "TELEPORTING"})
    found = service.job(job.uuid)
    assert found is not None
    assert (found.status, found.gone) == ("TELEPORTING", False)
    assert [one.uuid for one in service.jobs()] == [job.uuid]
    assert service.submit(wanted()).uuid == job.uuid, "one in a state that nobody knows is not submitted again"


def test_an_answer_that_is_no_json_is_told(service: Service, lab: Played) -> None:
    lab.inject({"method": "GET", "path": "jobs", "status": 200, "body": "<html>Log in</html>", "times": -1})
    with pytest.raises(HvdctlError, match="something else than JSON: <html>Log in</html>"):
        service.jobs()


def test_an_emulator_that_is_not_there_is_told_at_once(keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(HvdctlError, match=f"no emulator answers at http://127.0.0.1:{port}/api/") as told:
        Service(Account(f"http://127.0.0.1:{port}/api/", keys / "login.pem")).jobs()
    assert told.value.hint.startswith("`hvdctl gpulab emulate` starts one")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("server", ["gpulab", "ftp://x/api", "http://gpulab.example.org/api/"])
def test_an_address_that_can_not_be_right_is_refused(server: str) -> None:
    with pytest.raises(UsageError, match=r"options\.server"):
        address(server)


def test_an_address_has_one_form() -> None:
    assert address("https://gpulab.example.org/api") == "https://gpulab.example.org/api/"
    assert address("http://127.0.0.1:8/api/") == "http://127.0.0.1:8/api/"
