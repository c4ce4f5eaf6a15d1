"""Where things lie: the assets that travel with the package, the clusters' folders, the cache."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from hvdctl.errors import HvdctlError

_PACKAGE = Path(__file__).parent


def asset(*parts: str) -> Path:
    """A file or folder of infra/, playbooks/, images/ or examples/notebooks/, in the wheel or in the source tree."""
    bundled = _PACKAGE / "assets"
    root = bundled if bundled.is_dir() else _PACKAGE.parents[1]
    return root.joinpath(*parts)


def agent() -> Path:
    """The code that runs on the nodes."""
    return _PACKAGE / "agent"


def library() -> Path:
    """The folder of the packages that notebooks and ranks import on the nodes: this one, and hvd_cluster."""
    return _PACKAGE.parent


def home() -> Path:
    """The folder with one folder per cluster: $HVDCTL_HOME, else the user's data directory."""
    if chosen := os.environ.get("HVDCTL_HOME"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_data_path("hvdctl")


def cache() -> Path:
    """What can be made again: wheels, the provider mirror. $HVDCTL_CACHE, else the user's cache directory."""
    if chosen := os.environ.get("HVDCTL_CACHE"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("hvdctl")


def runtime() -> Path:
    """Sockets of what outlives hvdctl, on a short path. Not the user's runtime directory, which goes with a logout."""
    folder = private(Path(tempfile.gettempdir()) / f"hvdctl-{os.getuid()}")
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise HvdctlError(f"{folder} is not a folder of yours alone", hint="remove it, or set TMPDIR to one that is")
    return folder


def private(folder: Path) -> Path:
    """The folder, made where it is not there, with each parent that is missing for its owner only."""
    if not folder.is_dir():
        private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder
