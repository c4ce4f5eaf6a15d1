"""An emulator from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from hvdctl.errors import UsageError
from hvdctl.gpulab.emulator import pki, workers
from hvdctl.gpulab.emulator.api import Api
from hvdctl.gpulab.emulator.containers import Containers
from hvdctl.gpulab.emulator.execs import Exec
from hvdctl.gpulab.emulator.faults import Faults
from hvdctl.gpulab.emulator.home import PROJECT, Home
from hvdctl.gpulab.emulator.jobs import Address, Job, User, now
from hvdctl.gpulab.emulator.lab import Lab
from hvdctl.gpulab.emulator.sshd import HOST, Bastion

# Calls of the engine wait in threads, one for each open SSH session among them.
_THREADS = 128


@dataclass(frozen=True)
class Settings:
    folder: Path
    port: int = 0
    ssh_port: int = 0
    plain_http: bool = False
    workers: Path | None = None
    isolate: bool = False
    pace: float = 0.3
    faults: Path | None = None


@dataclass(frozen=True)
class Ready:
    """How the emulator that runs now is reached."""

    url: str
    folder: Path
    login: Path
    ca: Path | None
    ssh_port: int
    project: str
    spec: Path


def serve(settings: Settings, ready: Callable[[Ready], None], say: Callable[[str], None]) -> None:
    """Run an emulator until Ctrl-C or SIGTERM; `ready` is called once, `say` with each change of a job."""
    home = Home(settings.folder.expanduser().absolute())
    hosts = workers.read(settings.workers)
    faults = Faults(settings.faults, say)
    with home.locked():
        home.prepare()
        asyncio.run(_serve(settings, home, hosts, faults, ready, say))


async def _serve(
    settings: Settings,
    home: Home,
    hosts: tuple[workers.Worker, ...],
    faults: Faults,
    ready: Callable[[Ready], None],
    say: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    async with _containers(home, hosts, isolate=settings.isolate) as runner:

        def tell(job: Job, why: str) -> None:
            try:
                say(line(job, why))
            except BrokenPipeError:
                stop.set()  # nobody reads any more

        lab = Lab(runner, hosts, home.jobs, pace=settings.pace, say=tell)
        async with _listening(settings, home, lab, runner, faults) as found:
            ready(found)
            ended = asyncio.create_task(stop.wait())
            scheduler = asyncio.create_task(lab.run())
            await asyncio.wait({ended, scheduler}, return_when=asyncio.FIRST_COMPLETED)
            if scheduler.done():
                scheduler.result()
            scheduler.cancel()
        await lab.close()


@contextlib.asynccontextmanager
async def _containers(home: Home, hosts: tuple[workers.Worker, ...], *, isolate: bool) -> AsyncIterator[Containers]:
    runner = await asyncio.to_thread(Containers, home.id, home.folder, hosts, isolate=isolate)
    try:
        await asyncio.to_thread(runner.open)
        yield runner
    finally:
        await asyncio.to_thread(runner.sweep)
        # Threads that waited for a container have ended now; once more for what one of them had just asked for.
        await asyncio.get_running_loop().shutdown_default_executor()
        runner.sweep()


@contextlib.asynccontextmanager
async def _listening(
    settings: Settings, home: Home, lab: Lab, runner: Containers, faults: Faults
) -> AsyncIterator[Ready]:
    """Both servers take requests within the block."""
    user = User(pki.user_urn(), pki.email_of())
    keys = {user.name: {pki.public_key(home.login.read_bytes())}}
    bastion = Bastion(lab, keys, lambda uuid, argv, terminal: Exec(runner.client, runner.id_of(uuid), argv, terminal))
    # Those of last time, where they are free: clusters that were left remember them.
    last_port, last_ssh_port = map(_if_free, home.last_ports)
    with _bound("--port", settings.port or last_port) as listener:
        try:
            ssh = await bastion.listen(home.host_key.private, settings.ssh_port or last_ssh_port)
        except OSError as error:
            raise UsageError(f"--ssh-port {settings.ssh_port}: {error.strerror}", hint="choose another one") from None
        api = Api(lab, Address(HOST, bastion.port), faults, user if settings.plain_http else None)
        api.keys = keys
        server = web.AppRunner(api.app(), access_log=None, shutdown_timeout=1)
        await server.setup()
        secure = None if settings.plain_http else tls(home)
        await web.SockSite(server, listener, ssl_context=secure).start()
        port = listener.getsockname()[1]
        url = f"{'https' if secure else 'http'}://{HOST}:{port}/api/"
        home.describe(url, bastion.port, secure=bool(secure))
        try:
            yield Ready(url, home.folder, home.login, home.ca if secure else None, bastion.port, PROJECT, home.spec)
        finally:
            ssh.close()
            await server.cleanup()


def _bound(flag: str, port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise UsageError(
            f"{flag} {port}: {error}", hint="choose another one, or leave it out for any free one"
        ) from None
    return made


def _if_free(port: int) -> int:
    try:
        _bound("", port).close()
    except UsageError:
        return 0
    return port


def tls(home: Home) -> ssl.SSLContext:
    """Every client must show a certificate of the folder's authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(home.ca))
    context.load_cert_chain(home.server)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def line(job: Job, why: str) -> str:
    """One change of a job, for whoever watches."""
    when = now().astimezone().strftime("%H:%M:%S")
    about = why or (job.place.worker.name if job.place else "")
    return f"{when}  {job.short}  {job.submission.name}  {job.status}{f'  {about}' if about else ''}"
