"""Providers from elsewhere are taken only with a checksum that the project committed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hvdctl import paths, plugin
from hvdctl.errors import PhaseError
from hvdctl.terraform import Terraform

AWS = "registry.terraform.io/hashicorp/aws"


@pytest.fixture
def forged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only mirror of this machine, with another program in the place of the AWS provider."""
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mirror" / AWS / "5.100.0" / plugin._platform()
    folder.mkdir(parents=True)
    program = folder / "terraform-provider-aws_v5.100.0_x5"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    monkeypatch.setattr(plugin, "_places", lambda: iter([tmp_path / "mirror"]))
    return tmp_path


def test_a_provider_with_another_checksum_is_refused(forged: Path) -> None:
    terraform = Terraform(forged / "cluster", "aws", forged / "log")
    with pytest.raises(PhaseError) as caught:
        terraform.plan({})
    assert "terraform init failed" in caught.value.message
    assert re.search(r"match\s+any\s+of\s+the\s+checksums", (forged / "log").read_text())
    assert not (forged / "ran").exists()


def test_the_lock_pins_one_version_of_each_provider_that_is_downloaded() -> None:
    text = (paths.asset("infra", "aws") / ".terraform.lock.hcl").read_text()
    assert re.findall(r'^provider "(.*)"', text, re.MULTILINE) == [AWS]
    assert re.findall(r'version +(?:= )"(.*)"', text) == ["5.100.0"]
    assert re.search(r'"h1:[A-Za-z0-9+/]{43}="', text)
    assert len(re.findall(r'"zh:[0-9a-f]{64}"', text)) == 15


def test_our_own_provider_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path / "cache"))
    for module in paths.asset("infra").iterdir():
        sources = "".join(file.read_text() for file in module.glob("versions.tf"))
        if "hvdctl.local/" in sources:
            assert not (module / ".terraform.lock.hcl").exists(), json.dumps(module.name)
