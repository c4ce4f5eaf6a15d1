from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
from hvdctl.gpulab.emulator.schedule import Ask, Decision, Held, schedule
from hvdctl.gpulab.emulator.workers import DEFAULT, Worker

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
SMALL = (Worker(name="w1", cluster=4, gpus=2, cpus=8, memory=16, gpu_model="Tesla V100", gpu_memory=32, cuda="11.2"),)


def ask(name: str = "a", **more: object) -> Ask:
    return replace(Ask(uuid=name, user="urn+user+tester", project="urn+project+demo"), **more)  # type: ignore[arg-type]


def decide(one: Ask, held: list[Held] | None = None, workers: tuple[Worker, ...] = DEFAULT) -> Decision:
    return schedule([one], held or [], workers, NOW)[0]


def holds(count: int = 1, **more: object) -> list[Held]:
    return [replace(Held("urn+user+tester", "urn+project+demo", "w1"), **more) for _ in range(count)]  # type: ignore[arg-type]


def test_ids_on_a_worker_are_distinct() -> None:
    found = schedule([ask("a", gpus=1, cpus=2), ask("b", gpus=1, cpus=3)], [], SMALL, NOW)
    places = [one.place for one in found]
    assert [(place.gpu_ids, place.cpu_ids) for place in places if place] == [((0,), (0, 1)), ((1,), (2, 3, 4))]


def test_a_smaller_later_job_may_go_ahead() -> None:
    first, second = schedule([ask("a", gpus=2), ask("b", gpus=1)], holds(gpu_ids=(0,)), SMALL, NOW)
    assert first.place is None
    assert second.place
    assert second.place.gpu_ids == (1,)


def test_jobs_come_in_their_order() -> None:
    first, second = schedule([ask("a", gpus=2), ask("b", gpus=2)], [], SMALL, NOW)
    assert first.place
    assert second.reasons == ("needs 2 GPUs; the most that is free on one worker is 0",)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (
            {"gpus": 4, "cluster": 4},
            "needs 4 GPUs; no worker has more than 2: it can never start",
        ),
        ({"cluster": 9}, "there is no cluster 9; there are: 4"),
        ({"worker": "w7"}, "there is no worker 'w7'; there are: w1"),
        ({"gpu_models": ("H200",)}, "no worker has GPU model 'H200'; there are: Tesla V100"),
        ({"gpu_memory": 40}, "needs GPUs of 40 GB; the most that a GPU has is 32"),
        ({"cuda": 12}, "needs CUDA 12; the newest on a worker is 11"),
        ({"instance": "i7"}, "there is no worker instance 'i7'; there is: emulator"),
        ({"features": ("fast-disk",)}, "no worker has the features fast-disk"),
        ({"memory": 17}, "needs 17 GB of memory; no worker has more than 16: it can never start"),
        ({"not_before": NOW + HOUR}, "it starts not before 2030-01-01 01:00:00+00:00 (notBefore)"),
    ],
)
def test_what_keeps_a_job_waiting_is_said(wanted: dict[str, Any], reason: str) -> None:
    found = decide(ask(**wanted), workers=SMALL)
    assert found.place is None
    assert found.reasons == (reason,)
    assert not found.fails


def test_what_is_busy_is_said_with_its_cluster() -> None:
    found = decide(ask(gpus=2, cluster=4, cpus=8), holds(gpu_ids=(0,), cpu_ids=(0, 1)), SMALL)
    assert found.reasons == (
        "needs 2 GPUs; the most that is free on one worker of cluster 4 is 1",
        "needs 8 CPUs; the most that is free on one worker of cluster 4 is 6",
    )


def test_free_parts_on_two_workers_are_not_enough() -> None:
    pair = (SMALL[0], SMALL[0].model_copy(update={"name": "w2"}))
    held = [*holds(gpu_ids=(0, 1)), *holds(worker="w2", cpu_ids=tuple(range(8)))]
    assert "not on the same one" in decide(ask(gpus=1, cpus=1), held, pair).reasons[0]


@pytest.mark.parametrize("model", ["v100", "TESLA"])
def test_models_match_without_case_and_in_part(model: str) -> None:
    found = decide(ask(gpus=1, gpu_models=("H200", model)))
    assert found.place
    assert found.place.worker.cluster == 4


def test_a_user_has_ten_jobs_at_once() -> None:
    assert decide(ask(), holds(9)).place
    assert decide(ask(), holds(10)).reasons == ("user tester has 10 jobs running, the most that is allowed",)
    assert decide(ask(), holds(10, counts=False)).place
    assert decide(ask(user="urn+user+other"), holds(10)).place


def test_a_project_has_twenty() -> None:
    held = [one for user in "ab" for one in holds(10, user=f"urn+user+{user}")]
    assert decide(ask(), held).reasons == ("project demo has 20 jobs running, the most that is allowed",)
    assert decide(ask(project="urn+project+other"), held).place


def test_a_bucket_holds_what_it_holds() -> None:
    found = schedule([ask(name, bucket=("b", 2)) for name in "xyz"], [], DEFAULT, NOW)
    assert [bool(one.place) for one in found] == [True, True, False]
    assert found[2].reasons == ("2 jobs of the bucket 'b' run, the most that it allows (bucketMax 2)",)
    assert decide(ask(bucket=("b", 1)), holds(user="urn+user+other", bucket="b")).place


def test_what_cannot_wait_fails() -> None:
    assert decide(ask(interactive=True, cluster=9)).fails
    late = decide(ask(not_after=NOW))
    assert late.fails
    assert "notAfter" in late.reasons[0]
    assert decide(ask(not_after=NOW + HOUR, not_before=NOW)).place


def test_jobs_spread_over_workers() -> None:
    found = schedule([ask("a", gpus=1, cluster=4), ask("b", gpus=1, cluster=4)], [], DEFAULT, NOW)
    assert {one.place.worker.name for one in found if one.place} == {"slave4A", "slave4B"}
