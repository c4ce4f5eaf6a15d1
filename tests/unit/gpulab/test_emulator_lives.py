"""The lives of jobs, with containers that are played."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from emulator_lab import Bench, reaches, until, with_bench
from hvdctl.gpulab.emulator import states
from hvdctl.gpulab.emulator.jobs import Job


def passed(job: Job) -> list[str]:
    return [event["newState"] for event in job.events if event["type"] == "STATUS_CHANGE"]


def notes(job: Job) -> str:
    return "\n".join(event.get("msg", "") for event in job.events)


@pytest.mark.parametrize(("code", "end"), [(0, "FINISHED"), (3, "FAILED")])
def test_a_job_ends_as_its_container_does(tmp_path: Path, code: int, end: str) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running()
        bench.runner.end(job.uuid, code)
        await reaches(job, end)
        assert passed(job) == ["QUEUED", "ASSIGNED", "STARTING", "RUNNING", end]
        assert f"exit code {code}" in notes(job)
        await until(lambda: job.uuid in bench.runner.removed)

    with_bench(tmp_path, work)


def test_a_container_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit(docker={"image": "missing:1"})
        await reaches(job, "FAILED")
        assert "image missing:1 is not there" in notes(job)
        _, log = await bench.call("GET", f"jobs/{job.uuid}/log")
        assert log == "image missing:1 is not there\n"

    with_bench(tmp_path, work)


def test_hold_and_release(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit("?hold=true")
        assert job.status == "ONHOLD"
        assert await bench.put(job, "QUEUED") == 200
        await reaches(job, "RUNNING")
        assert await bench.put(job, "ONHOLD") == 409

    with_bench(tmp_path, work)


def test_a_job_that_runs_is_stopped_when_cancelled(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running()
        assert await bench.put(job, "Cancelled") == 200
        await reaches(job, "CANCELLED")
        assert passed(job)[-2:] == ["CANCELLING", "CANCELLED"]
        assert bench.runner.stopped == {job.uuid: 10.0}
        assert await bench.put(job, "CANCELLED") == 200
        assert await bench.put(job, "QUEUED") == 409

    with_bench(tmp_path, work)


def test_a_job_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit(resources={"clusterId": 9})
        assert await bench.put(job, "CANCELLED") == 200
        assert job.status == "CANCELLED"
        assert bench.runner.stopped == {}

    with_bench(tmp_path, work)


def test_a_job_that_starts_is_cancelled_before_it_runs(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit()
        await reaches(job, "ASSIGNED")
        assert await bench.put(job, "CANCELLED") == 200
        await reaches(job, "CANCELLED")
        assert "RUNNING" not in passed(job)
        assert bench.runner.ends == {}

    with_bench(tmp_path, work, pace=5)


def test_a_halted_job_that_can_restart_goes_on_under_another_uuid(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running(scheduling={"restartable": True})
        assert await bench.put(job, "MUSTHALT") == 200
        await reaches(job, "HALTED")
        assert passed(job)[-3:] == ["MUSTHALT", "HALTING", "HALTED"]
        second = await until(lambda: next((one for one in bench.lab.jobs.values() if one is not job), None))
        await reaches(second, "RUNNING")
        assert await bench.put(second, "MUSTHALT") == 200
        third = await until(lambda: next((one for one in bench.lab.jobs.values() if one not in (job, second)), None))
        info = (await bench.get(f"jobs/{third.uuid}"))["restartInfo"]
        assert info == {"initialJobUuid": job.uuid, "restartCount": 2}

    with_bench(tmp_path, work)


def test_a_halted_job_that_cannot_restart_has_failed(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running(scheduling={"allowHaltWithoutSignal": True})
        await bench.put(job, "MUSTHALT")
        await reaches(job, "FAILED")
        assert bench.runner.stopped == {job.uuid: 0}
        assert len(bench.lab.jobs) == 1

    with_bench(tmp_path, work)


def test_a_job_whose_time_is_over_is_cancelled_and_told_why(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit("?hold=true", scheduling={"maxDuration": "1 minute"})
        job.ran_before = 59.9
        await bench.put(job, "QUEUED")
        await reaches(job, "CANCELLED")
        assert "maxDuration (1 minute) is over" in notes(job)

    with_bench(tmp_path, work)


def test_an_interactive_job_does_not_wait(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit(scheduling={"interactive": True}, resources={"gpus": 17})
        await reaches(job, "FAILED")
        assert "it can never start" in notes(job)

    with_bench(tmp_path, work)


def test_who_waits_is_told_why_and_starts_when_there_is_room(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        first = await bench.running(resources={"slaveName": "slave1A", "gpus": 4})
        second = await bench.submit(resources={"slaveName": "slave1A", "gpus": 2})
        reasons = await until(lambda: second.reasons)
        assert reasons == ("needs 2 GPUs; the most that is free on worker slave1A is 0",)
        told: Any = await bench.get(f"jobs/{second.uuid}")
        assert told["state"]["scheduling"]["queuedExplanations"] == list(reasons)
        bench.runner.end(first.uuid, 0)
        await reaches(second, "RUNNING")
        assert second.reasons == ()

    with_bench(tmp_path, work)


def test_a_job_starts_not_before_its_time(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.7)
        job = await bench.submit(scheduling={"notBefore": soon.isoformat()})
        await until(lambda: job.reasons)
        await reaches(job, "RUNNING")
        assert job.times["ASSIGNED"] >= soon

    with_bench(tmp_path, work)


def test_the_eleventh_job_of_a_user_waits(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        jobs = [await bench.submit(name=f"w{number}", resources={"clusterId": 4}) for number in range(11)]
        await until(lambda: sum(job.status == "RUNNING" for job in jobs) == 10)
        assert jobs[10].status == "QUEUED"
        assert jobs[10].reasons == ("user tester has 10 jobs running, the most that is allowed",)
        bench.runner.end(jobs[3].uuid, 0)
        await reaches(jobs[10], "RUNNING")

    with_bench(tmp_path, work)


@pytest.mark.parametrize("current", sorted(states.ENDED))
@pytest.mark.parametrize("wanted", ["ONHOLD", "QUEUED", "MUSTHALT"])
def test_what_ended_stays_ended(current: str, wanted: str) -> None:
    with pytest.raises(states.NotPossible, match=current):
        states.after(current, wanted)


@pytest.mark.parametrize("text", ["MUSTHALT", "Must Halt", '"MUST HALT"', " musthalt\n"])
def test_states_are_known_by_all_their_forms(text: str) -> None:
    assert states.named(text) == "MUSTHALT"
