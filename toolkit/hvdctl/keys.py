"""SSH keys of a cluster, made before its nodes: known_hosts is complete before the first connection."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hvdctl import paths


@dataclass(frozen=True)
class KeyPair:
    private: Path

    @property
    def public_file(self) -> Path:
        return self.private.with_name(f"{self.private.name}.pub")

    @property
    def public(self) -> str:
        """The public half as one line without a comment."""
        return self.public_file.read_text().strip()


def ensure(private: Path) -> KeyPair:
    """The Ed25519 key pair in this file and its .pub, made where it is not there yet."""
    pair = KeyPair(private)
    if not (private.exists() and pair.public_file.exists()):
        _write(private)
    return pair


def _write(private: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    paths.private(private.parent)
    key = Ed25519PrivateKey.generate()
    private.unlink(missing_ok=True)
    with os.fdopen(os.open(private, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    # The public half last: its presence says that the pair is whole.
    KeyPair(private).public_file.write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    )
