"""moto's server, one request at a time: its models are not made for all that Terraform asks at once.

python moto_in_turn.py -H 127.0.0.1 -p 5000
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

server: Any = importlib.import_module("moto.server")
serve = server.run_simple


def in_turn(app: App) -> App:
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start_response))

    return answer


def run(host: str, port: int, app: App, **options: Any) -> None:
    serve(host, port, in_turn(app), **options)


if __name__ == "__main__":
    server.run_simple = run
    server.main()
