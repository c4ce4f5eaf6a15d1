"""Ctrl-C that only counts: whoever waits looks at the count and decides, at one place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """How often Ctrl-C was pressed since the block began; outside the main thread, where it can't be seen, never."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: count
    finally:
        signal.signal(signal.SIGINT, before)
