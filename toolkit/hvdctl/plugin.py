"""terraform-provider-hvd for Terraform: installed in a mirror of hvdctl's own, and served while hvdctl works.

Terraform starts a plugin anew for each of its walks and leaves it behind when it is killed. So hvdctl starts one
plugin process that all walks attach to, and that ends with hvdctl.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from hvdctl import paths, process
from hvdctl.cluster import write
from hvdctl.errors import PhaseError
from hvdctl.gpulab import login
from hvdctl.tfprovider import SOURCE, VERSION

_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}
_SYSTEM_FOLDERS = ("/opt", "/usr/local/share", "/usr/share", "/usr/lib")
_MIRROR_PATH = re.compile(r'filesystem_mirror\s*\{[^}]*?\bpath\s*=\s*"([^"]+)"')
_ANNOUNCED = "TF_REATTACH_PROVIDERS="
_START_S = 60.0
_END_S = 60.0
# The interpreter is told by the environment, so that the file, and Terraform's checksum of it, never change.
_SCRIPT = '#!/bin/sh\nexec "${HVDCTL_PYTHON:-python3}" -m hvdctl.tfprovider "$@"\n'


def mirror() -> Path:
    """A filesystem mirror that holds the provider."""
    root = paths.cache() / "terraform" / "mirror"
    script = root / SOURCE / VERSION / _platform() / f"terraform-provider-hvd_v{VERSION}"
    if not script.exists() or script.read_text() != _SCRIPT:
        write(script, _SCRIPT, mode=0o755)
    return root


def cli_config() -> str:
    """Terraform's CLI configuration: our provider from our mirror, those that lie on this machine from there, all
    others as usual.
    """
    held = [(mirror(), ["hvdctl.local/*/*"]), *found_mirrors()]
    taken = dict.fromkeys(provider for _, providers in held for provider in providers)
    blocks = [
        f'  filesystem_mirror {{\n    path    = "{folder}"\n    include = {json.dumps(providers)}\n  }}\n'
        for folder, providers in held
    ]
    direct = f"  direct {{\n    exclude = {json.dumps(list(taken))}\n  }}\n"
    return f"disable_checkpoint = true\nprovider_installation {{\n{''.join(blocks)}{direct}}}\n"


def found_mirrors() -> list[tuple[Path, list[str]]]:
    """The folders of this machine that hold Terraform providers for it, each with the providers' sources."""
    folders = dict.fromkeys(folder.resolve() for folder in _places() if folder.is_dir())
    found = [(folder, _providers(folder)) for folder in folders]
    return [(folder, providers) for folder, providers in found if providers]


@contextlib.contextmanager
def served(log: Path) -> Iterator[dict[str, str]]:
    """The environment with which Terraform attaches to a plugin that lives as long as the block."""
    with log.open("a") as errors:
        plugin = process.start(
            [sys.executable, "-u", "-m", "hvdctl.tfprovider", "--dev"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **login.for_plugin()},
        )
        announced = cast(IO[str], plugin.stdout)
        # Its silence ends with it.
        late = threading.Timer(_START_S, plugin.kill)
        late.daemon = True
        late.start()
        try:
            for line in announced:
                if _ANNOUNCED in line:
                    break
            else:
                why = "ended" if late.is_alive() else f"said nothing within {_START_S:.0f} s"
                raise PhaseError(f"the Terraform provider of hvdctl did not start: it {why}", log=log)
            late.cancel()
            # Drained, so that a chatty plugin never blocks on a full pipe.
            threading.Thread(target=_drain, args=(announced,), daemon=True).start()
            yield {"TF_REATTACH_PROVIDERS": line.split(_ANNOUNCED, 1)[1].strip().strip("'")}
        finally:
            late.cancel()
            plugin.terminate()
            _ended(plugin)


def _ended(plugin: subprocess.Popen[str]) -> None:
    try:
        plugin.wait(_END_S)
    except subprocess.TimeoutExpired:
        plugin.kill()
        plugin.wait()


def _drain(stream: IO[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed under us when the plugin is ended
        stream.read()


def _places() -> Iterator[Path]:
    """Where mirrors usually are: those that Terraform knows by itself, and what the user or the site has named."""
    if chosen := os.environ.get("HVDCTL_TF_MIRROR"):
        yield Path(chosen).expanduser()
    yield from _configured()
    yield Path("~/.terraform.d/plugins").expanduser()
    data = [os.environ.get("XDG_DATA_HOME") or "~/.local/share"]
    data += (os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    yield from (Path(folder).expanduser() / "terraform" / "plugins" for folder in data if folder)
    yield from (Path(folder) / "tf-plugins" for folder in _SYSTEM_FOLDERS)


def _configured() -> Iterator[Path]:
    """The mirrors of the user's own CLI configuration, which may name a file that does not exist."""
    file = Path(os.environ.get("TF_CLI_CONFIG_FILE") or "~/.terraformrc").expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    said = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "//")))
    yield from (Path(path).expanduser() for path in _MIRROR_PATH.findall(said))


def _providers(folder: Path) -> list[str]:
    """The sources, such as registry.terraform.io/hashicorp/aws, that a mirror has a package of for this platform."""
    packages = [*folder.glob(f"*.*/*/*/*/{_platform()}"), *folder.glob(f"*.*/*/*/*_{_platform()}.zip")]
    sources = {"/".join(package.relative_to(folder).parts[:3]) for package in packages}
    return sorted(source for source in sources if source != SOURCE)


def _platform() -> str:
    return f"linux_{_PLATFORMS.get(platform.machine(), platform.machine())}"
