from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdctl import process, wheels
from hvdctl.errors import PhaseError, UsageError


class FakePip:
    """Stands in for process.lines: saves one file per requirement, or fails the way it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.failures: list[str] = []

    def __call__(self, argv: list[Any], on_line: Callable[[str], None], **options: Any) -> int:
        words = [str(word) for word in argv]
        self.calls.append(words)
        folder = Path(words[words.index("--dest") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{len(self.calls)}.whl").touch()
        if self.failures:
            on_line(self.failures.pop(0))
            return 1
        on_line("Saved something")
        return 0


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePip:
    fake = FakePip()
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path))
    monkeypatch.setattr(process, "lines", fake)
    monkeypatch.setattr(wheels, "_pip", lambda: ["pip"])
    return fake


@pytest.mark.parametrize("framework", wheels.FRAMEWORKS)
@pytest.mark.parametrize("cuda", [False, True])
def test_every_package_is_pinned_once(framework: str, cuda: bool) -> None:
    version = wheels.versions()["cuda"][framework]["version"] if cuda else None
    packages = wheels.pins(framework, version).packages
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.+]*", package) for package in packages)
    names = [package.split("==")[0] for package in packages]
    assert len(names) == len(set(names))
    assert {"cloudpickle", "psutil", "pyyaml", "packaging", "numpy"} <= set(names)


def test_horovod_gets_a_setuptools_it_knows() -> None:
    for framework in wheels.FRAMEWORKS:
        (found,) = (line for line in wheels.pins(framework).packages if line.startswith("setuptools=="))
        assert int(found.split("==")[1].split(".")[0]) < 80


def test_cuda_replaces_the_cpu_build() -> None:
    packages = wheels.pins("tensorflow", "12.2").packages
    assert any(line.startswith("tensorflow==") for line in packages)
    assert not any(line.startswith("tensorflow-cpu==") for line in packages)


def test_unknown_framework_names_the_choices() -> None:
    with pytest.raises(UsageError, match="mxnet") as caught:
        wheels.pins("mxnet")
    assert "pytorch, tensorflow" in caught.value.hint


def test_a_cuda_that_the_release_is_not_built_for() -> None:
    with pytest.raises(UsageError, match=r"not 9\.0"):
        wheels.pins("pytorch", "9.0")


def test_wheels_are_chosen_for_the_image_and_not_for_the_host() -> None:
    chosen = wheels.download_arguments(wheels.pins("pytorch"))
    assert chosen[chosen.index("--python-version") + 1] == "3.11"
    assert "cp311" in chosen
    assert any(word.startswith("manylinux_2_28_") for word in chosen)
    assert not any(word.startswith("manylinux_2_37_") for word in chosen)


def test_a_complete_wheelhouse_is_used_again(pip: FakePip) -> None:
    pins = wheels.toolchain()
    first = wheels.wheelhouse(pins)
    calls = len(pip.calls)
    assert sorted(path.name for path in first.iterdir()) == ["part-1.whl", "part-2.whl"]
    assert wheels.wheelhouse(pins) == first
    assert len(pip.calls) == calls


def test_frameworks_have_wheelhouses_of_their_own(pip: FakePip) -> None:
    assert wheels.wheelhouse(wheels.pins("pytorch")) != wheels.wheelhouse(wheels.pins("tensorflow"))


def test_a_failed_download_leaves_nothing_and_can_be_repeated(pip: FakePip, tmp_path: Path) -> None:
    pins = wheels.pins("tensorflow")
    pip.failures = ["ERROR: No matching distribution found for keras==2.15.0"]
    with pytest.raises(PhaseError, match=r"No matching distribution found for keras==2\.15\.0"):
        wheels.wheelhouse(pins)
    assert list((tmp_path / "wheels").iterdir()) == []
    assert wheels.wheelhouse(pins).is_dir()


def test_an_interrupted_download_leaves_nothing(pip: FakePip, tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheels.wheelhouse(wheels.pins("pytorch"), interrupt)
    assert list((tmp_path / "wheels").iterdir()) == []


def test_the_frameworks_own_index_is_only_asked_when_the_hosts_settings_fail(pip: FakePip) -> None:
    pins = wheels.pins("pytorch")
    pip.failures = ["ERROR: No matching distribution found for torch"]
    wheels.wheelhouse(pins)
    assert "--extra-index-url" not in pip.calls[0]
    assert pip.calls[1][-1] == pins.index


def test_a_full_disk_is_said_plainly(pip: FakePip) -> None:
    pip.failures = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
    with pytest.raises(PhaseError, match="disk is full"):
        wheels.wheelhouse(wheels.pins("tensorflow"))
