"""Which of the waiting jobs may start, where, and in plain sentences why the others wait.

A function of its input: first come, first served, but a later job that fits may go ahead of one that doesn't.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hvdctl.gpulab.emulator.workers import INSTANCE, Worker

PER_USER = 10
PER_PROJECT = 20


@dataclass(frozen=True)
class Ask:
    """A job that waits, in the order of the queue."""

    uuid: str
    user: str
    project: str
    cpus: int = 1
    gpus: int = 0
    memory: int = 1
    gpu_memory: int | None = None
    gpu_models: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cuda: int | None = None
    cluster: int | None = None
    worker: str | None = None
    instance: str | None = None
    bucket: tuple[str, int] | None = None
    not_before: datetime.datetime | None = None
    not_after: datetime.datetime | None = None
    interactive: bool = False


@dataclass(frozen=True)
class Held:
    """What a job that has started holds; `counts` where it counts for the limits too."""

    user: str
    project: str
    worker: str
    cpu_ids: tuple[int, ...] = ()
    gpu_ids: tuple[int, ...] = ()
    memory: int = 0
    bucket: str | None = None
    counts: bool = True


@dataclass(frozen=True)
class Place:
    worker: Worker
    gpu_ids: tuple[int, ...]
    cpu_ids: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """A place to start at, or the reasons why not; with `fails` the job can't wait for one."""

    uuid: str
    place: Place | None = None
    reasons: tuple[str, ...] = ()
    fails: bool = False


def schedule(
    queue: Sequence[Ask], held: Sequence[Held], workers: Sequence[Worker], now: datetime.datetime
) -> list[Decision]:
    """One decision for each waiting job, in their order."""
    taken = list(held)
    decisions = []
    for ask in queue:
        decision = _decide(ask, taken, workers, now)
        decisions.append(decision)
        if place := decision.place:
            bucket = ask.bucket[0] if ask.bucket else None
            taken.append(
                Held(ask.user, ask.project, place.worker.name, place.cpu_ids, place.gpu_ids, ask.memory, bucket)
            )
    return decisions


def _decide(ask: Ask, held: Sequence[Held], workers: Sequence[Worker], now: datetime.datetime) -> Decision:
    if ask.not_after and now >= ask.not_after:
        return Decision(ask.uuid, reasons=(f"it did not start before {ask.not_after} (notAfter)",), fails=True)
    place, reasons = None, _limits(ask, held, now)
    if not reasons:
        place, reasons = _find(ask, held, workers)
    return Decision(ask.uuid, place, tuple(reasons), fails=place is None and ask.interactive)


def _limits(ask: Ask, held: Sequence[Held], now: datetime.datetime) -> list[str]:
    found = []
    if ask.not_before and now < ask.not_before:
        found.append(f"it starts not before {ask.not_before} (notBefore)")
    of_user = [one for one in held if one.counts and one.user == ask.user]
    of_project = [one for one in held if one.counts and one.project == ask.project]
    if len(of_user) >= PER_USER:
        found.append(f"user {_short(ask.user)} has {len(of_user)} jobs running, the most that is allowed")
    if len(of_project) >= PER_PROJECT:
        found.append(f"project {_short(ask.project)} has {len(of_project)} jobs running, the most that is allowed")
    if ask.bucket:
        name, most = ask.bucket
        running = sum(one.bucket == name for one in of_user)
        if running >= most:
            found.append(f"{running} jobs of the bucket {name!r} run, the most that it allows (bucketMax {most})")
    return found


def _find(ask: Ask, held: Sequence[Held], workers: Sequence[Worker]) -> tuple[Place | None, list[str]]:
    fitting = list(workers)
    for fits, missing in _traits(ask):
        left = [worker for worker in fitting if fits(worker)]
        if not left:
            return None, [missing(fitting)]
        fitting = left
    free = [_free(worker, held) for worker in fitting]
    enough = [one for one in free if one.gpus >= ask.gpus and one.cpus >= ask.cpus and one.memory >= ask.memory]
    if not enough:
        return None, _shortage(ask, free)
    # The emptiest first: jobs spread over the workers, as they would on a quiet day.
    best = max(enough, key=lambda one: (one.gpus, one.cpus, one.memory))
    return Place(best.worker, best.gpu_ids[: ask.gpus], best.cpu_ids[: ask.cpus]), []


_Trait = tuple[Callable[[Worker], bool], Callable[[Sequence[Worker]], str]]


def _traits(ask: Ask) -> list[_Trait]:
    """What never changes on a worker: each with the test and the sentence where none passes it."""
    traits: list[_Trait] = []
    if ask.cluster is not None:
        traits.append(
            (
                lambda one: one.cluster == ask.cluster,
                lambda all_: f"there is no cluster {ask.cluster}; there are: {_listed(one.cluster for one in all_)}",
            )
        )
    if ask.worker is not None:
        traits.append(
            (
                lambda one: one.name.lower() == (ask.worker or "").lower(),
                lambda all_: f"there is no worker {ask.worker!r}; there are: {_listed(one.name for one in all_)}",
            )
        )
    if ask.instance is not None:
        traits.append(
            (
                lambda one: ask.instance == INSTANCE,
                lambda _: f"there is no worker instance {ask.instance!r}; there is: {INSTANCE}",
            )
        )
    if ask.features:
        traits.append((lambda one: False, lambda _: f"no worker has the features {_listed(ask.features)}"))
    if ask.gpu_models:
        wanted = " or ".join(repr(one) for one in ask.gpu_models)
        traits.append(
            (
                lambda one: any(model.lower() in one.gpu_model.lower() for model in ask.gpu_models),
                lambda all_: f"no worker has GPU model {wanted}; there are: {_listed(one.gpu_model for one in all_)}",
            )
        )
    if ask.gpu_memory is not None:
        traits.append(
            (
                lambda one: one.gpu_memory >= (ask.gpu_memory or 0),
                lambda all_: (
                    f"needs GPUs of {ask.gpu_memory} GB; the most that a GPU has is {max(w.gpu_memory for w in all_)}"
                ),
            )
        )
    if ask.cuda is not None:
        traits.append(
            (
                lambda one: one.cuda_major >= (ask.cuda or 0),
                lambda all_: f"needs CUDA {ask.cuda}; the newest on a worker is {max(w.cuda_major for w in all_)}",
            )
        )
    return traits


@dataclass(frozen=True)
class _Free:
    worker: Worker
    gpu_ids: tuple[int, ...]
    cpu_ids: tuple[int, ...]
    memory: int

    @property
    def gpus(self) -> int:
        return len(self.gpu_ids)

    @property
    def cpus(self) -> int:
        return len(self.cpu_ids)


def _free(worker: Worker, held: Sequence[Held]) -> _Free:
    here = [one for one in held if one.worker == worker.name]
    gpus = {number for one in here for number in one.gpu_ids}
    cpus = {number for one in here for number in one.cpu_ids}
    return _Free(
        worker,
        tuple(number for number in range(worker.gpus) if number not in gpus),
        tuple(number for number in range(worker.cpus) if number not in cpus),
        worker.memory - sum(one.memory for one in here),
    )


def _shortage(ask: Ask, free: Sequence[_Free]) -> list[str]:
    where = f"one worker of cluster {ask.cluster}" if ask.cluster is not None else "one worker"
    where = f"worker {free[0].worker.name}" if ask.worker is not None else where
    told = []
    for wanted, thing, most, total in (
        (ask.gpus, _counted(ask.gpus, "GPU"), max(one.gpus for one in free), max(one.worker.gpus for one in free)),
        (ask.cpus, _counted(ask.cpus, "CPU"), max(one.cpus for one in free), max(one.worker.cpus for one in free)),
        (
            ask.memory,
            f"{ask.memory} GB of memory",
            max(one.memory for one in free),
            max(one.worker.memory for one in free),
        ),
    ):
        if wanted > total:
            told.append(f"needs {thing}; no worker has more than {total}: it can never start")
        elif wanted > most:
            told.append(f"needs {thing}; the most that is free on {where} is {most}")
    if not told:
        asked = f"{_counted(ask.gpus, 'GPU')}, {_counted(ask.cpus, 'CPU')} and {ask.memory} GB of memory"
        told.append(f"needs {asked} together; each is free on {where}, but not on the same one")
    return told


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(one) for one in values))


def _short(urn: str) -> str:
    return urn.rsplit("+", 1)[-1]
