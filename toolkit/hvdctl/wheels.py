"""The wheelhouse: every Python package of an image, downloaded on the host with the host's own pip settings.

Containers need no way to a package index then, and a proxy's certificate stays the host's business. The settings may
name any index: a file counts only if its hash is in images/SHA256SUMS.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdctl import hashes, paths, process, scratch
from hvdctl.errors import PhaseError, ToolMissing, UsageError

FRAMEWORKS = ("pytorch", "tensorflow")


@dataclass(frozen=True)
class Pins:
    """The packages of one image, and what only its build needs: installers, and Horovod's source by its version."""

    python: str
    packages: tuple[str, ...]
    build: tuple[str, ...] = ()
    horovod: str = ""
    index: str = ""

    @property
    def source(self) -> str:
        """The requirement for Horovod's source; empty if it is not wanted."""
        return self.horovod and f"horovod=={self.horovod}"

    @property
    def digest(self) -> str:
        wanted = sorted([*self.build, *self.packages, *filter(None, [self.source])])
        known = hashes.known()
        lists = [self.python, {pin: known.get(pin, ()) for pin in wanted}, platform.machine()]
        return hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:12]


def versions() -> dict[str, Any]:
    """The contents of images/versions.toml."""
    return tomllib.loads(paths.asset("images", "versions.toml").read_text())


def pins(framework: str, cuda: str | None = None) -> Pins:
    """The closed list of packages for a framework: its CPU build, or its CUDA build where asked."""
    if framework not in FRAMEWORKS:
        raise UsageError(f"no image for the framework {framework!r}", hint=f"choose from: {', '.join(FRAMEWORKS)}")
    known = versions()
    packages = known["common"] | known[framework]
    index = known["index"].get(framework, "")
    if cuda is not None:
        variant = cuda_variant(framework, cuda)
        packages = {name: pin for name, pin in packages.items() if name not in variant["without"]}
        packages |= variant["packages"]
        index = variant["index"]
    return Pins(python=known["python"]["version"], packages=_lines(packages), index=index)


def toolchain() -> Pins:
    """What compiles Horovod beside Debian's own packages, and Horovod's source."""
    known = versions()
    return Pins(
        python=known["python"]["version"], packages=_lines(known["toolchain"]), horovod=known["horovod"]["version"]
    )


def lab() -> Pins:
    """The closed list of packages of JupyterLab and of what kernels import beside the framework."""
    known = versions()
    return Pins(python=known["python"]["version"], packages=_lines(known["jupyter"]), build=_lines(known["installer"]))


def cuda_version(framework: str) -> str:
    """The one CUDA version that the pinned release of a framework is built for."""
    return str(versions()["cuda"][framework]["version"])


def cuda_variant(framework: str, cuda: str) -> dict[str, Any]:
    """The table in versions.toml for a framework's CUDA build; a release is built for one CUDA only."""
    variant: dict[str, Any] = versions()["cuda"][framework]
    if cuda != variant["version"]:
        raise UsageError(
            f"{framework} in versions.toml is built for CUDA {variant['version']}, not {cuda}",
            hint=f"ask for CUDA {variant['version']}, or change images/versions.toml",
        )
    return variant


def house(wanted: Pins) -> Path:
    """The folder for all files of the pins; it exists only when it is complete."""
    return paths.cache() / "wheels" / wanted.digest


def wheelhouse(wanted: Pins, on_line: Callable[[str], None] = lambda line: None) -> Path:
    """The folder with all files of the pins; downloaded only if it does not exist yet."""
    home = house(wanted)
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder(home.parent, ".download-") as work:
        folder = work / "files"
        _download(wanted, folder, on_line)
        if not home.is_dir():
            folder.rename(home)
    return home


