"""One name in two homes, as two users of one machine have it: neither harms the other. On a real engine."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hvdctl import engine, owner
from hvdctl.progress import Silent
from hvdctl.sites import local

from tests.e2e.conftest import Hvdctl

pytestmark = pytest.mark.docker


@pytest.fixture
def ada(hvdctl: Hvdctl) -> Hvdctl:
    return hvdctl


@pytest.fixture
def bob(ada: Hvdctl, tmp_path: Path) -> Iterator[Hvdctl]:
    """The same name in another home."""
    made = replace(ada, home=tmp_path / "bobs home")
    yield made
    with contextlib.suppress(Exception), made.owned():
        local.sweep(made.name, keep_data=False, step=Silent())


def whose(home: Hvdctl) -> str:
    with home.owned():
        return owner.this().name


def test_data_that_one_keeps_is_not_taken_and_not_removed_by_another(ada: Hvdctl, bob: Hvdctl) -> None:
    ada("up", "--nodes", "1")
    ada("exec", "--", "sh", "-c", "echo kept > /shared/file")
    assert "0 left; kept: volume" in ada("down", "-y", "--keep-data").out
    for words in (("up", "--nodes", "1", "-y"), ("down", "-y"), ("down", "-y", "--force")):
        refused = bob(*words, code=2)
        assert f"cluster {bob.name!r} is somebody else's: volume" in refused.err
        assert whose(ada) in refused.err
    assert bob.left() == [f"volume hvdctl-{ada.name}-share"]
    assert f"{ada.name} on local belongs to {whose(ada)}" in listed(bob)
    assert f"{ada.name}: data that `hvdctl down --keep-data` kept for you" in listed(ada)
    ada("up", "--nodes", "1")
    assert ada("exec", "--", "cat", "/shared/file").out == "kept\n"
    assert "0 left" in ada("down", "-y").out
    assert ada.left() == []
    # Now the name is free.
    bob("up", "--nodes", "1")
    assert "0 left" in bob("down", "-y").out


def test_one_whose_up_failed_does_not_remove_what_another_has_built_since(ada: Hvdctl, bob: Hvdctl) -> None:
    # A name that Terraform's provider can't create: a volume of no cluster is in the way.
    client = engine.client()
    blocker = client.volumes.create(local.name_of(bob.name, "share"))
    assert "remove or rename it" in bob("up", "--nodes", "1", code=1).err
    assert (bob.folder / "spec.json").exists()
    blocker.remove(force=True)
    with bob.owned():
        for network in client.networks.list(names=[local.name_of(bob.name, "net")]):
            network.remove()
    ada("up", "--nodes", "2")
    ids, left = ada.ids(), ada.left()
    assert len(left) == 4
    for verb in ("up", "plan"):
        refused = bob(verb, "--nodes", "1", code=2)
        assert whose(ada) in refused.err
    assert "0 left" in bob("down", "-y").out
    assert not (bob.folder / "spec.json").exists()
    assert ada.left() == left
    assert ada.ids() == ids
    assert ada("status", "--json").data["state"] == "up"
    assert "sum 3 of 2" in ada("run", "--", "python", "meet.py").out
    assert "0 left" in ada("down", "-y").out


def test_what_a_home_made_that_is_gone_is_removed_by_its_id(ada: Hvdctl, bob: Hvdctl) -> None:
    ada("up", "--nodes", "1")
    with ada.owned():
        mark = owner.this().id
    assert f"--force --owner {mark}" in bob("down", "-y", "--force", code=2).err
    assert "0 left" in bob("down", "-y", "--force", "--owner", mark).out
    assert ada.left() == []


def listed(home: Hvdctl) -> str:
    """What `list` says beside its table; it takes no name."""
    done = subprocess.run(
        [sys.executable, "-m", "hvdctl", "list"], env=home.env, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stderr
