"""What a registry says of a push, told as progress or as an error with the way out."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import imageregistry
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.progress import Silent


class Told(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def update(self, detail: str) -> None:
        self.told.append(detail)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("registry.example.org/me/hvd:1", ("registry.example.org/me/hvd", "1")),
        ("127.0.0.1:5000/hvd", ("127.0.0.1:5000/hvd", "latest")),
        ("me/hvd:cuda-13.0", ("me/hvd", "cuda-13.0")),
    ],
)
def test_a_target_is_a_name_and_a_tag(target: str, parts: tuple[str, str]) -> None:
    assert imageregistry.check(target) == parts


@pytest.mark.parametrize("target", ["", "hvd", "a/B", "a/b@sha256:0", "a/b:", "https://a/b", "a/b:c:d"])
def test_anything_else_is_refused(target: str) -> None:
    with pytest.raises(UsageError, match="is not a place in a registry"):
        imageregistry.check(target)


def test_progress_counts_all_layers() -> None:
    step = Told()
    events: list[dict[str, Any]] = [
        {"status": "Preparing", "id": "a"},
        {"status": "Pushing", "id": "a", "progressDetail": {"current": 5_000_000, "total": 10_000_000}},
        {"status": "Pushing", "id": "b", "progressDetail": {"current": 40_000_000, "total": 30_000_000}},
        {"status": "Pushed", "id": "a", "progressDetail": {}},
    ]
    imageregistry._follow(events, "r/x", step)
    assert step.told == ["5 of 10 MB", "35 of 40 MB"]


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("denied: requested access to the resource is denied", "docker login r.example.org"),
        ("no basic auth credentials", "docker login r.example.org"),
        ("dial tcp: lookup r.example.org: no such host", "is r.example.org the registry, and does it answer?"),
    ],
)
def test_an_error_is_told_with_the_way_out(said: str, hint: str) -> None:
    with pytest.raises(HvdctlError, match=said) as told:
        imageregistry._follow([{"error": said}], "r.example.org/x", Told())
    assert told.value.hint == hint


def test_an_image_that_the_engine_does_not_have_is_told(engine: FakeEngine) -> None:
    with pytest.raises(HvdctlError, match="r/x:1 was not pushed"):
        imageregistry.push("gone:1", "r/x:1", Silent())
