"""Least squares in a handful of unknowns that can't be negative, without dependencies."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

_HUBER = 1.345
_ROUNDS = 20
# Rows of one kind are off together: more of them than this don't make a value better known.
_INDEPENDENT = 8


def solve(table: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Values x >= 0 for which each row's product with x is nearest to 1, and their standard errors.

    Rows that are far off count less (Huber's weights).
    """
    weights = [1.0] * len(table)
    for _ in range(_ROUNDS):
        values = _not_negative(table, weights)
        off = [abs(_product(line, values) - 1) for line in table]
        scale = max(1.4826 * statistics.median(off), 1e-9)
        weights = [min(1.0, _HUBER * scale / one) if one else 1.0 for one in off]
    freedom = max(1, len(table) - len(values))
    spread = max(sum(w * one**2 for w, one in zip(weights, off, strict=True)) / freedom, 1e-12)
    errors = []
    for index in range(len(values)):
        square = sum(w * line[index] ** 2 for w, line in zip(weights, table, strict=True))
        square *= min(1.0, _INDEPENDENT / len(table))
        errors.append(math.sqrt(spread / square) if square else 0.0)
    return values, errors


def _product(line: Sequence[float], values: Sequence[float]) -> float:
    return sum(a * x for a, x in zip(line, values, strict=True))


def _not_negative(table: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """The best of all subsets of columns whose solution has no negative value."""
    width = len(table[0])
    best = (math.inf, [0.0] * width)
    for size in range(1, width + 1):
        for columns in itertools.combinations(range(width), size):
            rows = list(zip(weights, table, strict=True))
            square = [[sum(w * line[i] * line[j] for w, line in rows) for j in columns] for i in columns]
            solved = _gauss(square, [sum(w * line[i] for w, line in rows) for i in columns])
            if solved is None or min(solved) < 0:
                continue
            values = [0.0] * width
            for column, value in zip(columns, solved, strict=True):
                values[column] = value
            best = min(best, (sum(w * (_product(line, values) - 1) ** 2 for w, line in rows), values))
    return best[1]


def _gauss(square: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """The solution of a small symmetric system, scaled first as its columns have very different units."""
    scales = [math.sqrt(square[i][i]) for i in range(len(right))]
    if min(scales) == 0:
        return None
    rows = [
        [value / scales[i] / scales[j] for j, value in enumerate(line)] + [right[i] / scales[i]]
        for i, line in enumerate(square)
    ]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(rows[i][column]))
        if abs(rows[pivot][column]) < 1e-12:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for i in range(size):
            if i != column:
                factor = rows[i][column] / rows[column][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [rows[i][size] / rows[i][i] / scales[i] for i in range(size)]
