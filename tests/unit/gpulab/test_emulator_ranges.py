from __future__ import annotations

import pytest
from hvdctl.gpulab.emulator.ranges import Part, part


@pytest.mark.parametrize(
    ("wanted", "size", "answer"),
    [
        (None, 0, Part(200, 0, 0)),
        (None, 9, Part(200, 0, 9)),
        ("bytes=4-", 9, Part(206, 4, 9, "bytes 4-9/9")),
        ("bytes=0-", 9, Part(206, 0, 9, "bytes 0-9/9")),
        ("bytes=2-4", 9, Part(206, 2, 5, "bytes 2-5/9")),
        ("bytes=2-99", 9, Part(206, 2, 9, "bytes 2-9/9")),
        ("bytes=-3", 9, Part(206, 6, 9, "bytes 6-9/9")),
        ("bytes=9-", 9, Part(204)),
        ("bytes=12-", 9, Part(204)),
        ("bytes=0-", 0, Part(204)),
        ("lines=1-", 9, Part(200, 0, 9)),
    ],
)
def test_the_part_that_answers(wanted: str | None, size: int, answer: Part) -> None:
    assert part(wanted, size) == answer
