"""A Terraform of hvdctl's own: a pinned release, downloaded into the cache if neither terraform nor tofu is on PATH.

Set-up calls it before any package is installed, so it needs the standard library alone.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import platform
import shutil
import ssl
import tomllib
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hvdctl import paths, scratch
from hvdctl.errors import HvdctlError, PhaseError, ToolMissing
from hvdctl.progress import Step

RELEASES = "https://releases.hashicorp.com/terraform"
# A mirror of the releases, laid out as the original.
MIRROR = "HVDCTL_TERRAFORM_MIRROR"
_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}
_SILENCE = 30  # seconds without a byte
_CHUNK = 2**20
# What a download may end with; ValueError means that the mirror is no URL.
_BROKEN = (
    urllib.error.URLError,
    http.client.HTTPException,
    TimeoutError,
    ConnectionError,
    ssl.SSLError,
    ValueError,
)
_BY_HAND = (
    "install Terraform 1.5 or newer from https://developer.hashicorp.com/terraform/install, "
    "or OpenTofu from https://opentofu.org/docs/intro/install"
)


@dataclass(frozen=True)
class Release:
    """One file of a release, and the checksum that it must have."""

    version: str
    platform: str
    sha256: str

    @property
    def url(self) -> str:
        mirror = (os.environ.get(MIRROR) or RELEASES).rstrip("/")
        return f"{mirror}/{self.version}/terraform_{self.version}_{self.platform}.zip"

    @property
    def binary(self) -> Path:
        """Where the program is, once it was downloaded."""
        return paths.cache() / "terraform" / f"{self.version}-{self.sha256[:12]}" / "terraform"


def pinned() -> Release:
    """The release for this machine."""
    known = tomllib.loads(paths.asset("infra", "terraform.toml").read_text())
    here = f"{platform.system().lower()}_{_PLATFORMS.get(platform.machine(), platform.machine())}"
    if here not in known["sha256"]:
        raise ToolMissing(f"no Terraform release is pinned for {here}", hint=_BY_HAND)
    return Release(known["version"], here, known["sha256"][here])


def find() -> str | None:
    """The program to use: terraform or tofu on PATH, else the downloaded one; None if there is none."""
    if on_path := shutil.which("terraform") or shutil.which("tofu"):
        return on_path
    try:
        own = pinned().binary
    except ToolMissing:
        return None
    return str(own) if own.exists() else None


def install(step: Step) -> str:
    """The program to use, downloaded if there is none."""
    if found := find():
        return found
    release = pinned()
    folder = paths.private(release.binary.parent)
    try:
        with scratch.folder(folder, ".download-") as work:
            archive, program = work / "terraform.zip", work / "terraform"
            _download(release, archive, step)
            _unpack(release, archive, program)
            program.replace(release.binary)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PhaseError(
                f"the disk is full: no room for Terraform in {folder}", hint="free some space, or set HVDCTL_CACHE"
            ) from error
        raise
    step.update(f"Terraform {release.version}, checksum verified")
    return str(release.binary)


def _download(release: Release, target: Path, step: Step) -> None:
    """Write the file, and raise unless all of it came and its checksum is the pinned one."""
    digest, got = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(release.url, timeout=_SILENCE) as answer, target.open("wb") as file:  # noqa: S310
            total = int(answer.headers.get("Content-Length") or 0)
            while chunk := _read(answer):
                file.write(chunk)
                digest.update(chunk)
                got += len(chunk)
                step.update(f"{got / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{got / 1e6:.0f} MB")
    except _BROKEN as error:
        why = getattr(error, "reason", None) or error
        raise _failed(release, f"can't be downloaded from {release.url}: {why}") from error
    if total and got < total:
        raise _failed(release, f"came only in part: {got} of {total} bytes from {release.url}")
    if digest.hexdigest() != release.sha256:
        raise _failed(
            release, f"from {release.url} has the checksum {digest.hexdigest()}, and {release.sha256} is expected"
        )


def _read(answer: IO[bytes]) -> bytes:
    try:
        return answer.read(_CHUNK)
    except http.client.IncompleteRead as error:
        return error.partial


def _unpack(release: Release, archive: Path, target: Path) -> None:
    """Take out the one program, whatever else the archive holds."""
    try:
        with zipfile.ZipFile(archive) as held, held.open("terraform") as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            os.fchmod(file.fileno(), 0o755)
            file.flush()
            # A power failure after the rename must leave no empty program: `find` asks only if there is one.
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise _failed(release, f"from {release.url} holds no program `terraform`: {error}") from error


def _failed(release: Release, what: str) -> HvdctlError:
    return PhaseError(
        f"Terraform {release.version} {what}",
        hint=f"check the network and the proxy, set {MIRROR} to a mirror of {RELEASES}, or {_BY_HAND}",
    )
