"""One damaged bench is named and hides no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hvdctl import paths
from hvdctl.bench import results
from support import Hvdctl

GOOD: dict[str, Any] = {"kind": "bench", "version": 1, "id": "good", "created": 1.7e9}


def bench(name: str, text: str) -> Path:
    folder = paths.home() / "demo" / "bench" / name
    folder.mkdir(parents=True)
    (folder / results.FILE).write_text(text)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        json.dumps(GOOD | {"created": 1e18}) + "\n",
        json.dumps(GOOD | {"created": -1e12}) + "\n",
        json.dumps(GOOD | {"created": 10**400}) + "\n",
        json.dumps(GOOD) + "\n" + json.dumps({"kind": "links", "net": 10**400, "pairs": []}) + "\n",
        '{"created": ' + "1" * 5000 + "}\n",
    ],
)
def test_a_list_names_the_damaged_one(hvdctl: Hvdctl, text: str) -> None:
    bench("good", json.dumps(GOOD) + "\n")
    bench("odd", text)
    told = hvdctl("report", "list")
    assert told.code == 0, told.err
    rows = {line.split()[1]: line for line in told.out.splitlines()}
    assert "unfinished" in rows["good"]
    assert "unreadable" in rows["odd"]
    assert "demo odd: " in told.err
    assert "Traceback" not in told.err
