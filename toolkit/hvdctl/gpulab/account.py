"""Who asks GPULab, and for which folder: options, else the variables that imec's own client takes."""

from __future__ import annotations

import os
from pathlib import Path

from hvdctl.errors import UsageError
from hvdctl.gpulab import login
from hvdctl.gpulab.options import Options
from hvdctl.gpulab.service import SERVER, Account

_ANTWERP = range(100, 200)
VARIABLES = {
    "server": ("GPULAB_API_BASE",),
    "certificate": ("GPULAB_CERT",),
    "server_certificate": ("GPULAB_SERVER_CERT",),
    "project": ("GPULAB_PROJECT", "GPULAB_SUBMIT_PROJECT"),
}


def of(options: Options) -> Account:
    certificate = value(options, "certificate")
    if certificate is None:
        raise UsageError(
            "options.certificate: GPULab needs your PEM file with key and certificate",
            hint="--option certificate=FILE, or GPULAB_CERT; to try without an account: `hvdctl gpulab emulate`",
        )
    file = Path(certificate).expanduser().absolute()
    # A login that moved since is found by the variable.
    if not file.exists() and (moved := os.environ.get("GPULAB_CERT")):
        file = Path(moved).expanduser().absolute()
    return Account(
        server=value(options, "server") or SERVER,
        certificate=file,
        server_certificate=_file(value(options, "server_certificate")),
        passphrase_file=_file(options.passphrase_file),
    )


def value(options: Options, key: str) -> str | None:
    """A setting, else the first of its variables that is set."""
    given = getattr(options, key)
    found = next((value for name in VARIABLES[key] if (value := os.environ.get(name))), None)
    return given if given is not None else found


def storage(options: Options, share: str, cluster: str) -> str:
    """The folder of the project's storage that is /shared; by itself, one for each cluster of each user."""
    if share != "auto":
        return share
    usual = "/project_antwerp" if options.cluster in _ANTWERP else "/project_ghent"
    user = login.read(of(options).certificate).user
    return f"{(options.storage or usual).rstrip('/')}/hvdctl/{user}/{cluster}"


def _file(name: str | None) -> Path | None:
    return Path(name).expanduser().absolute() if name else None
