from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_node import Node, wait_for


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.runs.is_dir():
        for run in made.runs.iterdir():
            made.call("cancel", run.name)
            wait_for(lambda name=run.name: not made.processes(int(name)))
