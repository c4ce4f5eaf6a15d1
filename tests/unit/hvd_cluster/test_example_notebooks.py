"""The example notebooks, as they are kept: they are run for real by the end-to-end tests."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"), key=lambda file: file.stem)


def code(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_they_are_those_that_the_documents_name() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["hello", "scaling", "training", "training-tensorflow"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_clean_and_its_code_is_python(file: Path) -> None:
    notebook = json.loads(file.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert notebook["cells"][0]["cell_type"] == "markdown"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    for text in code(notebook):
        ast.parse(text.partition("\n")[2] if text.startswith("%%hvd") else text)
