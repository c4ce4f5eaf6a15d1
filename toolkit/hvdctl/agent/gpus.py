"""GPUs of this node, through nvidia-smi where it is there."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from typing import Any

_FIELDS = "name,utilization.gpu,memory.used,memory.total"
_PATIENCE_S = 15.0
_FIRST_S = 5.0
# Times as long as nvidia-smi took: without a driver that stays loaded that may be seconds.
_REST = 4


class Gpus:
    """Asks beside the samples, which don't wait for it."""

    def __init__(self, every: float) -> None:
        self.latest: list[dict[str, Any]] = []
        self._every = every
        self._answered = threading.Event()
        program = shutil.which("nvidia-smi")
        if program:
            threading.Thread(target=self._ask, args=(program,), daemon=True).start()
            self._answered.wait(_FIRST_S)

    def _ask(self, program: str) -> None:
        while True:
            started = time.monotonic()
            self.latest = query(program)
            self._answered.set()
            took = time.monotonic() - started
            time.sleep(max(self._every - took, took * _REST))


def query(program: str) -> list[dict[str, Any]]:
    """Use as a fraction and memory in bytes of each GPU; None for what it can't tell."""
    try:
        told = subprocess.run(
            [program, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse(told.stdout) if told.returncode == 0 else []


def parse(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.rsplit(",", 3)]
        if len(words) == 4:
            use, used, total = (_number(word) for word in words[1:])
            found.append(
                {
                    "name": words[0],
                    "use": None if use is None else use / 100,
                    "memory": None if used is None else int(used * 2**20),
                    "memory_limit": None if total is None else int(total * 2**20),
                }
            )
    return found


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None  # such as [N/A] and [Not Supported]
