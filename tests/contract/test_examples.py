"""The spec files in examples/ are what `hvdctl up --file` takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdctl import spec

FOLDER = Path(__file__).parents[2] / "examples"
FILES = sorted(FOLDER.rglob("*.yml"))


def test_there_are_examples() -> None:
    assert FOLDER / "gpulab.yml" in FILES


@pytest.mark.parametrize("file", [pytest.param(file, id=file.name) for file in FILES])
def test_an_example_is_a_valid_spec(file: Path) -> None:
    assert spec.load(file, {}).nodes > 0
