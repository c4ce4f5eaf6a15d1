"""Certificates, and who may call with them."""

from __future__ import annotations

import datetime
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from emulator_lab import SSH, FakeRunner, body, run
from hvdctl.gpulab.emulator import pki
from hvdctl.gpulab.emulator.api import BASE, Api
from hvdctl.gpulab.emulator.faults import Faults
from hvdctl.gpulab.emulator.home import Home
from hvdctl.gpulab.emulator.lab import Lab
from hvdctl.gpulab.emulator.serve import tls
from hvdctl.gpulab.emulator.workers import DEFAULT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pki") / "emulator"
    pki.ensure(made)
    return made


def swapped(file: Path) -> Path:
    """The same with the certificate first."""
    text = file.read_text()
    cut = text.index("-----BEGIN CERTIFICATE")
    made = file.with_name("swapped.pem")
    made.write_text(text[cut:] + text[:cut])
    made.chmod(0o600)
    return made


def test_what_is_there_is_kept_and_private(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    pki.ensure(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert {file.name for file in folder.iterdir() if file.stat().st_mode & 0o077} == {"ca.pem"}


def test_a_login_names_its_user(folder: Path) -> None:
    found = x509.load_pem_x509_certificate((folder / "login.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["urn:publicid:IDN+ilabt.imec.be+user+tester"]
    assert names.get_values_for_type(x509.RFC822Name) == ["tester@example.com"]


@pytest.mark.parametrize("first", ["key", "certificate"])
def test_ssh_reads_the_key_of_a_login(folder: Path, first: str) -> None:
    file = folder / "login.pem" if first == "key" else swapped(folder / "login.pem")
    done = subprocess.run(["ssh-keygen", "-y", "-f", file], capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == pki.public_key(file.read_bytes()).split()[:2]


def test_a_login_may_have_expired(folder: Path, tmp_path: Path) -> None:
    file = pki.login(folder, tmp_path / "old.pem", days=-1)
    found = x509.load_pem_x509_certificate(file.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    assert now - datetime.timedelta(days=2) < found.not_valid_after_utc < now
    assert found.not_valid_before_utc < found.not_valid_after_utc


def test_a_login_may_have_a_pass_phrase(folder: Path, tmp_path: Path) -> None:
    file = pki.login(folder, tmp_path / "locked.pem", passphrase="open sesame")
    load_pem_private_key(file.read_bytes(), b"open sesame")
    with pytest.raises((TypeError, ValueError)):
        load_pem_private_key(file.read_bytes(), None)


async def _asked(
    folder: Path, tmp_path: Path, login: Path | None, secure: ssl.SSLContext
) -> tuple[str, dict[str, Any]]:
    """The owner of a job that is submitted with this login."""
    if login:
        secure.load_cert_chain(login)
    lab = Lab(FakeRunner(), DEFAULT, tmp_path)
    api = Api(lab, SSH, Faults(None))
    server = TestServer(api.app(), scheme="https", host="127.0.0.1")
    await server.start_server(ssl=tls(Home(folder)))
    url = f"https://127.0.0.1:{server.port}{BASE}jobs"
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=secure)) as client:
            uuid = await (await client.post(url, json=body())).text()
            return uuid, (await (await client.get(f"{url}/{uuid}")).json())["owner"] | api.keys
    finally:
        await server.close()


@pytest.mark.parametrize("order", ["key first", "certificate first"])
def test_the_certificate_says_who_asks(folder: Path, tmp_path: Path, order: str) -> None:
    login = pki.login(folder, tmp_path / "ann.pem", user="ann", authority="example.org")
    login = login if order == "key first" else swapped(login)
    trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    _, owner = run(lambda: _asked(folder, tmp_path, login, trusting))
    assert owner["userUrn"] == "urn:publicid:IDN+example.org+user+ann"
    assert owner["userEmail"] == "ann@example.com"
    assert owner["ann"] == {pki.public_key(login.read_bytes())}


@pytest.mark.parametrize("which", ["none", "expired", "stranger"])
def test_who_has_no_good_certificate_is_not_heard(folder: Path, tmp_path: Path, which: str) -> None:
    other = tmp_path / "other"
    pki.ensure(other)
    login = {
        "none": None,
        "expired": pki.login(folder, tmp_path / "old.pem", days=-1),
        "stranger": other / "login.pem",
    }[which]
    trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with pytest.raises(aiohttp.ClientError) as refused:
        run(lambda: _asked(folder, tmp_path, login, trusting))
    # The client is content with the server: it is the server that hangs up.
    assert not isinstance(refused.value, aiohttp.ClientConnectorError)


def test_the_server_is_known_by_the_folder_s_authority_only(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        run(lambda: _asked(folder, tmp_path, folder / "login.pem", ssl.create_default_context()))
