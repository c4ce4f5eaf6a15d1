"""Every answer is one that imec's own models take: they refuse unknown fields."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from emulator_lab import Bench, body, reaches, until, with_bench
from hvdctl.gpulab.emulator import pki, states
from hvdctl.gpulab.emulator.jobs import User
from imecilabt.gpulab.schemas.job2 import Job
from imecilabt.gpulab.schemas.job_event import JobEvent
from imecilabt.gpulab.schemas.slave_info2 import ClusterInfo, SlaveInfo2

FULL: dict[str, Any] = {
    "resources": {"gpuModel": ["V100"], "gpuMemoryGb": 8, "minCudaVersion": 11, "clusterId": 4},
    "docker": {
        "image": "me:secret@registry.example/tiny:1",
        "portMappings": [{"containerPort": 22}],
        "environment": {"A": 1, "B": True},
        "storage": [
            {"hostPath": "/project_ghent", "containerPath": "/p"},
            {"hostPath": "tmpfs", "containerPath": "/t", "sizeGb": 2},
        ],
    },
    "scheduling": {"restartable": True, "maxSimultaneousJobs": {"bucketName": "b", "bucketMax": 3}},
}
OTHER = User(pki.user_urn("other"), pki.email_of("other"))


async def judged(bench: Bench, uuid: str) -> Job:
    """The job as imec's models read it, after all other answers were found good too."""
    for one in (await bench.get("jobs?page_size=50"))["items"]:
        Job.model_validate(one)
    for one in await bench.get(f"jobs/{uuid}/debug"):
        JobEvent.model_validate(one)
    for one in await bench.get("clusters"):
        ClusterInfo.model_validate(one)
    for one in await bench.get("slaves"):
        SlaveInfo2.model_validate(one)
    return Job.model_validate(await bench.get(f"jobs/{uuid}"))


@pytest.mark.parametrize("status", sorted(states.ALL))
def test_imec_s_models_take_every_answer_in_every_state(tmp_path: Path, status: str) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit("?hold=true", **FULL)
        if status not in states.WAITING:
            await bench.put(job, "QUEUED")
            await reaches(job, "RUNNING")
        if job.status != status:
            job.enter(status)
        for viewer in (bench.api.default_user, OTHER):
            bench.api.default_user = viewer
            if viewer == OTHER:
                assert Job.model_validate(await bench.get(f"jobs/{job.uuid}")).state.status.name == status
                continue
            found = await judged(bench, job.uuid)
            assert found.state.status.name == status
            assert found.request.scheduling.max_duration == "2 days"
            assert bool(found.state.resources) == (status not in states.WAITING)
            assert found.state.event_times.status_updated >= found.state.event_times.created

    with_bench(tmp_path, work)


