"""The login at GPULab: one PEM file with a key and a certificate, which names the user.

The pass phrase of the key comes from HVDCTL_GPULAB_PASSPHRASE, from a file, or from whoever can be asked. It is kept in
this process's memory, given to the Terraform plugin alone, and written nowhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hvdctl.errors import UsageError

if TYPE_CHECKING:
    import ssl

    from cryptography.x509 import Certificate

VARIABLE = "HVDCTL_GPULAB_PASSPHRASE"
_PORTAL = "download it anew from your account's portal"

ask: Callable[[str], str] | None = None
"""Asks the user for a secret; set by the command line where there is somebody to ask."""

_secret: str | None = None


@dataclass(frozen=True)
class Login:
    """Who the user is, as the certificate says."""

    file: Path
    urn: str
    until: datetime
    locked: bool
    """Whether the key has a pass phrase."""

    @property
    def authority(self) -> str:
        return self.urn.split("+")[1]

    @property
    def user(self) -> str:
        """The user's name, fit for a folder."""
        return re.sub(r"[^\w.-]", "-", self.urn.rsplit("+", 1)[-1])

    def project(self, name: str) -> str:
        """The URN of a project, by its name, or as it is written."""
        return name if name.startswith("urn:") else f"urn:publicid:IDN+{self.authority}+project+{name}"


def read(file: Path) -> Login:
    """The login of a PEM file, or what is wrong with it."""
    from cryptography import x509

    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the GPULab login {file} can't be read: {error.strerror}",
            hint="name your PEM file: --option certificate=FILE, or GPULAB_CERT",
        ) from None
    if b"PRIVATE KEY" not in text:
        raise UsageError(f"{file} holds no private key", hint=f"GPULab's login has key and certificate: {_PORTAL}")
    if file.stat().st_mode & 0o077:
        raise UsageError(f"{file} can be read by others", hint=f"chmod 600 {file}")
    try:
        begin = text.index(b"-----BEGIN CERTIFICATE-----")
        certificate = x509.load_pem_x509_certificate(text[begin:])
        urn = _urn(certificate)
    except (ValueError, x509.ExtensionNotFound):
        raise UsageError(f"{file} holds no certificate that names a user", hint=_PORTAL) from None
    until = certificate.not_valid_after_utc
    if until < datetime.now(UTC):
        raise UsageError(f"the certificate in {file} expired on {until:%Y-%m-%d %H:%M} UTC", hint=_PORTAL)
    if certificate.not_valid_before_utc > datetime.now(UTC):
        raise UsageError(
            f"the certificate in {file} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on",
            hint="is this machine's clock right?",
        )
    return Login(file, urn, until, locked=b"ENCRYPTED" in text)


def context(login: Login, authority: Path | None, passphrase_file: Path | None) -> ssl.SSLContext:
    """TLS with the user's certificate; servers are trusted as usual, or by the certificate of an authority alone."""
    import ssl

    try:
        made = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificate {authority} of the server can't be used: {error}") from None
    secret = _passphrase(login, passphrase_file) if login.locked else None
    try:
        made.load_cert_chain(login.file, password=secret)
    except (ssl.SSLError, ValueError):
        _keep(None)
        wrong = "the pass phrase is wrong" if login.locked else "its key and certificate don't belong together"
        raise UsageError(f"{login.file} can't be used: {wrong}", hint=_ways() if login.locked else _PORTAL) from None
    return made


def at_hand(login: Login, file: Path | None) -> bool:
    """Whether the login can be used without asking anybody."""
    hide()
    return not login.locked or _secret is not None or file is not None


def hide() -> None:
    """Take the pass phrase out of the environment, which other programs write down: Ansible's runner does."""
    if found := os.environ.pop(VARIABLE, None):
        _keep(found)


def for_plugin() -> dict[str, str]:
    """What the Terraform plugin is to have in its environment beside ours."""
    hide()
    return {VARIABLE: _secret} if _secret is not None else {}


def _keep(secret: str | None) -> None:
    global _secret
    _secret = secret


def _passphrase(login: Login, file: Path | None) -> str:
    hide()
    if _secret is not None:
        return _secret
    if file is not None:
        try:
            if file.stat().st_mode & 0o077:
                raise UsageError(f"{file} can be read by others", hint=f"chmod 600 {file}")
            secret = file.read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise UsageError(f"the pass phrase can't be read from {file}: {error.strerror}") from None
    elif ask is not None:
        secret = ask(f"Pass phrase of {login.file}")
    else:
        raise UsageError(f"the key in {login.file} has a pass phrase, and nobody can be asked here", hint=_ways())
    _keep(secret)
    return secret


def _ways() -> str:
    return f"set {VARIABLE}, or --option passphrase_file=FILE, or answer the prompt in a terminal"


def _urn(certificate: Certificate) -> str:
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = names.get_values_for_type(x509.UniformResourceIdentifier)
    if not found or "+user+" not in found[0]:
        raise ValueError(found)
    return str(found[0])
