"""A headless Chromium, as several test folders use it, and the pictures that they keep."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ARGUMENTS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def launched() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "there is no Chromium here: scripts/system.sh --tests installs it"
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, headless=True, args=[*ARGUMENTS, *sandbox])
        yield browser
        browser.close()


def pictures() -> Path:
    """Where screenshots are kept: $HVDCTL_SCREENSHOTS, else a folder that git does not see."""
    folder = Path(os.environ.get("HVDCTL_SCREENSHOTS") or Path(__file__).parents[1] / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
