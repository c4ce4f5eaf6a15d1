from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdctl.gpulab.emulator import pki
from hvdctl.gpulab.service import Account, Service
from played import Played, played


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate and a login; making RSA keys takes a while."""
    folder = tmp_path_factory.mktemp("keys")
    pki.ensure(folder)
    return folder


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Played]:
    with played(tmp_path / "lab") as made:
        yield made


@pytest.fixture
def service(lab: Played, keys: Path) -> Service:
    return Service(Account(lab.url, keys / "login.pem"), pauses=(0.01, 0.02, 0.04, 0.08))
