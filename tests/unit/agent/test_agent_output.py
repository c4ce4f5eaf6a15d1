from __future__ import annotations

from pathlib import Path

import pytest
from hvdctl.agent.output import LIMIT, Lines, tail, untagged


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\nc"], ["ab", "c"]),
        ([b"windows\r\n"], ["windows"]),
        ([b"\n\n"], ["", ""]),
        ([b"\r10%\r50%", b"\r100%\nnext\n"], ["100%", "next"]),
        ([b"10%\r", b"100%\r", b"\n"], ["100%"]),
        ([b"bad \xff\xfe bytes\n"], ["bad \ufffd\ufffd bytes"]),
        (["ü".encode()[:1], "ü".encode()[1:] + b"\n"], ["ü"]),
        ([b"x" * (LIMIT + 5) + b"\n"], ["x" * (LIMIT + 5)]),
        ([b"x" * (LIMIT + 5), b"y"], ["x" * LIMIT, "xxxxxy"]),
        ([], []),
    ],
)
def test_lines(pieces: list[bytes], expected: list[str]) -> None:
    lines = Lines()
    assert [line for piece in pieces for line in lines.feed(piece)] + lines.close() == expected


def test_bar_is_shown_in_its_newest_state_and_once() -> None:
    lines = Lines()
    assert lines.feed(b"\r10%") == [] and lines.bar() == "10%" and lines.bar() is None
    assert lines.feed(b"\r20%\r30%") == [] and lines.bar() == "30%"
    assert lines.feed(b"\n") == []
    assert lines.feed(b"30%\n") == ["30%"]
    assert lines.feed(b"no bar") == [] and lines.bar() is None


def test_endless_bar_takes_no_room() -> None:
    lines = Lines()
    for step in range(50_000):
        assert lines.feed(b"\rstep %d" % step) == []
    assert lines.close() == ["step 49999"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"[1,0]<stdout>:[rank 0 node0] hi", b"[rank 0 node0] hi"),
        (b"[0]<stderr>:x", b"x"),
        (b"[12]<stdout>:[3]<stdout>:x", b"[3]<stdout>:x"),
        (b"[rank 0 node0] [0]<stdout>:x", b"[rank 0 node0] [0]<stdout>:x"),
        (b"[1] list", b"[1] list"),
    ],
)
def test_untagged(line: bytes, expected: bytes) -> None:
    assert untagged(line) == expected


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d\n" % n for n in range(100_000)) + b"end")
    assert tail(log, 3) == ["99998", "99999", "end"]
    assert tail(tmp_path / "none") == []
