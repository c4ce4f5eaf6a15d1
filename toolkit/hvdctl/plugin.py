"""terraform-provider-hvd for Terraform: installed in a mirror of hvdctl's own, and served while hvdctl works.

Terraform starts a plugin anew for each of its walks and leaves it behind when it is killed. So hvdctl starts one
plugin process that all walks attach to, and that ends with hvdctl.
"""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from hvdctl import paths, process
from hvdctl.cluster import write
from hvdctl.errors import PhaseError
from hvdctl.tfprovider import SOURCE, VERSION

_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}
_ANNOUNCED = "TF_REATTACH_PROVIDERS="
# The interpreter is told by the environment, so that the file, and Terraform's checksum of it, never change.
_SCRIPT = '#!/bin/sh\nexec "${HVDCTL_PYTHON:-python3}" -m hvdctl.tfprovider "$@"\n'


def mirror() -> Path:
    """A filesystem mirror that holds the provider."""
    root = paths.cache() / "terraform" / "mirror"
    machine = _PLATFORMS.get(platform.machine(), platform.machine())
    script = root / SOURCE / VERSION / f"linux_{machine}" / f"terraform-provider-hvd_v{VERSION}"
    if not script.exists() or script.read_text() != _SCRIPT:
        write(script, _SCRIPT, mode=0o755)
    return root


def cli_config() -> str:
    """Terraform's CLI configuration: our provider from our mirror, all others as usual."""
    return (
        "disable_checkpoint = true\n"
        "provider_installation {\n"
        f'  filesystem_mirror {{\n    path    = "{mirror()}"\n    include = ["hvdctl.local/*/*"]\n  }}\n'
        '  direct {\n    exclude = ["hvdctl.local/*/*"]\n  }\n'
        "}\n"
    )


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
        )
        announced = cast(IO[str], plugin.stdout)
        try:
            for line in announced:
                if _ANNOUNCED in line:
                    break
            else:
                raise PhaseError("the Terraform provider of hvdctl did not start", log=log)
            # Drained, so that a chatty plugin never blocks on a full pipe.
            threading.Thread(target=_drain, args=(announced,), daemon=True).start()
            yield {"TF_REATTACH_PROVIDERS": line.split(_ANNOUNCED, 1)[1].strip().strip("'")}
        finally:
            plugin.terminate()
            plugin.wait()


def _drain(stream: IO[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed under us when the plugin is ended
        stream.read()
