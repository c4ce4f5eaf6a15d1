"""One point: training steps until their time is known well enough, split into what they were spent on."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import comm
import data
import emulate
import models
import torch
from torch import nn

# Quantiles of Student's distribution for 95 %, by degrees of freedom; beyond the list close to 1.96 + 2.5 / freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11)
_BLOCK_S = 1.0
_DISK = Path("/tmp/hvd-bench")  # noqa: S108 - the node's own disk


Batch = tuple[torch.Tensor, torch.Tensor]


class Refused(Exception):
    """Why this point can't be measured; all ranks raise it together."""


def measure(link: comm.Link, request: dict[str, Any], progress: Callable[..., None]) -> dict[str, Any]:
    """Times of all steps and their parts, as this machine took them (dilation not undone)."""
    torch.manual_seed(1)
    began = time.perf_counter()
    job = _Emulated(link, request) if request.get("seconds") else _Real(link, request)
    start_s = time.perf_counter() - began
    try:
        for _ in range(request["warmup"]):
            last = job.step()
        # Short steps come in larger blocks, so that what lies between blocks stays small.
        block = link.share(max(request["block"], math.ceil(_BLOCK_S / last.total)))
        found = _repeat(link, job, request | {"block": block}, progress)
        found["data"] = _data(link.gather(job.data()))
        if request.get("timeline"):
            found["timeline"] = _timeline(link, job, request["timeline"])
    finally:
        job.release()
        del job
        gc.collect()
    return {**found, "start_s": start_s}


def _repeat(link: comm.Link, job: _Job, request: dict[str, Any], progress: Callable[..., None]) -> dict[str, Any]:
    """Blocks of steps until the interval is small enough, or the cap on steps or seconds is reached."""
    steps: list[Step] = []
    gaps: list[float] = []
    link.gather(None)  # all start together
    began = time.perf_counter()
    while True:
        for _ in range(min(request["block"], request["max_steps"] - len(steps))):
            steps.append(job.step())
        paused = time.perf_counter()
        half = interval([step.total for step in steps]) / statistics.fmean(step.total for step in steps)
        over = len(steps) >= request["max_steps"]
        over = over or time.perf_counter() - began > request["max_seconds"]
        ready = half <= request["ci"]
        progress(steps=len(steps), step_s=statistics.fmean(step.total for step in steps))
        # Rank 0 says it, in one small exchange that Horovod knows after the first.
        end = torch.tensor([float(link.rank == 0 and (ready or over))])
        link.reduce(end, "end")
        gaps.append(time.perf_counter() - paused)
        if end.item():
            break
    elapsed = time.perf_counter() - began
    # What is counted, told and agreed upon between blocks, as the last rank to come sees it: the others wait for
    # its step to end, as they would in the next exchange.
    lost = sum(min(rank) for rank in zip(*link.gather(gaps), strict=True))
    overhead = lost / elapsed
    found = _summary(link.gather([(step.total, step.compute, step.exposed) for step in steps]))
    half = interval(found["step_times_s"]) / statistics.fmean(found["step_times_s"])
    return {**found, "overhead": overhead, "half_width": half, "converged": half <= request["ci"]}


