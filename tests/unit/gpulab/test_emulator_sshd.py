"""The SSH server with real clients of asyncssh on loopback; the programs in containers are played."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from emulator_lab import Bench, until, with_bench
from hvdctl import keys
from hvdctl.gpulab.emulator.jobs import Job
from hvdctl.gpulab.emulator.sshd import Bastion

running: list[FakeExec] = []


class FakeExec:
    """A program that says its words on both streams, then hands back its input and ends with 7."""

    def __init__(self, uuid: str, argv: list[str], terminal: str | None) -> None:
        self.said = [(False, f"{argv[-1]} in {uuid}\n".encode()), (True, b"to stderr\n")]
        self.input = b""
        self.ended = threading.Event()
        running.append(self)

    def start(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.input += data

    def end_input(self) -> None:
        self.said.append((False, self.input))
        self.ended.set()

    def read(self) -> tuple[bool, bytes] | None:
        if not self.said:
            self.ended.wait()
        return self.said.pop(0) if self.said else None

    def code(self) -> int:
        return 7

    def close(self) -> None:
        self.ended.set()

    def resize(self, width: int, height: int) -> None: ...


def with_ssh(folder: Path, work: Callable[[Bench, Bastion, Job, Callable[..., Any]], Awaitable[None]]) -> None:
    mine, login, stranger = (keys.ensure(folder / name) for name in ("mine", "login", "stranger"))
    host = keys.ensure(folder / "host")

    async def all_of_it(bench: Bench) -> None:
        bastion = Bastion(bench.lab, {"tester": {login.public}}, FakeExec)  # type: ignore[arg-type]
        server = await bastion.listen(host.private, 0)
        job = await bench.running(extra={"sshPubKeys": [mine.public]}, docker={"portMappings": [22]})

        def connect(user: str, key: str) -> Any:
            chosen = {"mine": mine, "login": login, "stranger": stranger}[key]
            return asyncssh.connect(
                "127.0.0.1",
                bastion.port,
                username=user,
                client_keys=[str(chosen.private)],
                known_hosts=([asyncssh.import_public_key(host.public)], [], []),
                config=None,
                agent_path=None,
            )

        try:
            await work(bench, bastion, job, connect)
        finally:
            server.close()

    with_bench(folder / "logs", all_of_it)


def test_a_command_runs_in_the_job_s_container(tmp_path: Path) -> None:
    async def work(bench: Bench, bastion: Bastion, job: Job, connect: Callable[..., Any]) -> None:
        async with connect(job.ssh_username, "mine") as client:
            done = await client.run("hostname", input="from here")
        assert done.stdout == f"hostname in {job.uuid}\nfrom here"
        assert done.stderr == "to stderr\n"
        assert done.exit_status == 7

    with_ssh(tmp_path, work)


def test_a_client_that_hangs_up_leaves_nothing_waiting(tmp_path: Path) -> None:
    async def work(bench: Bench, bastion: Bastion, job: Job, connect: Callable[..., Any]) -> None:
        running.clear()
        client = await connect(job.ssh_username, "mine")
        program = await client.create_process("sleep")
        await program.stdout.readline()
        client.abort()
        await until(running[0].ended.is_set)

    with_ssh(tmp_path, work)


@pytest.mark.parametrize(("who", "key"), [("job", "stranger"), ("job", "login"), ("tester", "stranger"), ("x", "mine")])
def test_other_keys_open_nothing(tmp_path: Path, who: str, key: str) -> None:
    async def work(bench: Bench, bastion: Bastion, job: Job, connect: Callable[..., Any]) -> None:
        with pytest.raises(asyncssh.PermissionDenied):
            await connect(job.ssh_username if who == "job" else who, key)

    with_ssh(tmp_path, work)


def test_a_job_that_does_not_run_has_no_shell(tmp_path: Path) -> None:
    async def work(bench: Bench, bastion: Bastion, job: Job, connect: Callable[..., Any]) -> None:
        bench.runner.end(job.uuid, 0)
        await asyncio.wait_for(job.ended.wait(), 5)
        async with connect(job.ssh_username, "mine") as client:
            done = await client.run("hostname")
        assert done.exit_status == 1
        assert "is FINISHED: there is no container" in done.stderr

    with_ssh(tmp_path, work)


@pytest.mark.parametrize("key", ["login", "mine"])
def test_the_bastion_leads_to_jobs_and_has_no_shell(tmp_path: Path, key: str) -> None:
    async def work(bench: Bench, bastion: Bastion, job: Job, connect: Callable[..., Any]) -> None:
        def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"behind")
            writer.close()

        behind = await asyncio.start_server(greet, "127.0.0.1")
        port = behind.sockets[0].getsockname()[1]
        async with connect("tester", key) as client:
            with pytest.raises(asyncssh.ChannelOpenError, match="no port mapping"):
                await client.open_connection("127.0.0.1", port)
            job.host = "127.0.0.1"
            job.ports = (job.ports[0].model_copy(update={"host_port": port}),)
            reader, _ = await client.open_connection("127.0.0.1", port)
            assert await reader.read() == b"behind"
            with pytest.raises(asyncssh.ChannelOpenError):
                await client.open_connection("localhost", port)
            own, _ = await client.open_connection("127.0.0.1", bastion.port)
            assert (await own.readline()).startswith(b"SSH-2.0")
            assert (await client.run("id")).exit_status == 1
            with pytest.raises(asyncssh.ChannelListenError):
                await client.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 1)
        behind.close()

    with_ssh(tmp_path, work)


def test_a_forwarded_connection_ends_if_the_far_end_ends_first(tmp_path: Path) -> None:
    async def served(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    async def work(bench: Bench, bastion: Bastion, job: Job, connect: Callable[..., Any]) -> None:
        server = await asyncio.start_server(served, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        job.host, job.ports = "127.0.0.1", (job.ports[0].model_copy(update={"host_port": port}),)
        async with connect("tester", "login") as client:
            reader, writer = await client.open_connection("127.0.0.1", port)
            assert await reader.read() == b"bye"
            writer.write_eof()
            await asyncio.wait_for(writer.channel.wait_closed(), 5)
        server.close()

    with_ssh(tmp_path, work)


def test_who_is_in_a_job_is_led_nowhere(tmp_path: Path) -> None:
    async def work(bench: Bench, bastion: Bastion, job: Job, connect: Callable[..., Any]) -> None:
        async with connect(job.ssh_username, "mine") as client:
            with pytest.raises(asyncssh.ChannelOpenError):
                await client.open_connection("127.0.0.1", bastion.port)

    with_ssh(tmp_path, work)
