from __future__ import annotations

from pathlib import Path

import pytest
from hvdctl import debian, process
from hvdctl.debian import Source

ONE_LINE = """\
# a comment
deb http://mirror.example/debian/ bookworm main contrib
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian-security bookworm-security main
#deb http://disabled.example/debian bookworm main
"""

DEB822 = """\
Types: deb deb-src
# a comment inside a stanza
URIs: http://mirror.example/debian
Suites: bookworm
 bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
"""


def test_one_line_sources() -> None:
    assert list(debian.parse_list(ONE_LINE)) == [
        Source("http://mirror.example/debian", "bookworm"),
        Source("http://mirror.example/debian-security", "bookworm-security"),
    ]


def test_deb822_sources() -> None:
    assert list(debian.parse_deb822(DEB822)) == [
        Source("http://mirror.example/debian", "bookworm"),
        Source("http://mirror.example/debian", "bookworm-updates"),
        Source("http://mirror.example/debian-security", "bookworm-security"),
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "no fields here", "Types: deb", ": \n x\n"])
def test_broken_sources_give_nothing(text: str) -> None:
    assert list(debian.parse_deb822(text)) == []
    assert list(debian.parse_list(text)) == []


def test_all_files_of_the_host_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://one.example/debian bookworm main\n")
    (tmp_path / "sources.list.d/two.list").write_text("deb http://two.example/debian bookworm main\n")
    (tmp_path / "sources.list.d/three.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/four.list.disabled").write_text("deb http://four.example/debian bookworm main\n")
    hosts = [source.uri.split("/")[2] for source in debian.host_sources(tmp_path)]
    assert hosts == ["one.example", "two.example", *["mirror.example"] * 3]


def test_a_host_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert list(debian.host_sources(tmp_path / "nothing")) == []


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], debian.FALLBACK),
        ([Source("http://a.example/debian", "bookworm")], "http://a.example/debian"),
        ([Source("http://a.example/ubuntu", "jammy")], debian.FALLBACK),
        # Containers have no certificates, and other schemes name files of the host.
        ([Source("https://a.example/debian", "bookworm")], debian.FALLBACK),
        ([Source("mirror+file:/etc/apt/mirrors", "bookworm")], debian.FALLBACK),
        (
            [Source("https://a.example/debian", "bookworm"), Source("http://b.example/debian", "bookworm")],
            "http://b.example/debian",
        ),
    ],
)
def test_mirror(known: list[Source], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "host_sources", lambda: known)
    found = debian.mirror("bookworm")
    assert found.main == expected
    assert found.security == debian.FALLBACK_SECURITY


def test_images_get_updates_and_security() -> None:
    text = debian.Mirror("http://m.example/debian", "http://m.example/security").sources_list("bookworm")
    assert list(debian.parse_list(text)) == [
        Source("http://m.example/debian", "bookworm"),
        Source("http://m.example/debian", "bookworm-updates"),
        Source("http://m.example/security", "bookworm-security"),
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("http://proxy.example:3128\n", {"http_proxy": "http://proxy.example:3128"}),
        ("http://127.0.0.1:3142\n", {}),
        ("http://localhost:3142\n", {}),
        ("DIRECT\n", {}),
        ("", {}),
    ],
)
def test_proxy(said: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(process, "capture", lambda argv: subprocess.CompletedProcess(argv, 0, said, ""))
    assert debian.proxy() == expected
