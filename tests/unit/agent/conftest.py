from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from agent_node import Node, wait_for


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)

    def ended(run: str) -> bool:
        return not made.processes(int(run))

    yield made
    if made.runs.is_dir():
        for run in made.runs.iterdir():
            made.call("cancel", run.name)
            wait_for(partial(ended, run.name))
