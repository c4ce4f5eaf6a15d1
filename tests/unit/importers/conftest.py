from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
