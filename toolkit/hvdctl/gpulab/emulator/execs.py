"""A program in a job's container, with its streams apart and its exit code."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

from hvdctl import engine

if TYPE_CHECKING:
    from docker import DockerClient

_CHUNK = 65536
_STDERR = 2
_END_OF_INPUT = b"\x04"


class NoExec(Exception):
    """The program can't be started; the text says why."""


class Exec:
    """One program; every call may block."""

    def __init__(self, client: DockerClient, container: str | None, argv: list[str], terminal: str | None) -> None:
        self.client = client
        self.container = container
        self.argv = argv
        self.terminal = terminal
        self.id = ""
        self._opened: Any = None
        self._socket: Any = None
        self._reader: Any = None
        self._left = 0
        self._is_error = False

    def start(self) -> None:
        from docker.errors import DockerException

        if self.container is None:
            raise NoExec("the job's container is gone")
        api = self.client.api
        try:
            self.id = api.exec_create(
                self.container,
                self.argv,
                stdin=True,
                tty=bool(self.terminal),
                environment={"TERM": self.terminal} if self.terminal else None,
            )["Id"]
            opened: Any = api.exec_start(self.id, tty=bool(self.terminal), socket=True)
        except DockerException as error:
            raise NoExec(engine.describe(error).message) from error
        self._opened = opened
        self._socket = opened._sock
        self._socket.settimeout(None)
        # What the engine sent right behind its headers lies in the buffer of the response already.
        self._reader = opened._response.raw._fp.fp

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            if self.terminal:
                # The engine would drop a terminal's output with its input: end the line as a person does.
                self._socket.sendall(_END_OF_INPUT)
            else:
                self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> tuple[bool, bytes] | None:
        """Whether the next piece of output is of stderr, and the piece; None at the end."""
        if self.terminal:
            data = self._reader.read1(_CHUNK)
            return (False, data) if data else None
        while not self._left:
            head = self._reader.read(8)
            if len(head) < 8:
                return None
            self._is_error, self._left = head[0] == _STDERR, int.from_bytes(head[4:], "big")
        data = self._reader.read1(min(self._left, _CHUNK))
        self._left -= len(data)
        return (self._is_error, data) if data else None

    def resize(self, width: int, height: int) -> None:
        from docker.errors import DockerException

        with contextlib.suppress(DockerException):
            if width and height:
                self.client.api.exec_resize(self.id, height=height, width=width)

    def code(self) -> int:
        """The exit code; the engine may know it a moment after the last output only."""
        from docker.errors import DockerException

        for _ in range(50):
            try:
                found = self.client.api.exec_inspect(self.id)
            except DockerException:
                return 255  # the container is gone, and what ran in it
            if not found["Running"]:
                return int(found["ExitCode"] or 0)
            time.sleep(0.1)
        return 255

    def close(self) -> None:
        """Nothing more is read or written; a `read` that waits in another thread ends."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._opened.close()
