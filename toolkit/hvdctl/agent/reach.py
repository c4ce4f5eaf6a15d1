"""`reach`: which other nodes this one can connect to, on ports of the kind that Horovod takes.

Horovod, Gloo and Open MPI take any free port above 1023, so a few such ports stand for all. All nodes must listen
before the first one calls:

    reach listen CALLERS SECONDS    {"ports": [N, ...]}; ends when all have called, or nobody has for these seconds
    reach call NAME PACKED          {"reached": {NAME: {PORT: "ok" or the reason, ...}, ...}}

PACKED is {"nodes": {NAME: [ADDRESS, [PORT, ...]], ...}}; NAME is this node's own, which is not called.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import socket
import sys
import threading
from typing import Any, NoReturn

from . import store
from .apply import unpacked
from .store import AgentError

# Between the ports that services have and those that the kernel hands out: there the rendezvous often is.
_LOW = range(10000, 30000)
_KERNELS_CHOICE = 2
_GREETING = b"hvd-reach\n"
_PATIENCE_S = 4.0
_NAME_S = 1.0


def main(argv: list[str]) -> int:
    match argv:
        case ["listen", callers, seconds] if callers.isdecimal() and seconds.isdecimal():
            return _listening(int(callers), int(seconds))
        case ["call", name, word]:
            nodes: dict[str, Any] = unpacked(word)["nodes"]
            peers = {peer: (address, ports) for peer, (address, ports) in nodes.items() if peer != name}
            store.answer({"reached": reach(name, peers)})
            return 0
    raise AgentError("usage: reach listen CALLERS SECONDS, or reach call NAME PACKED")


def _listening(callers: int, seconds: int) -> int:
    """Tell the ports and return, while a process of its own listens on."""
    listeners = [*_listen(_low()), *(found for _ in range(_KERNELS_CHOICE) for found in _listen(0))]
    store.answer({"ports": [listener.getsockname()[1] for listener in listeners]})
    sys.stdout.flush()
    if not os.fork():
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):  # else the connection that started us would stay
                os.dup2(nothing, stream)
            _serve(listeners, callers, seconds)
        finally:
            os._exit(0)
    return 0


def _serve(listeners: list[socket.socket], callers: int, seconds: int) -> NoReturn:
    called: set[tuple[int, bytes]] = set()
    told: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def greet(index: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                caller, _ = listeners[index].accept()
                with caller:
                    caller.settimeout(_NAME_S)
                    caller.sendall(_GREETING)
                    told.put((index, caller.recv(256)))

    for index in range(len(listeners)):
        threading.Thread(target=greet, args=(index,), daemon=True).start()
    with contextlib.suppress(queue.Empty):
        while len(called) < callers * len(listeners):
            called.add(told.get(timeout=seconds))
    os._exit(0)


def reach(name: str, peers: dict[str, tuple[str, list[int]]]) -> dict[str, dict[str, str]]:
    """What became of a connection to each port of each peer, all side by side."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = [(peer, address, port) for peer, (address, ports) in peers.items() for port in ports]
    with ThreadPoolExecutor(max(1, min(len(wanted), 128))) as pool:
        told = list(pool.map(lambda one: _call(name, one[1], one[2]), wanted))
    found: dict[str, dict[str, str]] = {peer: {} for peer in peers}
    for (peer, _, port), said in zip(wanted, told, strict=True):
        found[peer][str(port)] = said
    return found


def _call(name: str, address: str, port: int) -> str:
    try:
        with socket.create_connection((address, port), timeout=_PATIENCE_S) as link:
            link.settimeout(_PATIENCE_S)
            link.sendall(name.encode())
            # What answers may be something else: a proxy, or another job behind the same address.
            return "ok" if link.recv(len(_GREETING)) == _GREETING else "something else answers"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)).lower()


def _listen(port: int) -> list[socket.socket]:
    try:
        return [socket.create_server(("", port), backlog=128)]
    except OSError:
        return []


def _low() -> int:
    return random.choice(_LOW)  # noqa: S311 - not a secret
