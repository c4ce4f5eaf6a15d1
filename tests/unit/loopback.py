"""A head that is this machine: an SSH server on the loopback, the real ssh and rsync, and a share in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import asyncssh
from hvdctl import keys
from hvdctl.cluster import Cluster, write


class Head:
    """Runs what it is asked over SSH, as a node does. `programs` come before all others on its PATH."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.share = folder / "share"
        self.share.mkdir()
        self.programs = folder / "programs"
        self.programs.mkdir()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._children: list[asyncio.subprocess.Process] = []
        host_key, login = keys.ensure(folder / "host_key"), cluster.key()
        listening = asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[str(host_key.private)],
            authorized_client_keys=asyncssh.import_authorized_keys(login.public),
            process_factory=self._run,
            encoding=None,
        )
        self._server = asyncio.run_coroutine_threadsafe(_listen(listening), self._loop).result(30)
        port = self._server.get_port()
        write(cluster.known_hosts, f"[127.0.0.1]:{port} {host_key.public}\n")
        settings = {
            "HostName": "127.0.0.1",
            "Port": port,
            "User": getpass.getuser(),
            "IdentityFile": login.private,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": cluster.known_hosts,
            "StrictHostKeyChecking": "yes",
        }
        write(cluster.ssh_config, "Host node0\n" + "".join(f"    {key} {value}\n" for key, value in settings.items()))

    def rsync(self, script: str) -> None:
        """Have a script of the job's own stand for rsync on the head; `real` is the true one, `calls` counts."""
        file = self.programs / "rsync"
        file.write_text(f"#!/bin/bash\nreal={shutil.which('rsync')}\ncalls=$SHARE/../calls\necho >>$calls\n{script}\n")
        file.chmod(0o755)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for child in self._children:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_shell(
            process.command or "true",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PATH": f"{self.programs}:{os.environ['PATH']}", "SHARE": str(self.share)},
        )
        self._children.append(child)
        given = asyncio.create_task(_pump(process.stdin, child.stdin))
        await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
        process.exit(await child.wait())
        given.cancel()


async def _pump(source: Any, target: Any) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError, asyncssh.Error):
        target.write_eof()
    with contextlib.suppress(OSError, asyncssh.Error):
        while await source.read(1 << 16):
            pass  # a program whose output nobody reads would never end


async def _listen(listening: Awaitable[asyncssh.SSHAcceptor]) -> asyncssh.SSHAcceptor:
    return await listening
