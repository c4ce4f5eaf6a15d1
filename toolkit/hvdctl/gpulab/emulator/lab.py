"""The jobs of an emulator and their lives: who waits, who starts, who ends and how."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvdctl.gpulab.emulator import schedule, states
from hvdctl.gpulab.emulator.jobs import Job, User, now
from hvdctl.gpulab.emulator.submission import PortMapping, Submission
from hvdctl.gpulab.emulator.workers import Worker

_GRACE = 10.0
_LOOK_EVERY = 0.5


class NotStarted(Exception):
    """A container that can't be made or started; the text is the reason."""


class Refused(Exception):
    """A request that is not carried out, with the status and the sentence to answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Runner(Protocol):
    """What runs the containers of jobs; every call may block and is made in a thread."""

    def host(self, worker: Worker) -> str:
        """The address under which a worker's port mappings are reached."""

    def start(self, job: Job) -> Sequence[PortMapping]:
        """The port mappings of the container, which runs; raises `NotStarted`."""

    def follow(self, uuid: str, write: Callable[[bytes], None]) -> int:
        """The exit code of the container, after all it said was written."""

    def stop(self, uuid: str, grace: float) -> None:
        """The container was asked to end and, after `grace` seconds, killed."""

    def remove(self, uuid: str) -> None: ...


@dataclass(frozen=True)
class Log:
    """What a job said, kept after its container is gone."""

    file: Path

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def read(self, start: int, end: int) -> bytes:
        if not self.file.exists():
            return b""
        with self.file.open("rb") as log:
            log.seek(start)
            return log.read(end - start)

    def write(self, data: bytes) -> None:
        with self.file.open("ab") as out:
            out.write(data)


