"""Certificates of an emulator: an authority of the folder's own, the server's, and logins in imec's one-file form."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvdctl import paths

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

AUTHORITY = "ilabt.imec.be"
USER = "tester"
_YEARS = datetime.timedelta(days=3650)
_DAY = datetime.timedelta(days=1)


def user_urn(user: str = USER, authority: str = AUTHORITY) -> str:
    return f"urn:publicid:IDN+{authority}+user+{user}"


def project_urn(project: str, authority: str = AUTHORITY) -> str:
    return f"urn:publicid:IDN+{authority}+project+{project}"


def email_of(user: str = USER) -> str:
    return f"{user}@example.com"


def ensure(folder: Path) -> None:
    """The folder holds ca.pem, ca.key, server.pem and login.pem; what is there is kept."""
    paths.private(folder)
    if not ((folder / "ca.pem").exists() and (folder / "ca.key").exists()):
        _authority(folder)
        for signed in ("server.pem", "login.pem"):
            (folder / signed).unlink(missing_ok=True)
    if not (folder / "server.pem").exists():
        _server(folder)
    if not (folder / "login.pem").exists():
        login(folder, folder / "login.pem", days=3650)


def login(
    folder: Path,
    file: Path,
    *,
    user: str = USER,
    authority: str = AUTHORITY,
    days: int = 30,
    passphrase: str | None = None,
) -> Path:
    """The file, with a new RSA key and a certificate for that user; with negative `days` it expired yesterday."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days) if days >= 0 else now - _DAY
    since = min(now, until) + datetime.timedelta(days=min(days, -1))
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(user_urn(user, authority)),
        x509.RFC822Name(email_of(user)),
    ]
    key = _new_key()
    signed = _sign(folder, key, user, names, (since, until), client=True)
    _write(file, _key_text(key, passphrase) + _text(signed))
    return file


def public_key(certificate: bytes) -> str:
    """The key of a certificate (PEM or DER) as a line of OpenSSH's."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    load = x509.load_pem_x509_certificate if b"-----BEGIN" in certificate else x509.load_der_x509_certificate
    return load(certificate).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _authority(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _name("hvdctl GPULab emulator CA")
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.key", _key_text(key, None))
    _write(folder / "ca.pem", _text(made), mode=0o644)


def _server(folder: Path) -> None:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    key = _new_key()
    signed = _sign(folder, key, "127.0.0.1", names, (now - _DAY, now + _YEARS), client=False)
    _write(folder / "server.pem", _key_text(key, None) + _text(signed))


def _sign(
    folder: Path,
    key: RSAPrivateKey,
    name: str,
    names: Sequence[x509.GeneralName],
    valid: tuple[datetime.datetime, datetime.datetime],
    *,
    client: bool,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, RSAPrivateKey)  # noqa: S101
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _new_key() -> RSAPrivateKey:
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _text(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_text(key: RSAPrivateKey, passphrase: str | None) -> bytes:
    # The traditional form is the one that imec hands out, and that every ssh reads with `-i`.
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    how = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, how)


def _write(file: Path, content: bytes, mode: int = 0o600) -> None:
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as out:
        out.write(content)
