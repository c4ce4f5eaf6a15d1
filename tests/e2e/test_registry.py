"""`hvdctl image push` to a real registry on the loopback, and a job that pulls from it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hvdctl import engine, imageplan, qemu

from .conftest import Hvdctl, wait_for
from .emulators import emulator

pytestmark = pytest.mark.docker

REGISTRY = Path(sys.prefix) / "registry" / "usr" / "bin" / "docker-registry"


@contextmanager
def registry(folder: Path, **more: object) -> Iterator[str]:
    """The address of a registry that ends with the block."""
    assert REGISTRY.exists(), f"there is no registry at {REGISTRY}; `make e2e` unpacks it there"
    port = qemu.free_port()
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"127.0.0.1:{port}"},
        **more,
    }
    folder.mkdir()
    (folder / "config.yml").write_text(json.dumps(config))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([REGISTRY, "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        wait_for(lambda: "listening on" in (folder / "log").read_text(), 30)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def test_an_image_is_pushed_and_pulled_by_a_job(tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as place, emulator(tmp_path / "emulator") as gpulab:
        hvdctl = Hvdctl(tmp_path / "home")
        target = f"{place}/me/horovod:1"
        told = json.loads(_image(hvdctl, "push", target, "--no-jupyter", "--json").stdout)
        assert told == {"image": target}
        with urllib.request.urlopen(f"http://{place}/v2/me/horovod/tags/list") as answer:
            assert json.load(answer) == {"name": "me/horovod", "tags": ["1"]}
        client = engine.client()
        assert client.images.list(target) == [], "nothing but the registry has it under that name"
        try:
            hvdctl("up", "--file", str(gpulab.told["spec"]), "--nodes", "1", "--no-jupyter", "--image", target)
            assert "sum 1 of 1" in hvdctl("run", "--", "python", "allreduce.py").out
            assert "0 left" in hvdctl("down", "-y").out
        finally:
            client.images.remove(target, force=True)


def test_a_registry_that_refuses_or_is_not_there_is_told(tmp_path: Path) -> None:
    hvdctl = Hvdctl(tmp_path / "home")
    with registry(tmp_path / "registry", auth={"htpasswd": {"realm": "x", "path": str(tmp_path / "users")}}) as place:
        refused = _image(hvdctl, "push", f"{place}/me/horovod:1")
        assert refused.returncode == 1
        assert f"{place} does not take {place}/me/horovod" in refused.stderr
        assert f"docker login {place}" in refused.stderr
    gone = _image(hvdctl, "push", f"{place}/me/horovod:1")
    assert (gone.returncode, "connection refused" in gone.stderr) == (1, True)
    client = engine.client()
    assert client.images.list(f"{place}/me/horovod:1") == []
    # A name that the user has given to an image of his own is only lent.
    own = client.images.get(imageplan.plan_of("pytorch").names["base"])
    own.tag(f"{place}/me/horovod", "1")
    try:
        assert _image(hvdctl, "push", f"{place}/me/horovod:1").returncode == 1
        assert client.images.get(f"{place}/me/horovod:1").id == own.id
    finally:
        client.images.remove(f"{place}/me/horovod:1")


@pytest.mark.parametrize("target", ["horovod", "Me/Horovod:1", "registry/me@sha256:00", "r/x:", "r/x y"])
def test_a_target_that_is_none_is_refused(tmp_path: Path, target: str) -> None:
    refused = _image(Hvdctl(tmp_path / "home"), "push", target)
    assert refused.returncode == 2
    assert "is not a place in a registry" in refused.stderr


def _image(hvdctl: Hvdctl, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hvdctl", "image", *words],
        env=hvdctl.env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
