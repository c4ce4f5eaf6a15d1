from __future__ import annotations

import os
import signal
import threading

from hvdctl import interrupts


def test_ctrl_c_is_counted_and_the_handler_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts.counted() as pressed:
        assert pressed() == 0
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert pressed() == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_in_a_thread_it_is_not_seen() -> None:
    seen: list[int] = []

    def look() -> None:
        with interrupts.counted() as pressed:
            seen.append(pressed())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [0]
