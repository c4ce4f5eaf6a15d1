"""`sample`: what this node uses, a line of JSON at a time, until the reader goes."""

from __future__ import annotations

import select
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from . import meters, store
from .gpus import Gpus
from .store import AgentError

LEAST_S, MOST_S = 0.2, 60.0
# The first line comes soon, however rare the others are.
_FIRST_S = 0.5
# A rate that was set anew, as benches do, is seen within this time.
_LINK_S = 20.0


@dataclass(frozen=True)
class Options:
    every: float = 1.0
    count: int | None = None
    machine: bool = False


class Reading(NamedTuple):
    """Counters at one moment."""

    at: float
    cpu: float
    received: int | None
    sent: int | None


def main(argv: list[str]) -> int:
    options = parse(argv, "sample")
    sampler = Sampler(options)
    left = options.count
    wake = time.monotonic() + min(_FIRST_S, options.every)
    while left != 0:
        if hung_up(wake - time.monotonic()):
            return 0
        store.answer(sampler.sample())
        left = None if left is None else left - 1
        # On from now where this process was kept waiting: no burst of lines afterwards.
        wake = max(wake + options.every, time.monotonic())
    return 0


def parse(argv: list[str], verb: str) -> Options:
    usage = f"usage: {verb} [--every SECONDS] [--count N] [--machine]"
    options, words = Options(), list(argv)
    try:
        while words:
            match words.pop(0):
                case "--every":
                    options = replace(options, every=float(words.pop(0)))
                case "--count":
                    options = replace(options, count=int(words.pop(0)))
                case "--machine":
                    options = replace(options, machine=True)
                case _:
                    raise AgentError(usage)
    except (ValueError, IndexError):
        raise AgentError(usage) from None
    if not LEAST_S <= options.every <= MOST_S:
        raise AgentError(f"--every is {LEAST_S:g} to {MOST_S:g} seconds, not {options.every:g}")
    if options.count is not None and options.count < 1:
        raise AgentError(f"--count is at least 1, not {options.count}")
    return options


def hung_up(seconds: float) -> bool:
    """Wait; at once True when the reader of stdout has gone, which a write would tell only at the next line."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class Sampler:
    """Each sample is of the time since the one before it."""

    def __init__(self, options: Options) -> None:
        self.meter = meters.meter(options.machine)
        self.interface = meters.interface()
        self.gpus = Gpus(options.every)
        self._link: int | None = None
        self._link_at = float("-inf")
        self.before = self._read()

    def sample(self) -> dict[str, Any]:
        now, before = self._read(), self.before
        self.before = now
        seconds, cpus = max(now.at - before.at, 1e-3), self.meter.cpus()
        used = grown(before.cpu, now.cpu)
        memory, limit = self.meter.memory()
        return {
            "node": store.here(),
            "time": store.now(),
            "scope": self.meter.scope,
            "cpu": None if used is None else round(min(1.0, used / seconds / cpus), 4),
            "cpus": cpus,
            "memory": memory,
            "memory_limit": limit,
            "rx_bits": _bits(before.received, now.received, seconds),
            "tx_bits": _bits(before.sent, now.sent, seconds),
            "link": self._rate(now.at),
            "gpus": self.gpus.latest,
            "ranks": meters.ranks(),
        }

    def _read(self) -> Reading:
        try:
            received, sent = meters.traffic(self.interface) if self.interface else (None, None)
        except OSError:
            received = sent = None
        return Reading(time.monotonic(), self.meter.cpu_seconds(), received, sent)

    def _rate(self, now: float) -> int | None:
        if self.interface and now - self._link_at > _LINK_S:
            self._link, self._link_at = meters.link_rate(self.interface, self.meter.scope), now
        return self._link


def grown(before: float | None, now: float | None) -> float | None:
    """What was counted in between; None where a counter began anew, as an interface's does that was made anew."""
    return None if before is None or now is None or now < before else now - before


def _bits(before: int | None, now: int | None, seconds: float) -> int | None:
    count = grown(before, now)
    return None if count is None else round(count * 8 / seconds)
