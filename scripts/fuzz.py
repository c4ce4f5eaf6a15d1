#!/usr/bin/env python3
"""Feed odd inputs to hvdctl for some minutes: specs, flags, manifests, inventories, host lists, results, stored files.

    scripts/fuzz.py --minutes 5            a new seed, which is printed
    scripts/fuzz.py --seed 7               the same inputs again
    scripts/fuzz.py --only specs flags     some targets only
    scripts/fuzz.py --seed 7 --round 3 --only flags    what a failure tells to repeat it

Hypothesis makes the inputs and looks for the smallest one that fails. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from fuzz_box import Box, boxed
from fuzz_targets import Data, Target, targets
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded


@dataclass
class Found:
    """How many inputs each target had, and what failed with how to repeat it."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="(default: a new one)")
    parser.add_argument("--round", type=int, help="one round only")
    parser.add_argument(
        "--only", nargs="+", choices=[one.name for one in targets()], metavar="TARGET", help="(default: all)"
    )
    args = parser.parse_args()
    print(f"seed {args.seed}; `make fuzz SEED={args.seed}` makes the same inputs again", flush=True)
    began = time.monotonic()
    rounds = range(args.round, args.round + 1) if args.round is not None else range(10**9)
    found = fuzz(args.seed, rounds, began + 60 * args.minutes, args.only)
    for name, count in found.counts.items():
        print(f"  {name:16} {count:7} inputs")
    took = time.monotonic() - began
    print(f"{found.counts.total()} inputs in {took:.0f} s, {len(found.failures)} failed; seed {args.seed}")
    return 1 if found.failures else 0


def fuzz(seed: int, rounds: range, until: float, only: list[str] | None = None, size: int = 5) -> Found:
    """Run rounds until the time is over: in each, some inputs of every target. A target that failed rests."""
    found = Found()
    broken: set[str] = set()
    with boxed() as box:
        for number in rounds:
            for target in targets():
                if time.monotonic() > until:
                    return found
                if target.name in broken or (only and target.name not in only):
                    continue
                if problem := batch(box, target, seed * 1_000_003 + number, target.share * size, found.counts):
                    repeat = f"scripts/fuzz.py --seed {seed} --round {number} --only {target.name!r}"
                    print(f"\n{target.name}: {problem}\n  repeat: {repeat}\n", flush=True)
                    found.failures.append((target.name, problem))
                    broken.add(target.name)
            if len(broken) == len(only or targets()):
                return found
    return found


def batch(box: Box, target: Target, seed: int, size: int, counts: Counter[str]) -> str:
    """Some inputs of a target; the smallest one found that fails, with what is wrong, or nothing."""

    @seeded(seed)
    @settings(
        max_examples=size,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(target.inputs)
    def one(data: Data) -> None:
        counts[target.name] += 1
        try:
            target.check(box, data)
        except Exception as error:
            error.add_note(f"input: {data!r:.2000}")
            raise

    try:
        one()
    except Exception as error:
        return f"{type(error).__name__}: {error}\n" + "\n".join(getattr(error, "__notes__", [])[:1])
    return ""


if __name__ == "__main__":
    sys.exit(main())
