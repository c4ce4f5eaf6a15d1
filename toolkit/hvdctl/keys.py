"""SSH keys of a cluster, made before its nodes: known_hosts is complete before the first connection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdctl import files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KIND = "ssh-ed25519 "


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

    @property
    def whole(self) -> bool:
        """Whether both halves are there; a full disk may have left an empty file."""
        try:
            return self.private.stat().st_size > 0 and self.public.startswith(_KIND)
        except (OSError, UnicodeDecodeError):
            return False


def ensure(private: Path) -> KeyPair:
    """The Ed25519 key pair in this file and its .pub, made if it is not there yet.

    A public half that is missing or broken is made again from the private one: nodes may have it already.
    """
    pair = KeyPair(private)
    if not pair.whole:
        _write(pair, _stored(private))
    return pair


def _stored(private: Path) -> Ed25519PrivateKey | None:
    """The private key in a file; None if there is none, or if the file is broken."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(private.read_bytes(), None)
    except (FileNotFoundError, ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def _write(pair: KeyPair, stored: Ed25519PrivateKey | None) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = stored or Ed25519PrivateKey.generate()
    if stored is None:
        files.write(pair.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    files.write(pair.public_file, public + b"\n", mode=0o644)
