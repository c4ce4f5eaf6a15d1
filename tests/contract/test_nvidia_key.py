"""NVIDIA's packages are taken only with the key that the role expects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .scripted import PLAYBOOKS, Machine

ROLE = PLAYBOOKS / "roles" / "nvidia"
# Made by `gpg --quick-gen-key` for this test; gpg names this fingerprint.
EXPECTED = "4D12AC81369FAE59AA4D95E2B82BB440E557654D"
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mI0Eav4FNwEEALUJrkDI4FM2QnoAZxGEDw8wB3vZWdlvg8Bk055tfPvrb89+NePI
S+fYpN/AuH+DAfsv9s9YkJSsuf9pt2EL5kOCmS7i6bdUtLmvt2ryQec1lsHRVumV
eqF0D/g3s1bVE7vhQKL2SYro4mRp+vKclVb4rvdDZcd0cqypmzLDzGXdABEBAAG0
FUtleSBhIDxhQGV4YW1wbGUub3JnPojOBBMBCgA4FiEETRKsgTafrlmqTZXiuCu0
QOVXZU0FAmr+BTcCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQuCu0QOVX
ZU1HowP/eJr2FeWHjACZQLseIQNrik/QqKL//Wrk6nxgXX++WILTAHj/HzfOvLoq
jep0gMIjlknyaqfYdfIJ6uzuwtnND7dpC+93UUFQAYoJ3fe0G/+A+muDsVbge8un
O0eseFoeEBA3zPdQFPW35h6Y/Tfx8WaBXyKXa2//LyQYOJud37A=
=N8NM
-----END PGP PUBLIC KEY BLOCK-----
"""
# The same key with another one behind it.
TWO = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mI0Eav4FNwEEALUJrkDI4FM2QnoAZxGEDw8wB3vZWdlvg8Bk055tfPvrb89+NePI
S+fYpN/AuH+DAfsv9s9YkJSsuf9pt2EL5kOCmS7i6bdUtLmvt2ryQec1lsHRVumV
eqF0D/g3s1bVE7vhQKL2SYro4mRp+vKclVb4rvdDZcd0cqypmzLDzGXdABEBAAG0
FUtleSBhIDxhQGV4YW1wbGUub3JnPojOBBMBCgA4FiEETRKsgTafrlmqTZXiuCu0
QOVXZU0FAmr+BTcCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQuCu0QOVX
ZU1HowP/eJr2FeWHjACZQLseIQNrik/QqKL//Wrk6nxgXX++WILTAHj/HzfOvLoq
jep0gMIjlknyaqfYdfIJ6uzuwtnND7dpC+93UUFQAYoJ3fe0G/+A+muDsVbge8un
O0eseFoeEBA3zPdQFPW35h6Y/Tfx8WaBXyKXa2//LyQYOJud37CYjQRq/gU3AQQA
wFzcC1HLQsN8uKRHhYvzZ9mJWtrM2VlqSAYU359VdsCRYl2BqQfJAxZ+caS9YKZn
CWWmYEhlQzDIXo8lM5qwE5fiDm1bY4D1NX/VqtH5rj0anXMEHYRRNRxzlAguaemI
Vs6SKyEUnY9hkavTUdn4tMxovUHDS2Unizgvs3vaKd8AEQEAAbQVS2V5IGIgPGJA
ZXhhbXBsZS5vcmc+iM4EEwEKADgWIQRswyVfl98j8ZQCzSnONahLXd6E0gUCav4F
NwIbAwULCQgHAgYVCgkICwIEFgIDAQIeAQIXgAAKCRDONahLXd6E0qcOA/96JiJ+
KW3x/YsY3J5UnwmIERq0wHOBMtkdg2dz4NlEtXqxGKu1m/oyLTMxd/dfXiNs8LEZ
y5uVQqeBs5LTEhKV8oNcyMgYKEUw2Wj5iWmSeIxnE2oyPlQShLATmwae/IXj8f3a
o670l9N2R9qYjpART6efSs1B5MY0DyCueVLFIg==
=gPRb
-----END PGP PUBLIC KEY BLOCK-----
"""


# What is installed: the same without the check sum, which is optional.
BARE = KEY.replace("=N8NM\n", "")
SECOND = "".join(TWO.splitlines(keepends=True)[2:-2])


def fetched(folder: Path, text: str, fingerprint: str = EXPECTED) -> subprocess.CompletedProcess[str]:
    (folder / "gpgkey").write_text(text)
    argv = [sys.executable, str(ROLE / "files" / "key.py"), f"file://{folder}/gpgkey", fingerprint]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "fingerprint", [EXPECTED, EXPECTED.lower(), "4D12 AC81 369F AE59 AA4D  95E2 B82B B440 E557 654D"]
)
def test_the_expected_key_is_taken(tmp_path: Path, fingerprint: str) -> None:
    done = fetched(tmp_path, KEY, fingerprint)
    assert (done.returncode, done.stdout) == (0, BARE), done.stderr
    assert fetched(tmp_path, KEY.replace("\n", "\r\n", 3)).stdout == BARE
    assert fetched(tmp_path, KEY.replace("BLOCK-----\n", "BLOCK-----\nVersion: GnuPG v1\n", 1)).returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO, f"holds the key {EXPECTED.lower()}, 6cc3255f97df23f19402cd29ce35a84b5dde84d2, and"),
        ("<html>Sign in</html>", "holds the key none, and"),
        ("", "holds the key none, and"),
        (KEY + TWO, "holds the key"),
        # `base64 --decode`, which apt calls, goes on behind padding.
        (KEY.replace("=N8NM\n", SECOND), "holds the key none, and"),
    ],
)
def test_another_key_is_refused(tmp_path: Path, text: str, said: str) -> None:
    done = fetched(tmp_path, text)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert fetched(tmp_path, KEY, "0" * 40).returncode == 1


@pytest.mark.parametrize("text", [SECOND + "\n" + KEY, KEY + "\n" + SECOND, KEY + TWO.replace("BEGIN", "BEGUN")])
def test_what_apt_would_read_outside_the_block_is_left_out(tmp_path: Path, text: str) -> None:
    assert fetched(tmp_path, text).stdout == BARE


def test_the_role_pins_nvidia_s_own_key() -> None:
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert defaults["nvidia_toolkit_fingerprint"] == "C95B321B61E88C1809C4F759DDCAE044F796ECB0"


@pytest.fixture
def gpu(machine: Machine) -> Machine:
    for name in ("apt-get", "dpkg"):
        machine.command(name)
    machine.command("python3", f'exec {shutil.which("python3")} "$@"')
    return machine


def installed(gpu: Machine, key: str) -> subprocess.CompletedProcess[str]:
    gpu.write("repository/gpgkey", key)
    code = (ROLE / "files" / "key.py").read_text()
    settings = {"REPOSITORY": f"file:{gpu.root}/repository", "FINGERPRINT": EXPECTED, "PACKAGES": "toolkit"}
    return gpu.run("nvidia", "install.sh", KEY=code.replace("'", "'\\''"), **settings)


def test_no_package_is_asked_for_with_another_key(gpu: Machine) -> None:
    for _ in range(2):
        done = installed(gpu, TWO)
        assert done.returncode == 1
        assert "holds the key" in done.stderr
        assert "see nvidia_toolkit_fingerprint" in done.stderr
        assert not [call for call in gpu.calls if call.startswith("apt-get")]
        assert list((gpu.root / "etc/apt/keyrings").iterdir()) == []

    # A key that was taken on trust earlier does not stay.
    kept = gpu.write("etc/apt/keyrings/hvdctl-nvidia.asc", TWO)
    assert installed(gpu, KEY).returncode == 0, installed(gpu, KEY).stderr
    assert kept.read_text() == BARE
    assert [call for call in gpu.calls if call.endswith("install toolkit")]
    gpu.write("repository/gpgkey", "")
    assert "hvdctl-nvidia.asc" not in installed(gpu, "").stdout, "it is there"
