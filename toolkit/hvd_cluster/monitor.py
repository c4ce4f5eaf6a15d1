"""The page "Cluster monitor": what every node uses, live, in a tab of JupyterLab.

    python -m hvd_cluster.monitor --socket PATH

serves it on a UNIX socket of the user's own, behind jupyter-server-proxy. `/` is the page, `/data?since=N` what came
after number N from `hvd-agent top`. One of those serves all viewers: it starts with the first question and ends when
nobody has asked for a while. The page asks again and again rather than being sent events, because the proxy keeps a
stream of events open for hours after its reader has gone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections import deque
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = Path(__file__).with_name("monitor.html")
KEPT_S = 125.0  # what the page shows, two minutes, and a little more
_PR_SET_PDEATHSIG = 1
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # Nothing but this page's own: no address outside is ever asked for anything.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'self'",
}


class Feed:
    """The documents of the last minutes, from an `hvd-agent top` that runs only while someone asks."""

    def __init__(self, every: float = 2.0, patience: float = 10.0, retry: float = 5.0) -> None:
        self.every, self.patience, self.retry = every, max(patience, 3 * every), retry
        self._lock = threading.Lock()
        self._documents: deque[tuple[int, dict[str, Any]]] = deque()
        # From the clock on: numbers stay in order over restarts of this program.
        self._number = int(time.time()) * 10
        self._problem = ""
        self._asked_at = self._retry_at = float("-inf")
        self._reader: threading.Thread | None = None
        self._closed = False

    def since(self, number: int) -> dict[str, Any]:
        """What came after a number, and the newest number; or all where that number is not known here."""
        with self._lock:
            self._asked_at = now = time.monotonic()
            if self._reader is None and now >= self._retry_at and not self._closed:
                self._reader = threading.Thread(target=self._run, daemon=True)
                self._reader.start()
            known = number <= self._number
            fresh = [document for one, document in self._documents if one > number or not known]
            return {"number": self._number, "every": self.every, "problem": self._problem, "documents": fresh}

    @property
    def running(self) -> bool:
        return self._reader is not None

    def close(self) -> None:
        self._closed = True
        reader = self._reader
        if reader is not None:
            reader.join(5)

    def _run(self) -> None:
        problem = ""
        try:
            problem = self._read()
        except OSError as error:
            problem = f"hvd-agent can't be started: {error.strerror}"
        finally:
            with self._lock:
                self._problem = problem
                self._retry_at = time.monotonic() + (self.retry if problem else 0.0)
                self._reader = None

    def _read(self) -> str:
        """Until nobody asks any more; returns what went wrong before that."""
        with subprocess.Popen(
            ["hvd-agent", "top", "--every", f"{self.every:g}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child:
            try:
                descriptor, rest, said = child.stdout.fileno() if child.stdout else -1, b"", ""
                while self._wanted():
                    if not select.select([descriptor], [], [], 0.5)[0]:
                        continue
                    data = os.read(descriptor, 1 << 16)
                    if not data:
                        return said or f"hvd-agent top has ended with exit code {child.wait()}"
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        said = self._take(line) or said
                return ""
            finally:
                child.terminate()

    def _wanted(self) -> bool:
        return not self._closed and time.monotonic() - self._asked_at < self.patience

    def _take(self, line: bytes) -> str:
        """Keep a document; anything else is what the agent has to say."""
        try:
            document = json.loads(line)
            nodes, at = document["nodes"], document["time"]
        except (ValueError, KeyError, TypeError):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return str(json.loads(line)["error"])
            return line.decode(errors="replace").strip()
        with self._lock:
            self._number += 1
            self._problem = ""
            self._documents.append((self._number, {"time": at, "nodes": nodes}))
            while self._documents[0][1]["time"] < at - KEPT_S:
                self._documents.popleft()
        return ""


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, socket: Path, feed: Feed) -> None:
        self.feed = feed
        socket.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            super().__init__(str(socket), Handler)
        finally:
            os.umask(before)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # who asked has gone
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Server

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", PAGE.read_bytes())
        elif asked.path == "/data":
            since = parse_qs(asked.query).get("since", ["0"])[0]
            told = self.server.feed.since(int(since) if since.isdecimal() else 0)
            self._answer(HTTPStatus.OK, "application/json", json.dumps(told, separators=(",", ":")).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"there is / and /data\n")

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "the proxy"  # peers on a UNIX socket have no address

    def log_message(self, *_: object) -> None:
        """Nothing: a page asks every other second."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hvd_cluster.monitor", description="The page Cluster monitor.")
    parser.add_argument("--socket", type=Path, required=True, help="path of the UNIX socket to serve on")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks, 0.2 to 60 (default: 2)")
    given = parser.parse_args(argv)
    if not 0.2 <= given.every <= 60:
        parser.error(f"--every is 0.2 to 60 seconds, not {given.every:g}")
    # JupyterLab may be killed: this ends with it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    feed = Feed(given.every)
    with Server(given.socket, feed) as server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            feed.close()
            given.socket.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
