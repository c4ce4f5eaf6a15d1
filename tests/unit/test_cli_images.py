"""`hvdctl image list` and `push`: the images of the engine, and the disks of machines."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from hvdctl import images
from support import Hvdctl


def hold(engine: FakeEngine, name: str, created: str) -> None:
    engine.images.add(name)
    engine.labels[name] = {"hvdctl.image": "node", "hvdctl.framework": "pytorch", "created": created}


def test_images_are_listed_with_their_state_the_newest_first(
    hvdctl: Hvdctl, engine: FakeEngine, tmp_path: Path
) -> None:
    current = images.reference("pytorch")
    hold(engine, "hvdctl/jupyter:pytorch-0ld", "2026-01-02T03:04:05.678Z")
    hold(engine, current, "2026-02-02T03:04:05.678Z")
    disk = tmp_path / "cache" / "vm" / "tensorflow-0ld"
    disk.mkdir(parents=True)
    for name in ("disk.raw", "vmlinuz", "initrd"):
        (disk / name).write_bytes(b"x")
    os.utime(disk / "disk.raw", (10**9, 10**9))
    unfinished = disk.with_name("tensorflow-half")
    unfinished.mkdir()

    rows = [line.split() for line in hvdctl("image", "list").out.splitlines()]
    assert rows[0] == ["IMAGE", "FRAMEWORK", "SIZE", "CREATED", "STATE"]
    assert [(row[0], row[1], row[-1]) for row in rows[1:]] == [
        (current, "pytorch", "current"),
        ("hvdctl/jupyter:pytorch-0ld", "pytorch", "old"),
        (str(disk), "tensorflow", "old"),
    ]
    assert rows[1][2:4] == ["500", "MB"]
    told = json.loads(hvdctl("image", "list", "--json").out)
    assert [one["reference"] for one in told] == [row[0] for row in rows[1:]], "test/node:1 is not of hvdctl"
    assert [one["kind"] for one in told] == ["node", "node", "disk"]
    assert [one["current"] for one in told] == [True, False, False]
    assert datetime.fromisoformat(told[0]["created"]) == datetime(2026, 2, 2, 3, 4, 5, tzinfo=UTC)


def test_without_images_the_list_names_the_way_to_one(hvdctl: Hvdctl, engine: FakeEngine) -> None:
    told = hvdctl("image", "list")
    assert (told.code, told.out) == (0, "no images; `hvdctl image build` makes one\n")
    assert json.loads(hvdctl("image", "list", "--json").out) == []


def test_without_an_engine_the_list_is_refused(hvdctl: Hvdctl) -> None:
    refused = hvdctl("image", "list")
    assert (refused.code, refused.out) == (4, "")
    assert "no Docker engine answers" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["horovod"], "'horovod' is not a place in a registry"),
        (["r.example.org/me/x:1", "--framework", "mxnet"], "'mxnet' is not a framework; choose one of: "),
    ],
)
def test_a_push_that_can_not_be_is_refused(hvdctl: Hvdctl, words: list[str], said: str) -> None:
    refused = hvdctl("image", "push", *words)
    assert refused.code == 2
    assert said in refused.err
