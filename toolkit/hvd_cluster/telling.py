"""`report`: numbers from a rank to the notebook, while the run goes on."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

# Written down at most so often: a share over the network is slow to open files.
_EVERY_S = 0.25


def report(step: float | None = None, **numbers: Any) -> None:
    """Send numbers to the notebook that called `run(..., live=...)`; nothing happens anywhere else.

    Numbers are what `float()` takes: 3, a loss tensor of one element, a numpy value.

        def train():
            for step in range(100):
                ...
                hc.report(step=step, loss=loss, images_per_s=rate)

        hc.run(train, live=hc.LivePlot("loss", "images_per_s", x="step"))
    """
    sender = _sender()
    if sender is None:
        return
    record = {} if step is None else {"step": _number("step", step)}
    record |= {name: _number(name, value) for name, value in numbers.items()}
    sender.add(record)


def flush() -> None:
    """Write down what was reported so far."""
    if _known:
        _known[0].flush()


def live_file(folder: Path, rank: int) -> Path:
    return folder / f"live-{rank}.jsonl"


class _Sender:
    """Gathers records and appends them to the rank's file now and then."""

    def __init__(self, file: Path, rank: int) -> None:
        self.file = file
        self.rank = rank
        self.began = time.monotonic()
        self.lines: list[str] = []
        self.lock = threading.Lock()
        self.filled = threading.Event()
        threading.Thread(target=self._keep_sending, daemon=True).start()

    def add(self, record: dict[str, float]) -> None:
        line = json.dumps({"rank": self.rank, "seconds": round(time.monotonic() - self.began, 3), **record})
        with self.lock:
            self.lines.append(line)
        self.filled.set()

    def flush(self) -> None:
        with self.lock:
            lines, self.lines = self.lines, []
            if lines:
                try:
                    with self.file.open("a", encoding="utf-8") as stream:
                        stream.write("".join(f"{line}\n" for line in lines))
                except OSError:
                    pass  # a full share, or a notebook that has left: no reason to stop the training

    def _keep_sending(self) -> None:
        while True:
            self.filled.wait()
            self.filled.clear()
            self.flush()
            time.sleep(_EVERY_S)


_known: list[_Sender] = []


def _sender() -> _Sender | None:
    if _known:
        return _known[0]
    folder, rank = os.environ.get("HVD_LIVE"), os.environ.get("HVDCTL_RANK", "")
    if not folder or not rank.isdecimal():
        return None
    _known.append(_Sender(live_file(Path(folder), int(rank)), int(rank)))
    return _known[0]


def _number(name: str, value: Any) -> float:
    try:
        # A loss is still part of PyTorch's graph, which warns when it is made a plain number.
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        told = f"report({name}=...) takes a number, not {type(value).__name__}"
        raise TypeError(f"{told}; of a tensor or list, report its mean") from None