class Lab:
    """All jobs, by their UUID in the order of their creation. Used from one event loop."""

    def __init__(
        self,
        runner: Runner,
        workers: Sequence[Worker],
        logs: Path,
        *,
        pace: float = 0.3,
        say: Callable[[Job, str], None] = lambda job, text: None,
    ) -> None:
        self.runner = runner
        self.workers = workers
        self.logs = logs
        self.pace = pace
        self.say = say
        self.jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def log(self, uuid: str) -> Log:
        return Log(self.logs / f"{uuid}.log")

    def submit(self, submission: Submission, user: User, *, hold: bool = False) -> Job:
        return self._add(Job(submission, user), states.ONHOLD if hold else states.QUEUED)

    def ask(self, job: Job, wanted: str) -> None:
        """Carry out a user's wish for another state; raises `states.NotPossible`."""
        following = states.after(job.status, wanted)
        if following == job.status:
            return
        if job.status in states.WAITING:
            self._enter(job, following)
        else:
            job.wanted = following
            if following == states.MUSTHALT:
                self._enter(job, following)
            job.told.set()
        if following in states.ENDED:
            job.ended.set()

    async def remove(self, job: Job, *, real: bool, force: bool) -> None:
        """The job is marked as deleted, or gone; where forced, its container is killed before."""
        if force and job.status in states.PLACED:
            self.ask(job, states.CANCELLED)
            await asyncio.to_thread(self.runner.stop, job.uuid, 0)
            await job.ended.wait()
        if real:
            self.jobs.pop(job.uuid, None)
            self.log(job.uuid).file.unlink(missing_ok=True)
        elif job.status != states.DELETED:
            self._enter(job, states.DELETED)
        job.ended.set()

    async def run(self) -> None:
        """Start what may start, for as long as the emulator runs."""
        while True:
            self._changed.clear()
            self._look()
            try:
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Nothing goes on any more; containers that ran were killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _add(self, job: Job, status: str) -> Job:
        self.jobs[job.uuid] = job
        self.log(job.uuid).write(b"")
        self._enter(job, status)
        return job

    def _enter(self, job: Job, status: str, why: str = "") -> None:
        job.enter(status)
        if why:
            job.note(why)
        if status not in states.WAITING:
            job.reasons = ()
        self.say(job, why)
        self._changed.set()

    def _look(self) -> None:
        waiting = [job for job in self.jobs.values() if job.status == states.QUEUED]
        if not waiting:
            return
        held = [found for job in self.jobs.values() if (found := job.held())]
        decisions = schedule.schedule([job.ask() for job in waiting], held, self.workers, now())
        for job, decision in zip(waiting, decisions, strict=True):
            if decision.place:
                job.place = decision.place
                job.host = self.runner.host(decision.place.worker)
                self._enter(job, states.ASSIGNED, f"assigned to worker {decision.place.worker.name}")
                task = asyncio.create_task(self._carry(job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif decision.fails:
                self._fail(job, "; ".join(decision.reasons))
            elif decision.reasons != job.reasons:
                job.reasons = decision.reasons
                self.say(job, "; ".join(decision.reasons))

    def _fail(self, job: Job, reason: str) -> None:
        self.log(job.uuid).write(f"{reason}\n".encode())
        self._end(job, states.FAILED, reason)

    def _end(self, job: Job, status: str, why: str = "") -> None:
        self._enter(job, status, why)
        job.ended.set()

    async def _carry(self, job: Job) -> None:
        """A job's life from its place on a worker to its end."""
        try:
            await self._live(job)
        except NotStarted as error:
            self._fail(job, str(error))
        except Exception as error:
            self._fail(job, f"the worker lost the job: {error}")
        finally:
            await asyncio.to_thread(self.runner.remove, job.uuid)

    async def _live(self, job: Job) -> None:
        await self._wait(job)
        if not job.wanted:
            self._enter(job, states.STARTING)
            await self._wait(job)
        if job.wanted:
            self._end(job, states.CANCELLED, "cancelled before it ran")
            return
        job.ports = tuple(await asyncio.to_thread(self.runner.start, job))
        follow = asyncio.create_task(self._follow(job))
        self._enter(job, states.RUNNING)
        await self._until_end(job, follow)

    async def _wait(self, job: Job) -> None:
        """One state's time, or until the user wants something else."""
        try:
            async with asyncio.timeout(self.pace):
                await job.told.wait()
        except TimeoutError:
            return

    async def _follow(self, job: Job) -> int:
        # A thread of its own: jobs that run for days would fill a pool.
        loop, code = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(found: int) -> None:
            if not code.done():
                code.set_result(found)

        def work() -> None:
            try:
                found = self.runner.follow(job.uuid, self.log(job.uuid).write)
            except Exception as error:
                self.log(job.uuid).write(f"the container is lost: {error}\n".encode())
                found = -1
            with contextlib.suppress(RuntimeError):  # the emulator has ended
                loop.call_soon_threadsafe(tell, found)

        threading.Thread(target=work, name=f"follow {job.short}", daemon=True).start()
        return int(await code)

    async def _until_end(self, job: Job, follow: asyncio.Task[int]) -> None:
        asked = asyncio.create_task(job.told.wait())
        await asyncio.wait({follow, asked}, timeout=job.seconds_left, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if follow.done() and not job.wanted:
            code = follow.result()
            self._end(job, states.FAILED if code else states.FINISHED, f"the container ended with exit code {code}")
        elif job.wanted == states.MUSTHALT:
            await self._halt(job, follow)
        else:
            late = f"maxDuration ({job.submission.request.scheduling.max_duration}) is over: the job was stopped"
            await self._cancel(job, follow, "" if job.wanted else late)

    async def _cancel(self, job: Job, follow: asyncio.Task[int], why: str) -> None:
        self._enter(job, states.CANCELLING)
        await asyncio.to_thread(self.runner.stop, job.uuid, _GRACE)
        await follow
        self._end(job, states.CANCELLED, why)

    async def _halt(self, job: Job, follow: asyncio.Task[int]) -> None:
        scheduling = job.submission.request.scheduling
        await asyncio.sleep(self.pace)
        if job.wanted == states.CANCELLING:
            await self._cancel(job, follow, "")
            return
        self._enter(job, states.HALTING)
        await asyncio.to_thread(self.runner.stop, job.uuid, 0 if scheduling.allow_halt_without_signal else _GRACE)
        await follow
        if job.wanted == states.CANCELLING:
            self._end(job, states.CANCELLED)
        elif not scheduling.restartable:
            self._end(job, states.FAILED, "it was halted and is not restartable")
        else:
            self._end(job, states.HALTED)
            following = self._add(job.again(), states.QUEUED)
            job.note(f"goes on as job {following.uuid}")
