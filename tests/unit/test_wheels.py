from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdctl import hashes, paths, process, wheels
from hvdctl.errors import HvdctlError, PhaseError, UsageError


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


def every_house() -> list[wheels.Pins]:
    frameworks = [wheels.pins(one, cuda) for one in wheels.FRAMEWORKS for cuda in (None, wheels.cuda_version(one))]
    return [wheels.toolchain(), wheels.lab(), *frameworks]


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


def test_every_package_has_a_hash_for_debian_s_python() -> None:
    known = hashes.known()
    for pins in every_house():
        for pin in (*pins.build, *pins.packages, *filter(None, [pins.source])):
            assert known[pin], pin
    lines = (paths.asset("images", "SHA256SUMS")).read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  [A-Za-z0-9._+-]+(\.whl|\.tar\.gz)", line) for line in lines)
    assert lines == sorted(lines, key=lambda line: line.split()[1])
    wanted = {pin for house in every_house() for pin in (*house.build, *house.packages, house.source)}
    assert {hashes.pin_of(line.split()[1]) for line in lines} <= wanted, "hashes of what no image has"


def test_another_hash_means_another_wheelhouse(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = wheels.toolchain()
    before = pins.digest
    changed = hashes.known() | {pins.source: ("0" * 64,)}
    monkeypatch.setattr(hashes, "known", lambda: changed)
    assert pins.digest != before


def test_a_package_without_a_hash_is_not_downloaded(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "known", dict)
    with pytest.raises(HvdctlError, match="has no hash for cmake==") as caught:
        wheels.wheelhouse(wheels.toolchain())
    assert "make lock" in caught.value.hint
    assert pip.calls == []


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only place that the real pip gets files from, with one wheel and one source whose setup.py leaves a trace."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HVDCTL_CACHE", str(tmp_path / "cache"))
    about = "Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n"
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny-1.0.dist-info/METADATA", about.format("tiny"))
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    with tarfile.open(folder / "horovod-1.0.tar.gz", "w:gz") as source:
        trace = f"open({str(tmp_path / 'setup.py ran')!r}, 'w')\n"
        for name, text in {"PKG-INFO": about.format("horovod"), "setup.py": trace}.items():
            entry = tarfile.TarInfo(f"horovod-1.0/{name}")
            entry.size = len(text)
            source.addfile(entry, io.BytesIO(text.encode()))
    return folder


def known_of(folder: Path) -> dict[str, tuple[str, ...]]:
    return {hashes.pin_of(file.name): (hashlib.sha256(file.read_bytes()).hexdigest(),) for file in folder.iterdir()}


TINY = wheels.Pins(python="3.11", packages=("tiny==1.0",), horovod="1.0")


def test_no_code_of_a_source_runs_while_it_is_downloaded(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "known", lambda: known_of(index))
    house = wheels.wheelhouse(TINY)
    assert {file.name: file.read_bytes() for file in house.iterdir()} == {
        file.name: file.read_bytes() for file in index.iterdir()
    }
    assert not (tmp_path / "setup.py ran").exists()


@pytest.mark.parametrize("file", ["tiny-1.0-py3-none-any.whl", "horovod-1.0.tar.gz"])
def test_a_file_with_another_hash_is_refused(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    wanted = known_of(index) | {hashes.pin_of(file): ("0" * 64, "1" * 64)}
    monkeypatch.setattr(hashes, "known", lambda: wanted)
    with pytest.raises(PhaseError) as caught:
        wheels.wheelhouse(TINY)
    assert caught.value.message.startswith(f"{hashes.pin_of(file)} from the package index is not the file")
    assert list((tmp_path / "cache" / "wheels").iterdir()) == []
    assert not (tmp_path / "setup.py ran").exists()


def test_one_of_several_builds_is_enough(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {pin: ("0" * 64, *known) for pin, known in known_of(index).items()}
    monkeypatch.setattr(hashes, "known", lambda: wanted)
    assert len(list(wheels.wheelhouse(TINY).iterdir())) == 2


def test_a_full_disk_is_said_plainly(pip: FakePip) -> None:
    pip.failures = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
    with pytest.raises(PhaseError, match="disk is full"):
        wheels.wheelhouse(wheels.pins("tensorflow"))
