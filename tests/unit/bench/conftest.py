from __future__ import annotations

from pathlib import Path

import bench_sample as sample
import pytest
from bench_ranks import Site
from fake_engine import FakeEngine
from hvdctl import links, pipeline
from hvdctl.bench import figures, ranks, report, sweep
from hvdctl.bench.figures import Figure, Pictures
from hvdctl.cluster import Cluster
from hvdctl.links import Measured
from support import answer, stand

Drawn = dict[str, tuple[Figure, Pictures]]


@pytest.fixture(scope="session")
def whole() -> Drawn:
    """Every figure of the sample, drawn once: it takes seconds."""
    return {figure.name: (figure, figure.pictures()) for figure in figures.build(sample.records())}


@pytest.fixture
def site(cluster: Cluster, engine: FakeEngine, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The cluster stands; its links are those that were last asked for."""
    made = Site()
    stand(engine, "node0", "node1")
    answer(fake_nodes, "list", [])
    monkeypatch.setattr(ranks, "Session", made.ranks)
    monkeypatch.setattr(sweep, "CARRIED", 0.5)
    monkeypatch.setattr(pipeline, "relink", lambda _, net, step: made.log.append(f"link {net}"))
    monkeypatch.setattr(pipeline, "image", lambda _: {"reference": "test/node:1", "id": "sha256:1"})
    monkeypatch.setattr(report, "build", lambda path: made.log.append("report"))
    monkeypatch.setattr(
        links,
        "measure",
        lambda _, source, target, asked: Measured(source, target, 0.9 * asked if asked else 5e9, asked),
    )
    return made
