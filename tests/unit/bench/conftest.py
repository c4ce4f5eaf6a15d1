from __future__ import annotations

import bench_sample as sample
import pytest
from hvdctl.bench import figures
from hvdctl.bench.figures import Figure, Pictures

Drawn = dict[str, tuple[Figure, Pictures]]


@pytest.fixture(scope="session")
def whole() -> Drawn:
    """Every figure of the sample, drawn once: it takes seconds."""
    return {figure.name: (figure, figure.pictures()) for figure in figures.build(sample.records())}