def test_a_job_that_runs_says_where(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running(**FULL)
        resources = (await judged(bench, job.uuid)).state.resources
        assert resources
        assert (resources.cluster_id, resources.slave_host) == (4, "192.0.2.1")
        assert resources.gpu_ids == [0]
        assert (resources.ssh_host, resources.ssh_port) == ("127.0.0.1", 2222)
        assert resources.ssh_username == job.ssh_username
        assert len(job.ssh_username) == 8
        assert resources.ssh_proxy_username == "tester"
        mapped = resources.port_mappings[0]
        assert (mapped.container_port, mapped.host_port, mapped.host_ip) == (22, 30000, "192.0.2.1")

    with_bench(tmp_path, work)


def test_clusters_tell_what_is_free(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        await bench.running(resources={"clusterId": 1, "gpus": 3, "cpus": 5, "cpuMemoryGb": 6})
        one = next(ClusterInfo.model_validate(c) for c in await bench.get("clusters") if c["clusterId"] == 1)
        assert (one.gpu.available, one.gpu.acquired, one.cpu.available, one.slave_count) == (5, 8, 59, 2)
        assert one.active_jobs_counts
        assert one.active_jobs_counts.running == 1
        used = [SlaveInfo2.model_validate(s) for s in await bench.get("slaves") if s["activeJobUuids"]]
        assert [(s.cluster_id, s.gpu.used, s.cpu_memory_mb.used) for s in used] == [(1, 3, 6144)]

    with_bench(tmp_path, work)


def test_others_see_little_and_change_nothing(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running(name="secret-plan", **FULL)
        bench.api.default_user = OTHER
        seen = Job.model_validate(await bench.get(f"jobs/{job.uuid}"))
        assert seen.is_fully_sanitized()
        assert "secret" not in json.dumps(await bench.get("jobs"))
        for method, path in (("PUT", "/state/status"), ("DELETE", "?force=true"), ("GET", "/log"), ("GET", "/debug")):
            answer, text = await bench.call(method, f"jobs/{job.uuid}{path}", data=b"CANCELLED")
            assert answer.status == 403, path
            assert "is not one of user other" in text
        assert job.status == "RUNNING"
        await bench.submit(project="demo")  # now of the same project
        near = Job.model_validate(await bench.get(f"jobs/{job.uuid}"))
        assert (near.name, near.owner.userurn_name) == ("secret-plan", "tester")
        assert near.request.docker.image == "registry.example/tiny:1"
        assert near.request.extra.ssh_pub_keys == []

    with_bench(tmp_path, work)


def test_lists_are_the_newest_first_and_of_whom_was_asked(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        mine = [await bench.running(name=f"mine{number}") for number in range(3)]
        bench.api.default_user = OTHER
        theirs = await bench.running(name="theirs")
        waiting = await bench.submit("?hold=true", name="waits")

        async def listed(query: str) -> list[str]:
            return [one["uuid"] for one in (await bench.get(f"jobs?{query}"))["items"]]

        assert await listed("page_size=2") == [waiting.uuid, theirs.uuid]
        tester = "user_urn=urn:publicid:IDN%2Bilabt.imec.be%2Buser%2Btester"
        assert await listed(tester) == [one.uuid for one in reversed(mine)]
        assert await listed(f"{tester}&other_user_running=True") == [theirs.uuid, *(j.uuid for j in reversed(mine))]
        answer, text = await bench.call("GET", "jobs?page_size=many")
        assert (answer.status, text) == (400, "page_size: 'many' is not a number of jobs")

    with_bench(tmp_path, work)


def test_removing(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running()
        uuid = job.uuid
        assert (await bench.call("DELETE", f"jobs/{uuid}?finished=true"))[0].status == 409
        bench.runner.end(uuid, 0)
        await reaches(job, "FINISHED")
        answer, text = await bench.call("DELETE", f"jobs/{uuid}")
        assert answer.status == 409
        assert "finished=true" in text
        assert (await bench.call("DELETE", f"jobs/{uuid}?finished=true"))[0].status == 200
        assert (await bench.get("jobs"))["items"] == []
        assert (await judged(bench, uuid)).state.status.name == "DELETED"
        assert (await bench.call("DELETE", f"jobs/{uuid}?finished=true&real=true"))[0].status == 200
        assert (await bench.call("GET", f"jobs/{uuid}"))[0].status == 404

    with_bench(tmp_path, work)


def test_what_runs_is_removed_by_force(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running()
        answer, _ = await bench.call("DELETE", f"jobs/{job.uuid}?real=true&force=true")
        assert answer.status == 200
        assert job.uuid in bench.runner.removed or await until(lambda: job.uuid in bench.runner.removed)
        assert bench.lab.jobs == {}

    with_bench(tmp_path, work)


def test_bad_requests_are_told_what_is_bad(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        answer, text = await bench.call("POST", "jobs", json=body(resources={"gpuMemoryGb": 1}))
        assert answer.status == 400
        assert "request.resources.gpuMemoryGb: 1" in text
        job = await bench.submit("?hold=true")
        assert await bench.put(job, "EXPLODED") == 400
        assert await bench.put(job, "RUNNING") == 409
        assert (await bench.call("GET", "jobs/nothing"))[0].status == 404

    with_bench(tmp_path, work)


def test_a_followed_log_neither_repeats_nor_loses_a_byte(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running()
        read, offset = b"", 0
        pieces = [b"hello\n", b"wor", b"ld\n", b"\xff\x00 last"]
        for number, piece in enumerate(pieces):
            bench.runner.say(job.uuid, piece)
            so_far = b"".join(pieces[: number + 1])
            await until(lambda so_far=so_far: bench.lab.log(job.uuid).file.read_bytes() == so_far)  # type: ignore[misc]
            # As imec's client does it: the number after the dash is where it goes on.
            headers = {"Range": f"bytes={offset}-"} if offset else {}
            answer = await bench.client.get(f"/api/gpulab/v4.0/jobs/{job.uuid}/log", headers=headers)
            assert answer.status == (206 if offset else 200)
            read += await answer.read()
            told = answer.headers.get("Content-Range")
            offset = int(told.split("-")[1].split("/")[0]) if told else int(answer.headers["Content-Length"])
        assert read == b"".join(pieces)
        nothing, _ = await bench.call("GET", f"jobs/{job.uuid}/log", headers={"Range": f"bytes={offset}-"})
        assert nothing.status == 204

    with_bench(tmp_path, work)


def test_an_empty_log_is_an_answer(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.submit("?hold=true")
        answer, text = await bench.call("GET", f"jobs/{job.uuid}/log")
        assert (answer.status, answer.headers["Content-Length"], text) == (200, "0", "")

    with_bench(tmp_path, work)


def test_faults_are_played(tmp_path: Path) -> None:
    faults = tmp_path / "faults.yml"
    faults.write_text(
        json.dumps(
            [
                {"method": "GET", "path": "^version", "status": 502, "body": "bad gateway", "delay": 0.2},
                {"method": "POST", "path": "^jobs$", "drop": "before"},
                {"method": "POST", "path": "^jobs$", "drop": "after"},
                {"method": "GET", "path": "^jobs/", "extra": {"later": 1}, "state": "On Fire"},
            ]
        )
    )

    async def work(bench: Bench) -> None:
        began = asyncio.get_running_loop().time()
        answer, text = await bench.call("GET", "version")
        assert (answer.status, text) == (502, "bad gateway")
        assert asyncio.get_running_loop().time() - began >= 0.2
        for left in (0, 1):  # dropped before and after the job was made
            with pytest.raises(aiohttp.ClientError):
                await bench.call("POST", "jobs", json=body())
            assert len(bench.lab.jobs) == left
        job = await bench.submit()
        found = await bench.get(f"jobs/{job.uuid}")
        assert (found["later"], found["state"]["status"]) == (1, "On Fire")
        assert "later" not in await bench.get(f"jobs/{job.uuid}")

    with_bench(tmp_path / "logs", work, faults=faults)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json", "Origin": "https://page.example"}, 403),
        ({"Content-Type": "application/json", "Origin": "null"}, 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "application/json", "Host": "rebound.example:80"}, 403),
        ({"Content-Type": "application/json", "Host": "localhost:80"}, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_a_page_in_a_browser_starts_no_container(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async def work(bench: Bench) -> None:
        answer, _ = await bench.call("POST", "jobs", data=json.dumps(body()).encode(), headers=headers)
        assert answer.status == status
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert len(bench.lab.jobs) == (status == 200)

    with_bench(tmp_path, work)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS"])
def test_a_page_in_a_browser_reads_and_changes_nothing(tmp_path: Path, method: str) -> None:
    async def work(bench: Bench) -> None:
        job = await bench.running()
        answer, said = await bench.call(method, f"jobs/{job.uuid}", headers={"Origin": "https://page.example"})
        assert (answer.status, job.uuid in said) == (403, False)
        assert job.status == "RUNNING"

    with_bench(tmp_path, work)
