"""A node that is given variables only, as a job of GPULab is: its keys, its share, and what root does before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import wait_for
from .test_images import any_image, client, start

if TYPE_CHECKING:
    from docker.models.containers import Container

pytestmark = pytest.mark.docker
__all__ = ["any_image", "client", "start"]

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGMyNDc2ZGVhZGJlZWZkZWFkYmVlZmRlYWRiZWVm"
HVD, GROUP = 1000, 20001
# What a container has by default, and no more.
DEFAULTS: dict[str, Any] = {"user": "root", "cap_drop": [], "security_opt": []}


@pytest.fixture
def node(start: Callable[..., Container], any_image: str, tmp_path: Path) -> Callable[..., Container]:
    """Starts one with this folder as the project's storage."""
    (tmp_path / "storage").mkdir()

    def make(share: str = "/project/hvdctl/demo", **variables: str) -> Container:
        given = {"HVD_AUTHORIZED_KEY": KEY, "HVD_NAME": "node0", "HVD_SHARE": share, "HVD_GROUP": str(GROUP)}
        volumes = {str(tmp_path / "storage"): {"bind": "/project", "mode": "rw"}}
        made = start(any_image, environment=given | variables, volumes=volumes, **DEFAULTS)
        made.start()
        return made

    return make


def said(container: Container) -> str:
    return container.logs().decode()


def announced(container: Container) -> dict[str, str]:
    wait_for(lambda: "hvd-node: " in said(container), 30)
    found: dict[str, str] = json.loads(said(container).split("hvd-node: ", 1)[1].splitlines()[0])
    return found


def refused(container: Container) -> str:
    assert container.wait(timeout=60)["StatusCode"] == 78
    return said(container)


@pytest.mark.parametrize("mode", [0o2770, 0o755])
def test_the_share_is_a_folder_of_the_users_and_nothing_runs_as_root(
    node: Callable[..., Container], tmp_path: Path, mode: int
) -> None:
    """On a storage that is open to the project's group, and on one that only root can write to."""
    storage = tmp_path / "storage"
    (storage / "theirs").mkdir()
    os.chown(storage, 0, GROUP)
    storage.chmod(mode)
    made = node()
    told = announced(made)
    assert told["name"] == "node0"
    assert told["host_key"].startswith("ssh-ed25519 ")
    assert told["host_key"] != told["user_key"]
    assert (storage / "hvdctl" / "demo").stat().st_uid == HVD
    assert (storage / "theirs").stat().st_uid == 0, "what others have stays theirs"
    output = made.exec_run(["sh", "-c", "touch /shared/x; ps -eo user:20,args"], user=f"{HVD}:{GROUP}").output
    assert isinstance(output, bytes)
    processes = [line.split() for line in output.decode().splitlines()]
    assert {words[0] for words in processes if "sshd" in " ".join(words)} == {"hvd"}
    assert (storage / "hvdctl" / "demo" / "x").exists()


def test_a_container_that_is_started_again_is_the_same_node(node: Callable[..., Container]) -> None:
    made = node()
    first = announced(made)
    made.restart(timeout=1)
    wait_for(lambda: said(made).count("hvd-node: {") == 2, 30)
    second = json.loads(said(made).rsplit("hvd-node: ", 1)[1].splitlines()[0])
    assert (second["host_key"], second["user_key"]) == (first["host_key"], first["user_key"])


@pytest.mark.parametrize("link", ["hvdctl", "hvdctl/demo"])
def test_no_link_of_others_is_followed(node: Callable[..., Container], tmp_path: Path, link: str) -> None:
    storage = tmp_path / "storage"
    (storage / "private").mkdir()
    (storage / link).parent.mkdir(exist_ok=True)
    (storage / link).symlink_to("/project/private")
    assert "is, or is behind, a symbolic link" in refused(node())
    assert (storage / "private").stat().st_uid == 0


def test_a_folder_of_others_does_not_change_its_owner(node: Callable[..., Container], tmp_path: Path) -> None:
    folder = tmp_path / "storage" / "hvdctl" / "demo"
    folder.mkdir(parents=True)
    assert "is not writable for hvd" in refused(node())
    assert folder.stat().st_uid == 0


@pytest.mark.parametrize("group", ["0", "00", "1,2", "4294967296", "root", "-1"])
def test_a_group_that_is_none_is_refused(node: Callable[..., Container], group: str) -> None:
    assert f"not '{group}'" in refused(node(HVD_GROUP=group))


def test_a_container_that_may_not_be_root_says_so(start: Callable[..., Container], any_image: str) -> None:
    made = start(any_image, environment={"HVD_AUTHORIZED_KEY": KEY, "HVD_NAME": "node0", "HVD_SHARE": "/project/x"})
    made.start()
    assert "needs a container that starts as root" in refused(made)