def _data(ranks: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """What all ranks had of files: the node with most to copy, the slowest copy, damaged images of all ranks."""
    told = [rank for rank in ranks if rank]
    if not told:
        return None
    copies = [rank["staged"] for rank in told if rank["staged"]]
    return {
        "staged_s": max((copy.seconds for copy in copies), default=None),
        "staged_bytes": max((copy.bytes for copy in copies), default=None),
        "staged_files": max((copy.files for copy in copies), default=None),
        "damaged": len(frozenset().union(*(rank["damaged"] for rank in told))),
    }


def _summary(ranks: list[list[tuple[float, float, float]]]) -> dict[str, Any]:
    """All ranks' steps as one: a step takes as long as its ranks do on average, since they wait for each other.

    The rank that waits least waits for the exchange alone; what the others wait longer, they wait for that rank.
    """
    count = len(ranks[0])
    times = [statistics.fmean(rank[i][0] for rank in ranks) for i in range(count)]
    exposed = [min(rank[i][2] for rank in ranks) for i in range(count)]
    pauses = [statistics.fmean(rank[i][2] for rank in ranks) for i in range(count)]
    waiting = [pause - least for pause, least in zip(pauses, exposed, strict=True)]
    parts = {
        "compute": statistics.fmean(times) - statistics.fmean(pauses),
        "exposed": statistics.fmean(exposed),
        "waiting": statistics.fmean(waiting),
    }
    return {"step_times_s": times, "split_s": parts}


def interval(values: list[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean."""
    if len(values) < 2:
        return math.inf
    freedom = len(values) - 1
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.5 / freedom
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


class Step:
    """When a step began, when its last gradient was there, when all were exchanged, when it ended."""

    __slots__ = ("began", "ended", "exchanged", "forward", "ready")

    def __init__(self, began: float) -> None:
        self.began = self.forward = self.ready = self.exchanged = self.ended = began

    @property
    def total(self) -> float:
        return self.ended - self.began

    @property
    def exposed(self) -> float:
        return self.exchanged - self.ready

    @property
    def compute(self) -> float:
        return self.total - self.exposed


class _Job:
    """A model that trains, whatever it is."""

    def __init__(self, link: comm.Link, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.ready = 0.0
        self.device = next(model.parameters()).device
        self.hooks = [p.register_post_accumulate_grad_hook(self._note) for p in model.parameters()]
        self.trainer = link.prepare(model, optimizer)

    def step(self) -> Step:
        step = Step(time.perf_counter())
        self.reset()
        loss = self.loss()
        self._fence()
        step.forward = time.perf_counter()
        self.trainer.backward(loss)
        self._fence()
        # On a GPU the hooks tell when work was queued, not when it was done.
        step.ready = self.ready if self.device.type == "cpu" else time.perf_counter()
        self.trainer.finish()
        self._fence()
        step.exchanged = time.perf_counter()
        self.trainer.update()
        self._fence()
        step.ended = time.perf_counter()
        return step

    def loss(self) -> torch.Tensor:
        raise NotImplementedError

    def reset(self) -> None:
        """Make ready for the next step."""

    def data(self) -> dict[str, Any] | None:
        """What this rank had of files; None where it reads none."""
        return None

    def release(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.trainer.release()

    def _note(self, _: torch.Tensor) -> None:
        self.ready = time.perf_counter()

    def _fence(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class _Real(_Job):
    def __init__(self, link: comm.Link, request: dict[str, Any]) -> None:
        shape, classes = models.MODELS[request["model"]].image, models.MODELS[request["model"]].classes
        device = torch.device(f"cuda:{link.local_rank}" if torch.cuda.is_available() else "cpu")
        model = models.build(request["model"]).to(device)
        self.staged, self.batches = _batches(link, request, shape, classes)
        self.criterion = nn.CrossEntropyLoss()
        super().__init__(link, model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))

    def loss(self) -> torch.Tensor:
        images, labels = next(self.batches)
        output = self.trainer.model(images.to(self.device, non_blocking=True))
        loss: torch.Tensor = self.criterion(output, labels.to(self.device, non_blocking=True))
        return loss

    def reset(self) -> None:
        self.trainer.model.zero_grad(set_to_none=False)

    def data(self) -> dict[str, Any] | None:
        if not isinstance(self.batches, data.Batches):
            return None
        return {"staged": self.staged, "damaged": self.batches.damaged}

    def release(self) -> None:
        super().release()
        self.batches.close()


class _Emulated(_Job):
    def __init__(self, link: comm.Link, request: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        model = emulate.Emulated(request["layers"], request["seconds"])
        self.input = torch.zeros(1, requires_grad=True)
        super().__init__(link, model, _Nothing(model.parameters()))

    def loss(self) -> torch.Tensor:
        output: torch.Tensor = self.trainer.model(self.input)
        return output.sum()


class _Nothing(torch.optim.SGD):
    """The time that a GPU needs to change its weights is in the published rate already."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.0)

    def step(self, closure: Any = None) -> None:
        pass


def _batches(
    link: comm.Link, request: dict[str, Any], shape: tuple[int, ...], classes: int
) -> tuple[data.Staged | None, data.Batches | Generator[Batch, None, None]]:
    batch = request["batch"]
    if request["data"] is None:
        return None, _synthetic(batch, shape, classes)
    staged, folder = _folder(request, classes)
    # All ranks give up together: else some would wait for ever in an exchange that others never come to.
    problems = link.gather(folder if isinstance(folder, str) else None)
    told = next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), None)
    if told or isinstance(folder, str):
        raise Refused(told)
    return staged, data.batches(folder, batch, shape, link.rank, link.size)


def _folder(request: dict[str, Any], classes: int) -> tuple[data.Staged | None, data.Folder | str]:
    """The images on this rank's node, and what bringing them there took; or what is wrong with them."""
    path = Path(request["data"])
    staged = None
    try:
        if request["stage"]:
            # A folder of its own for each source, so that one does not displace the other.
            staged = data.stage(path, _DISK / str(path).strip("/").replace("/", "-"))
        folder = data.find(staged.path if staged else path)
        folder.check(request["model"], classes)
    except data.DataError as error:
        return None, str(error)
    return staged, folder


def _synthetic(batch: int, shape: tuple[int, ...], classes: int) -> Generator[Batch, None, None]:
    images, labels = torch.randn(batch, *shape), torch.randint(classes, (batch,))
    while True:
        yield images, labels


def _timeline(link: comm.Link, job: _Job, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a few more steps on every rank, and Horovod's own timeline of them beside the run."""
    link.timeline(asked["file"])
    link.gather(None)
    zero, zero_at = time.perf_counter(), time.time()
    spans: list[tuple[str, float, float]] = []
    for _ in range(asked["steps"]):
        step = job.step()
        edges = (step.began, step.forward, step.ready, step.exchanged, step.ended)
        names = ("forward", "backward", "exchange", "update")
        spans += [(n, a - zero, b - zero) for n, a, b in zip(names, edges, edges[1:], strict=False)]
    link.timeline(None)
    return link.gather({"rank": link.rank, "node": os.uname().nodename, "zero": zero_at, "spans": spans})
