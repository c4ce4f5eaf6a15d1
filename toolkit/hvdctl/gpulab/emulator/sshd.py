"""The way into jobs: a shell in a job's container, and a bastion that leads to port mappings only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.forward import SSHForwarder

from hvdctl.gpulab.emulator import states
from hvdctl.gpulab.emulator.execs import Exec, NoExec
from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.lab import Lab

HOST = "127.0.0.1"
_OWN = frozenset({HOST, "localhost"})
_SHELL = "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"


class Bastion:
    """The SSH server of a lab. `login_keys` are the keys of the users' certificates, by user name."""

    def __init__(self, lab: Lab, login_keys: dict[str, set[str]], exec_: Callable[..., Exec]) -> None:
        self.lab = lab
        self.login_keys = login_keys
        self.exec = exec_
        self.port = 0

    async def listen(self, host_key: Path, port: int) -> asyncssh.SSHAcceptor:
        logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
        made = await asyncssh.create_server(
            lambda: _Server(self),
            HOST,
            port,
            server_host_keys=[str(host_key)],
            process_factory=self._session,
            encoding=None,
            line_editor=False,
            allow_scp=False,
            agent_forwarding=False,
        )
        self.port = made.get_port()
        return made

    def job_of(self, username: str) -> Job | None:
        return next((job for job in self.lab.jobs.values() if job.ssh_username == username), None)

    def accepts(self, username: str, key: bytes) -> bool:
        """Whether this key opens that account: a job's by its own keys, a user's by the login's and the jobs' keys."""
        job = self.job_of(username)
        if job:
            return key in _data(job.submission.request.extra.ssh_pub_keys)
        of_jobs = (
            line
            for job in self.lab.jobs.values()
            if job.user.name == username
            for line in job.submission.request.extra.ssh_pub_keys
        )
        return key in _data([*self.login_keys.get(username, ()), *of_jobs])

    def leads_to(self, host: str, port: int) -> bool:
        """Whether the bastion forwards there: to itself and to the port mappings of jobs that run."""
        if host in _OWN and port == self.port:
            return True
        return any(
            job.status in states.PLACED and one.host_port == port and host in {one.host_ip, job.host}
            for job in self.lab.jobs.values()
            for one in job.ports
        )

    async def _session(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        job = self.job_of(process.get_extra_info("username"))
        if process.subsystem:
            process.stderr.write(f"there is no subsystem {process.subsystem} here\n".encode())
            process.exit(1)
        elif job is None:
            process.stderr.write(b"no shell here: only ssh -W to the port mappings of jobs\n")
            process.exit(1)
        elif job.status not in states.PLACED or states.RUNNING not in job.times:
            process.stderr.write(f"job {job.short} is {job.status}: there is no container to log in to\n".encode())
            process.exit(1)
        else:
            await self._shell(process, job)

    async def _shell(self, process: asyncssh.SSHServerProcess[bytes], job: Job) -> None:
        running = self.exec(job.uuid, ["sh", "-c", process.command or _SHELL], terminal=process.term_type)
        try:
            await asyncio.to_thread(running.start)
            if process.term_type:
                await asyncio.to_thread(running.resize, *process.term_size[:2])
            await self._streams(process, running)
        except NoExec as error:
            process.stderr.write(f"{error}\n".encode())
            process.exit(126)
        finally:
            await asyncio.to_thread(running.close)

    async def _streams(self, process: asyncssh.SSHServerProcess[bytes], running: Exec) -> None:
        """The program's streams are the client's, until one of them goes."""
        feed = asyncio.create_task(_feed(process, running))
        drain = asyncio.create_task(_drain(process, running))
        gone = asyncio.create_task(process.wait_closed())
        await asyncio.wait({drain, gone}, return_when=asyncio.FIRST_COMPLETED)
        feed.cancel()
        if drain.done() and not drain.exception():
            process.exit(await asyncio.to_thread(running.code))
        else:
            await asyncio.to_thread(running.close)
        await asyncio.gather(feed, drain, gone, return_exceptions=True)


class _Server(asyncssh.SSHServer):
    def __init__(self, bastion: Bastion) -> None:
        self.bastion = bastion
        self.job: Job | None = None

    def begin_auth(self, username: str) -> bool:
        self.job = self.bastion.job_of(username)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return self.bastion.accepts(username, key.public_data)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        # Those who log in to a job get a shell, and no way out of it.
        if self.job is None and self.bastion.leads_to(dest_host, dest_port):
            return _forwarded(dest_host, dest_port)
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, f"{dest_host}:{dest_port} is no port mapping of a job that runs"
        )


class _Forwarder(SSHForwarder):
    """One end of a forwarded connection. asyncssh keeps the client's channel if the far end was the first to end."""

    def eof_received(self) -> bool:
        goes_on = super().eof_received()
        if not goes_on:
            self.close()
        return goes_on


async def _forwarded(host: str, port: int) -> asyncssh.SSHTCPSession[bytes]:
    try:
        _, far = await asyncio.get_running_loop().create_connection(_Forwarder, host, port)
    except OSError as error:
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from None
    return cast(asyncssh.SSHTCPSession[bytes], _Forwarder(far))


async def _feed(process: asyncssh.SSHServerProcess[bytes], running: Exec) -> None:
    """The client's input to the program in the container, until there is no more."""
    while True:
        try:
            data = await process.stdin.read(65536)
        except asyncssh.TerminalSizeChanged as changed:
            await asyncio.to_thread(running.resize, changed.width, changed.height)
            continue
        except (asyncssh.BreakReceived, asyncssh.SignalReceived):
            continue
        try:
            if not data:
                await asyncio.to_thread(running.end_input)
                return
            await asyncio.to_thread(running.write, data)
        except OSError:
            return  # the program has ended and takes no more


async def _drain(process: asyncssh.SSHServerProcess[bytes], running: Exec) -> None:
    """The program's output to the client, each stream to its own."""
    while found := await asyncio.to_thread(running.read):
        is_error, data = found
        stream: Any = process.stderr if is_error else process.stdout
        stream.write(data)
        await stream.drain()


def _data(lines: Iterable[str]) -> set[bytes]:
    found = set()
    for line in lines:
        with contextlib.suppress(asyncssh.KeyImportError):
            found.add(asyncssh.import_public_key(line.strip()).public_data)
    return found
