"""Real SSH servers on the loopback, with host keys of the test's choice, that keep what they are given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh


@dataclass
class SshServer:
    """Lets everybody in without a question, so that whoever accepts its host key hands over all there is.

    Commands run on this machine; a shell ends after two lines. Connections through it go where `routes` says, else
    where they are asked for.
    """

    host_key: Path
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    connections: int = 0
    users: list[str] = field(default_factory=list)
    """Those who have accepted the host key and have asked to be let in."""
    commands: list[str] = field(default_factory=list)
    forwards: list[tuple[str, int]] = field(default_factory=list)
    routes: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def public(self) -> str:
        return self.host_key.with_name(f"{self.host_key.name}.pub").read_text().strip()

    @property
    def received_nothing(self) -> bool:
        """Somebody was here, and has left when they saw the host key."""
        return self.connections > 0 and not (self.users or self.commands or self.forwards)

    async def session(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self.commands.append(process.command or "")
        argv = ["sh", "-c", process.command] if process.command else ["head", "-n", "2"]
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **self.env}
        )
        assert child.stdin and child.stdout and child.stderr
        feed = asyncio.create_task(_copy(process.stdin, child.stdin))
        await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
        feed.cancel()
        process.exit(await child.wait())

    async def forward(
        self, host: str, port: int, reader: asyncssh.SSHReader[bytes], writer: asyncssh.SSHWriter[bytes]
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.routes.get((host, port), port))
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        far_writer.close()
        writer.close()


class _Connection(asyncssh.SSHServer):
    def __init__(self, server: SshServer) -> None:
        self.server = server

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.server.connections += 1

    def begin_auth(self, username: str) -> bool:
        self.server.users.append(username)
        return False

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Callable[..., Any]:
        self.server.forwards.append((dest_host, dest_port))
        return lambda reader, writer: self.server.forward(dest_host, dest_port, reader, writer)


@contextlib.contextmanager
def serving(*servers: SshServer) -> Iterator[None]:
    """Let these servers listen, each on a port of its own."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)

    async def listen(server: SshServer) -> asyncssh.SSHAcceptor:
        made = await asyncssh.create_server(
            lambda: _Connection(server),
            "127.0.0.1",
            0,
            server_host_keys=[str(server.host_key)],
            process_factory=server.session,
            sftp_factory=True,
            encoding=None,
            line_editor=False,
        )
        server.port = made.get_port()
        return made

    async def serve() -> None:
        doors = [await listen(server) for server in servers]
        ready.set()
        await stop.wait()
        for door in doors:
            door.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


async def _copy(reader: Any, writer: Any) -> None:
    """All of a stream, and its end."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
