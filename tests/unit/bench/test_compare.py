"""Two benches: slower is a regression beyond the limit and beyond chance; what can't be compared is named."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import bench_sample as sample
import pytest
from hvdctl.bench.compare import Comparison, compare, parse_limit
from hvdctl.errors import UsageError
from support import Hvdctl

END = {"kind": "end", "state": "complete", "seconds": 1.0, "reason": None}


def point(rate: float, ci: float | None = 1.0, **change: Any) -> Any:
    one = sample.point("vgg16", 32, 2, 10**9, random.Random(1))
    return one | {"images_per_s": rate, "images_per_s_ci": ci} | change


def both(tmp_path: Path, a: list[Any], b: list[Any], limit: float | None = 0.05) -> Comparison:
    first = sample.write(tmp_path / "a", [sample.bench(), *a, END])
    second = sample.write(tmp_path / "b", [sample.bench(), *b, END])
    return compare(first, second, limit)


@pytest.mark.parametrize(
    ("was", "now", "limit", "verdict"),
    [
        ((100, 1), (90, 1), 0.05, "regression"),
        ((100, 1), (90, 1), 0.15, "slower"),
        ((100, 1), (90, 1), None, "slower"),
        ((100, 6), (90, 6), 0.05, "same"),  # intervals overlap
        ((100, 1), (96, 1), 0.05, "slower"),
        ((100, 1), (95, 1), 0.05, "slower"),  # just at the limit
        ((100, 1), (101, 1), 0.05, "same"),
        ((100, 1), (120, 1), 0.05, "faster"),
        ((100, None), (90, None), 0.05, "regression"),
        ((100, 0), (99.9, 0), 0.0, "regression"),
    ],
)
def test_the_verdict(tmp_path: Path, was: Any, now: Any, limit: float | None, verdict: str) -> None:
    found = both(tmp_path, [point(*was)], [point(*now)], limit)
    assert found.rows[0].verdict == verdict
    assert bool(found.regressions) == (verdict == "regression")
    assert found.rows[0].ratio == pytest.approx(now[0] / was[0])


def test_a_point_that_only_b_failed_at_is_a_regression(tmp_path: Path) -> None:
    broken = sample.failed(point(100), "rank 1 ended with exit code 1")
    found = both(tmp_path, [point(100)], [broken])
    assert [row.verdict for row in found.regressions] == ["failed"]
    assert "rank 1 ended with exit code 1" in found.rows[0].notes[0]


def test_what_only_one_has_is_named_and_no_regression(tmp_path: Path) -> None:
    a, b, c = (point(100, key=name) for name in ("same", "gone", "new"))
    found = both(tmp_path, [a, b], [a, c])
    assert (found.only_a, found.only_b, found.regressions) == (["gone"], ["new"], [])


def test_other_dilation_other_device_and_other_machine_are_noted(tmp_path: Path) -> None:
    found = both(tmp_path, [point(100)], [point(100, dilation=30.0)])
    assert found.rows[0].notes == ("time dilation 3× against 30×",)
    assert any("time dilation differs" in note for note in found.notes)
    found = both(tmp_path, [point(100)], [point(100, emulated=False, device="real", dilation=1.0)])
    assert "A is emulated, B is real" in found.rows[0].notes
    assert any("devices differ: emulated P100 against real" in note for note in found.notes)

    first = sample.write(tmp_path / "c", [sample.bench(), point(100), END])
    other = sample.bench()
    other["machine"]["cpu"], other["versions"]["torch"] = "Other CPU", "3.0.0"
    second = sample.write(tmp_path / "d", [other, point(100)])
    assert compare(first, second).notes == [
        "machine cpu differs: AMD EPYC 7B13 against Other CPU",
        "version of torch differs: 2.9.1 against 3.0.0",
        "B is unfinished",
    ]


def test_the_same_bench_has_nothing_to_tell(tmp_path: Path) -> None:
    folder = sample.write(tmp_path, sample.records())
    found = compare(folder, folder, 0.0)
    assert {row.verdict for row in found.rows} == {"same"}
    assert len(found.rows) == 67
    assert (found.only_a, found.only_b, found.notes, found.regressions) == ([], [], [], [])


def test_nothing_in_common(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no point that was measured in .*emulated P100 against real"):
        both(tmp_path, [point(100)], [point(100, key="x", device="real", emulated=False)])


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("5", 0.05), ("0.05", 0.05), (" 2.5 % ", 0.025), ("0", 0.0), ("0.5%", 0.005)]
)
def test_limits(text: str, share: float) -> None:
    assert parse_limit(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "%", "five", "-5%", "100%", "100", "nan", "inf", "5%%", "1e-2"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(UsageError, match="is not a limit; write 5%"):
        parse_limit(text)


def test_on_the_command_line(hvdctl: Hvdctl, tmp_path: Path) -> None:
    home = tmp_path / "clusters" / "demo" / "bench"
    sample.write(home / "one", [sample.bench(), point(100), END])
    sample.write(home / "two", [sample.bench(), point(80), END])
    words = ("bench", "compare", "one", "two")
    told = hvdctl(*words)
    assert told.code == 0
    assert "0.800" in told.out and "slower" in told.out
    told = hvdctl(*words, "--fail-under", "5%")
    assert told.code == 1
    assert "1 of 1 points are slower by more than 5 % or failed: vgg16 b32 2x1 1g" in told.err
    told = hvdctl(*words, "--fail-under", "5%", "--json")
    assert told.code == 1
    assert json.loads(told.out)["regressions"] == [point(100)["key"]]
    assert hvdctl(*words, "--fail-under", "0.3").code == 0
    assert hvdctl("bench", "compare", "two", "one", "--fail-under", "1").code == 0
    told = hvdctl(*words, "--fail-under", "much")
    assert (told.code, "--fail-under 'much' is not a limit" in told.err) == (2, True)
    told = hvdctl("bench", "compare", "one", "three")
    assert (told.code, "there is no bench 'three'" in told.err) == (2, True)
