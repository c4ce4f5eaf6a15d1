"""Releases served from loopback by a real server: a good one, wrong ones, and none."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest
from hvdctl import paths, terraform, terraform_release
from hvdctl.errors import HvdctlError, PhaseError, ToolMissing
from hvdctl.progress import Silent
from hvdctl.terraform_release import Release
from support import Hvdctl

PROGRAM = b"#!/bin/sh\necho Terraform v9.9.9\n"


def packed(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return file.getvalue()


@dataclass
class Site:
    """What the server answers with, and what it was asked for."""

    body: bytes = packed(terraform=PROGRAM, LICENSE=b"text")
    announced: int | None = None
    asked: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """A server of releases; no terraform is on PATH, and the pinned checksum is that of its file."""
    made = Site()
    made.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            made.hold.wait(10)
            self.send_response(200)
            self.send_header("Content-Length", str(made.announced or len(made.body)))
            self.end_headers()
            self.wfile.write(made.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(terraform_release.MIRROR, f"http://127.0.0.1:{server.server_port}/terraform/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    pin(monkeypatch, made.body)
    yield made
    server.shutdown()
    server.server_close()


def pin(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    release = Release("9.9.9", "linux_amd64", hashlib.sha256(body).hexdigest())
    monkeypatch.setattr(terraform_release, "pinned", lambda: release)


def left() -> list[str]:
    """All files of the cache, but for folders that are empty."""
    return [file.name for file in paths.cache().rglob("*") if file.is_file()]


def test_a_release_is_downloaded_once_and_runs(site: Site) -> None:
    program = terraform_release.install(Silent())
    assert site.asked == ["/terraform/9.9.9/terraform_9.9.9_linux_amd64.zip"]
    said = subprocess.run([program, "version"], capture_output=True, text=True, check=True)
    assert said.stdout == "Terraform v9.9.9\n"
    assert terraform_release.install(Silent()) == program == terraform.binary()
    assert len(site.asked) == 1
    assert left() == ["terraform"], "the archive is gone, and nothing else of it was unpacked"


def broken(change: Callable[[Site], None], told: str, site: Site) -> None:
    change(site)
    with pytest.raises(PhaseError, match=told) as caught:
        terraform_release.install(Silent())
    assert terraform_release.MIRROR in caught.value.hint
    assert "\n" not in caught.value.message
    assert left() == []


def test_a_wrong_checksum_is_refused_and_the_next_call_works(site: Site) -> None:
    good = site.body
    bad = packed(terraform=b"#!/bin/sh\necho stolen\n")
    expected = f"{hashlib.sha256(bad).hexdigest()}, and {hashlib.sha256(good).hexdigest()} is expected"
    broken(lambda site: setattr(site, "body", bad), expected, site)
    site.body = good
    assert terraform_release.install(Silent())


def test_a_truncated_file_is_refused_and_the_next_call_works(site: Site) -> None:
    whole = len(site.body)
    broken(lambda site: setattr(site, "announced", whole + 1000), f"{whole} of {whole + 1000} bytes", site)
    site.announced = None
    assert terraform_release.install(Silent())


def test_no_network_is_one_clear_line_and_the_next_call_works(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with monkeypatch.context() as patch:
            patch.setenv(terraform_release.MIRROR, f"http://127.0.0.1:{port}")
            broken(lambda site: None, f"can't be downloaded from http://127.0.0.1:{port}/9.9.9/.*refused", site)
    assert terraform_release.install(Silent())


@pytest.mark.parametrize(
    ("mirror", "failure", "told"),
    [
        ("nonsense", None, "can't be downloaded from nonsense/9.9.9/.*: unknown url type"),
        ("http://[::1", None, "can't be downloaded from http://.*Invalid IPv6"),
        ("http://127.0.0.1:port", None, "can't be downloaded from http://127.0.0.1:port/.*nonnumeric port"),
        ("", ssl.SSLError(1, "record layer failure"), "can't be downloaded from .*record layer failure"),
        ("", ConnectionResetError(104, "reset by peer"), "can't be downloaded from .*reset by peer"),
    ],
)
def test_a_download_that_fails_keeps_its_hint(
    site: Site, monkeypatch: pytest.MonkeyPatch, mirror: str, failure: OSError | None, told: str
) -> None:
    """Whether the mirror is no URL or the connection breaks in the middle of the file."""

    def breaks(answer: IO[bytes]) -> bytes:
        assert failure
        raise failure

    if mirror:
        monkeypatch.setenv(terraform_release.MIRROR, mirror)
    else:
        monkeypatch.setattr(terraform_release, "_read", breaks)
    broken(lambda site: None, told, site)


def test_the_program_is_on_the_disk_before_it_has_its_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    synced: list[tuple[bytes, int, bool]] = []

    def fsync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}")
        named = terraform_release.pinned().binary.exists()
        synced.append((path.read_bytes(), stat.S_IMODE(path.stat().st_mode), named))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    assert terraform_release.install(Silent())
    assert synced == [(PROGRAM, 0o755, False)]


def test_an_archive_without_the_program_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = packed(**{"..__terraform": PROGRAM, "bin__terraform": PROGRAM})
    pin(monkeypatch, odd)
    broken(lambda site: setattr(site, "body", odd), "holds no program `terraform`", site)


def test_two_downloads_at_once_both_end_well(site: Site) -> None:
    site.hold.clear()
    found: list[str] = []
    both = [threading.Thread(target=lambda: found.append(terraform_release.install(Silent()))) for _ in range(2)]
    for one in both:
        one.start()
    site.hold.set()
    for one in both:
        one.join(10)
    assert len(set(found)) == 1 and len(found) == 2
    assert left() == ["terraform"]


def test_a_full_disk_is_told_as_such(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(release: Release, archive: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(terraform_release, "_unpack", full)
    with pytest.raises(PhaseError, match="the disk is full: no room for Terraform in"):
        terraform_release.install(Silent())


def test_one_on_the_path_is_used(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "tofu").write_bytes(PROGRAM)
    (folder / "tofu").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert terraform_release.install(Silent()) == str(folder / "tofu")
    assert site.asked == []


def test_check_says_what_is_missing_and_fixes_it(site: Site, hvdctl: Hvdctl) -> None:
    said = hvdctl("check")
    assert "✗ terraform          neither terraform nor tofu is installed" in said.out
    assert "hvdctl check --fix" in said.out
    assert "✓ terraform          Terraform v9.9.9" in hvdctl("check", "--fix").out
    site.body = b""
    assert "✓ terraform          Terraform v9.9.9" in hvdctl("check").out


def test_a_fix_that_fails_is_an_error_with_a_way_out(site: Site, hvdctl: Hvdctl) -> None:
    site.body = b"not a release"
    said = hvdctl("check", "--fix")
    assert said.code == 1
    assert "error: Terraform 9.9.9 from http://127.0.0.1:" in said.err and "is expected" in said.err


def test_the_real_pins_are_whole() -> None:
    known = tomllib.loads(paths.asset("infra", "terraform.toml").read_text())
    assert set(known["sha256"]) == {"linux_amd64", "linux_arm64"}
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in known["sha256"].values())
    assert re.fullmatch(r"1\.\d+\.\d+", known["version"])


def test_an_unknown_platform_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(ToolMissing, match="linux_riscv64") as caught:
        terraform_release.pinned()
    assert "opentofu.org" in caught.value.hint
    assert isinstance(caught.value, HvdctlError)


def test_it_needs_no_package() -> None:
    code = "import sys; import hvdctl.terraform_release, hvdctl.graph, hvdctl.board; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(paths.library())!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"platformdirs", "docker", "rich", "typer", "pydantic"} & set(said.stdout.split())
