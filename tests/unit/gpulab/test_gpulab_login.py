"""The login: what is wrong with a PEM file is told, and a pass phrase is found and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hvdctl.errors import UsageError
from hvdctl.gpulab import login
from hvdctl.gpulab.emulator import pki

PHRASE = "correct horse"


@pytest.fixture(autouse=True)
def nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "ask", None)
    monkeypatch.setattr(login, "_secret", None)
    monkeypatch.delenv(login.VARIABLE, raising=False)


@pytest.fixture(scope="module")
def locked(keys: Path) -> Path:
    return pki.login(keys, keys / "locked.pem", passphrase=PHRASE)


def test_the_certificate_names_the_user(keys: Path) -> None:
    found = login.read(keys / "login.pem")
    assert found.urn == "urn:publicid:IDN+ilabt.imec.be+user+tester"
    assert not found.locked
    assert found.project("demo") == "urn:publicid:IDN+ilabt.imec.be+project+demo"
    assert found.project("urn:publicid:IDN+other+project+p") == "urn:publicid:IDN+other+project+p"
    login.context(found, keys / "ca.pem", None)


def test_an_expired_certificate_is_told_with_its_day(keys: Path, tmp_path: Path) -> None:
    file = pki.login(keys, tmp_path / "old.pem", days=-30)
    with pytest.raises(
        UsageError, match=r"the certificate in .*old.pem expired on \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    ) as told:
        login.read(file)
    assert "portal" in told.value.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "can't be read: No such file"),
        ("", "holds no private key"),
        ("-----BEGIN CERTIFICATE-----\n", "holds no private key"),
        ("-----BEGIN PRIVATE KEY-----\n", "holds no certificate"),
        (
            "-----BEGIN PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n",
            "holds no cert",
        ),
    ],
)
def test_a_file_that_is_no_login_is_told(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "x.pem"
    if text is not None:
        file.touch(mode=0o600)
        file.write_text(text)
    with pytest.raises(UsageError, match=told):
        login.read(file)


def test_a_key_that_others_can_read_is_refused(keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "open.pem"
    file.write_bytes((keys / "login.pem").read_bytes())
    file.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others") as told:
        login.read(file)
    assert told.value.hint == f"chmod 600 {file}"


def test_a_server_is_trusted_by_its_authority_alone(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone.pem of the server can't be used"):
        login.context(login.read(keys / "login.pem"), tmp_path / "gone.pem", None)


def test_the_pass_phrase_comes_from_the_environment(keys: Path, locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(login.VARIABLE, PHRASE)
    assert login.at_hand(login.read(locked), None)
    login.context(login.read(locked), keys / "ca.pem", None)
    assert login.VARIABLE not in os.environ, "Ansible's runner writes its environment down"
    assert login.for_plugin() == {login.VARIABLE: PHRASE}


def test_the_pass_phrase_comes_from_a_file_of_the_users_alone(
    keys: Path, locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "phrase"
    file.touch(mode=0o600)
    file.write_text(PHRASE + "\n")
    login.context(login.read(locked), keys / "ca.pem", file)
    monkeypatch.setattr(login, "_secret", None)
    file.chmod(0o640)
    with pytest.raises(UsageError, match="phrase can be read by others"):
        login.context(login.read(locked), keys / "ca.pem", file)
    with pytest.raises(UsageError, match=r"can't be read from .*gone"):
        login.context(login.read(locked), keys / "ca.pem", tmp_path / "gone")


def test_who_can_be_asked_is_asked_once(keys: Path, locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return PHRASE

    monkeypatch.setattr(login, "ask", answer)
    for _ in range(2):
        login.context(login.read(locked), keys / "ca.pem", None)
    assert asked == [f"Pass phrase of {locked}"]
    assert login.for_plugin() == {login.VARIABLE: PHRASE}, "the Terraform plugin gets it"


def test_a_wrong_pass_phrase_is_told_and_not_kept(keys: Path, locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(login.VARIABLE, "wrong one")
    with pytest.raises(UsageError, match="the pass phrase is wrong") as told:
        login.context(login.read(locked), keys / "ca.pem", None)
    assert "wrong one" not in told.value.message + told.value.hint
    assert login.VARIABLE in told.value.hint
    assert login.for_plugin() == {}


def test_without_anybody_to_ask_the_ways_are_told(keys: Path, locked: Path) -> None:
    assert not login.at_hand(login.read(locked), None)
    with pytest.raises(UsageError, match="has a pass phrase, and nobody can be asked here") as told:
        login.context(login.read(locked), keys / "ca.pem", None)
    assert "passphrase_file" in told.value.hint
