"""`reach`: which other nodes this one can connect to, on ports of the kind that Horovod takes.

Horovod, Gloo and Open MPI take any free port above 1023, so a few such ports stand for all. A conversation of lines, as
all nodes must listen before the first one calls:

    us      {"ports": [N, ...]}
    caller  {"peers": {NAME: [ADDRESS, [PORT, ...]], ...}}
    us      {"reached": {NAME: {PORT: "ok" or the reason, ...}, ...}}

Then we listen on until the caller hangs up, for the nodes that take longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import threading
from typing import Any

from . import store
from .store import AgentError

# Between the ports that services have and those that the kernel hands out: there the rendezvous often is.
_LOW = range(10000, 30000)
_KERNELS_CHOICE = 2
_GREETING = b"hvd-reach\n"
_PATIENCE_S = 4.0


def main(argv: list[str]) -> int:
    if argv:
        raise AgentError("usage: reach, then a line of JSON on stdin")
    listeners = [*_listen(_low()), *(found for _ in range(_KERNELS_CHOICE) for found in _listen(0))]
    for listener in listeners:
        threading.Thread(target=_greet, args=(listener,), daemon=True).start()
    store.answer({"ports": [listener.getsockname()[1] for listener in listeners]})
    line = sys.stdin.readline()
    if not line:
        return 0
    try:
        peers: dict[str, Any] = json.loads(line)["peers"]
    except (ValueError, KeyError, TypeError):
        raise AgentError('a line {"peers": {name: [address, [port, ...]]}} is wanted') from None
    store.answer({"reached": reach({name: (address, ports) for name, (address, ports) in peers.items()})})
    while sys.stdin.readline():
        pass
    return 0


def reach(peers: dict[str, tuple[str, list[int]]]) -> dict[str, dict[str, str]]:
    """What became of a connection to each port of each peer, all side by side."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = [(name, address, port) for name, (address, ports) in peers.items() for port in ports]
    with ThreadPoolExecutor(max(1, min(len(wanted), 128))) as pool:
        told = list(pool.map(lambda one: _call(one[1], one[2]), wanted))
    found: dict[str, dict[str, str]] = {name: {} for name in peers}
    for (name, _, port), said in zip(wanted, told, strict=True):
        found[name][str(port)] = said
    return found


def _call(address: str, port: int) -> str:
    try:
        with socket.create_connection((address, port), timeout=_PATIENCE_S) as link:
            link.settimeout(_PATIENCE_S)
            # What answers may be something else: a proxy, or another job behind the same address.
            return "ok" if link.recv(len(_GREETING)) == _GREETING else "something else answers"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)).lower()


def _greet(listener: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):
            caller, _ = listener.accept()
            with caller:
                caller.sendall(_GREETING)


def _listen(port: int) -> list[socket.socket]:
    try:
        return [socket.create_server(("", port), backlog=128)]
    except OSError:
        return []


def _low() -> int:
    return random.choice(_LOW)  # noqa: S311 - not a secret