def download_arguments(wanted: Pins, machine: str = "") -> list[str]:
    """pip's arguments that choose wheels for Debian's Python, whatever Python hvdctl itself runs on."""
    short = wanted.python.replace(".", "")
    machine = machine or platform.machine()
    chosen = ["--no-deps", "--only-binary", ":all:", "--implementation", "cp", "--python-version", wanted.python]
    for abi in (f"cp{short}", "abi3", "none"):
        chosen += ["--abi", abi]
    # Debian 12 has glibc 2.36; pip expands none of these names itself.
    for name in [f"manylinux_2_{minor}" for minor in range(36, 4, -1)] + [
        "manylinux2014",
        "manylinux2010",
        "manylinux1",
    ]:
        chosen += ["--platform", f"{name}_{machine}"]
    return chosen


def _download(wanted: Pins, folder: Path, on_line: Callable[[str], None]) -> None:
    tail = _fetch([*wanted.build, *wanted.packages], download_arguments(wanted), folder, on_line, wanted.index)
    if not tail and wanted.source:
        tail = source(wanted.source, folder, on_line)
    if tail:
        raise _failed(tail)


def source(pin: str, folder: Path, on_line: Callable[[str], None], *, checked: bool = True) -> list[str]:
    """Download the source of a package and run nothing of it; the last lines of pip if that failed."""
    name = pin.split("==")[0]
    with tempfile.TemporaryDirectory() as work:
        backend = Path(work, "setuptools")
        backend.mkdir()
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(paths.asset("images", "metadata.py").read_text())
        chosen = ["--no-deps", "--no-binary", name, "--no-build-isolation", "--use-pep517"]
        return _fetch([pin], chosen, folder, on_line, extra={"PYTHONPATH": work}, checked=checked)


def _fetch(
    pins: list[str],
    chosen: list[str],
    folder: Path,
    on_line: Callable[[str], None],
    index: str = "",
    *,
    extra: dict[str, str] | None = None,
    checked: bool = True,
) -> list[str]:
    """Download files, with `checked` only those whose hashes are known; the last lines of pip if that failed."""
    with tempfile.NamedTemporaryFile("w", prefix="hvdctl-", suffix=".txt") as wanted:
        wanted.write("\n".join(hashes.requirements(pins) if checked else pins) + "\n")
        wanted.flush()
        pip = [*_pip(), "download", "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder)]
        attempt = [*pip, *chosen, *(["--require-hashes"] if checked else []), "--requirement", wanted.name]
        tail = _run(attempt, on_line, extra)
        if tail and index:
            tail = _run([*attempt, "--extra-index-url", index], on_line, extra)
    return tail


def _run(argv: list[str], on_line: Callable[[str], None], extra: dict[str, str] | None = None) -> list[str]:
    """The last lines of a pip run that failed; an empty list when it worked."""
    heard: list[str] = []

    def hear(line: str) -> None:
        if line.strip() and not line.startswith("WARNING"):
            heard.append(line)
            on_line(line.strip())

    code = process.lines(argv, hear, env={**os.environ, **(extra or {})})
    return heard[-20:] or [f"pip ended with exit code {code}"] if code else []


def _failed(tail: list[str]) -> PhaseError:
    if any("No space left on device" in line for line in tail):
        return PhaseError(
            f"the disk is full: no room for the wheelhouse in {paths.cache()}",
            hint="free some space, or set HVDCTL_CACHE",
        )
    if other := hashes.mismatch(tail):
        raise PhaseError(
            f"{other} from the package index is not the file that images/SHA256SUMS names",
            hint="look where pip's settings on this host get it from: `pip config list`",
        )
    errors = [line.removeprefix("ERROR: ") for line in tail if line.startswith("ERROR")]
    return PhaseError(
        "pip can't download the packages of the image: " + (errors or tail)[-1],
        hint="check that `pip download` works on this host (index, proxy, certificates)",
    )


def _pip() -> list[str]:
    """pip of hvdctl's own Python; where that has none (pipx, uv), the one of the system's."""
    for python in (sys.executable, shutil.which("python3")):
        if python and process.capture([python, "-m", "pip", "--version"]).returncode == 0:
            return [python, "-m", "pip"]
    raise ToolMissing(
        "no pip to download the packages of the image with", hint="install it: apt-get install python3-pip"
    )


def _lines(table: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}=={version}" for name, version in table.items())
