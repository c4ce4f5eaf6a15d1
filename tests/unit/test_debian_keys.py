"""Debian's packages are taken only with Debian's signature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdctl import debian
from hvdctl.errors import PhaseError

# What the real one does where there is no keyring, and a mirror is named.
DEBOOTSTRAP = """#!/bin/sh
echo "W: Cannot check Release signature; keyring file not available /usr/share/keyrings/debian-archive-keyring.gpg"
case " $* " in
    *" --force-check-gpg "*) echo "E: Keyring-based check was requested; aborting accordingly"; exit 1 ;;
esac
for last in "$@"; do folder=$before before=$last; done
mkdir -p "$folder"
"""


def test_no_debian_is_made_of_packages_that_nobody_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "debootstrap"
    program.write_text(DEBOOTSTRAP)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(debian, "_as_root", list)
    client: Any = None
    with pytest.raises(PhaseError) as caught:
        debian.bootstrap(client, "bookworm", "hvdctl/debootstrap:bookworm", lambda text: None)
    assert "Keyring-based check was requested" in caught.value.message
    assert "apt-get install debian-archive-keyring" in caught.value.hint
