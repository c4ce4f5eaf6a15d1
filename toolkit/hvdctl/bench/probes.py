"""What is measured of the network: an allreduce by size, which pairs of nodes, and how long that takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvdctl import process

Pair = tuple[str, str]

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 25 << 20)
SIZE_S = 1.0
LIMIT_S = 15.0

MOST_NODES = 16
"""Up to so many nodes, all pairs are measured."""
# One pair measured alone, and what of it is logins: 9900 pairs took 4.7 hours on two cores.
_PAIR_S, _LOGIN_S = 1.7, 0.7
# How often an allreduce is repeated at least (worker/allreduce.py).
_REPEATS = 3
# What a core carries between nodes that share it, for the guess.
_CORE_BITS = 5e9
_MOST_PAIRS = MOST_NODES * (MOST_NODES - 1)


@dataclass(frozen=True)
class Pairing:
    """Rounds of pairs that share no node, and how many pairs there are, measured or not."""

    rounds: tuple[tuple[Pair, ...], ...]
    of: int

    @property
    def count(self) -> int:
        return sum(map(len, self.rounds))

    @property
    def sampled(self) -> bool:
        return self.count < self.of

    @property
    def together(self) -> bool:
        """Whether some are measured at the same time."""
        return any(len(turn) > 1 for turn in self.rounds)

    def alone(self) -> Pairing:
        """The same pairs, one after the other."""
        return Pairing(tuple((pair,) for turn in self.rounds for pair in turn), self.of)


def planned(names: Sequence[str], net: int | None, *, shared: bool) -> Pairing:
    """How pairs are measured: without a rate one by one, if the nodes share their cores."""
    found = chosen(names)
    return found.alone() if net is None and shared else found


def chosen(names: Sequence[str]) -> Pairing:
    """All pairs of few nodes; of more, about as many as 16 nodes have, and every node in at least two.

    A pair is measured in both directions. The rounds are taken evenly from all, so that a node meets others near and
    far from it.
    """
    every = rounds(names)
    total = len(names) * (len(names) - 1)
    if len(names) > MOST_NODES:
        meetings = len(every) // 2
        # In a meeting of an odd number of nodes one has nobody to meet.
        kept = max(1 + len(names) % 2, _MOST_PAIRS // (2 * (len(names) // 2)))
        if kept < meetings:
            # From one meeting to the next, partners move on by two; there is an odd number of meetings.
            places = [index * meetings // kept * (meetings + 1) // 2 % meetings for index in range(kept)]
            every = [turn for place in places for turn in every[2 * place : 2 * place + 2]]
    return Pairing(tuple(tuple(turn) for turn in every if turn), total)


def rounds(names: Sequence[str]) -> list[list[Pair]]:
    """Every ordered pair once, in rounds in which no node stands twice: the circle method of tournaments."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    turns = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        met = [(a, b) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True) if a and b]
        turns += [met, [(b, a) for a, b in met]]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return turns


def allreduce_seconds(bits: float) -> float:
    """About how long an allreduce of every size takes over links of this rate."""
    onces = [once for size in SIZES if (once := 2 * 8 * size / bits) <= LIMIT_S or size == SIZES[0]]
    return sum(once + max(SIZE_S, _REPEATS * once) for once in onces)


def seconds(pairing: Pairing, net: int | None, cores: int | None) -> float:
    """About how long all pairs take; `cores` are those that all nodes share, and that logins wait for."""
    if cores is None:
        return sum(_PAIR_S * math.ceil(len(turn) / process.AT_ONCE) for turn in pairing.rounds)
    turns = sum(_PAIR_S + _LOGIN_S * max(0.0, len(turn) / cores - 1) for turn in pairing.rounds)
    # Pairs that fall short together are measured again alone.
    again = sum(len(turn) for turn in pairing.rounds if len(turn) > 1 and (net or 0) * len(turn) > cores * _CORE_BITS)
    return turns + _PAIR_S * again
