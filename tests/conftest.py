"""What holds for all tests: Terraform is found, doubles follow real signatures, and in CI nothing is skipped."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hvdctl import terraform_release

from . import doubles

# When `make quick` stops, in seconds since the epoch.
UNTIL = float(os.environ.get("HVDCTL_TESTS_UNTIL", "inf"))


def pytest_configure() -> None:
    """Doubles are compared from now on. Tests call `terraform`; the one that set-up downloaded is not on PATH."""
    doubles.watch()
    if not shutil.which("terraform") and (found := terraform_release.find()):
        os.environ["PATH"] = f"{Path(found).parent}{os.pathsep}{os.environ['PATH']}"


def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip("left out for time; `make unit` runs all")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """In CI a missing tool is a failure: set-up should have installed it."""
    report: pytest.TestReport = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail") and not allowed(item):
        refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """The same for a whole file: `pytest.importorskip`, or `pytest.skip` outside of any test."""
    report: pytest.CollectReport = yield
    if report.skipped and os.environ.get("CI"):
        refuse(report)
    return report


def refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    report.outcome = "failed"
    report.longrepr = f"skipped, but in CI no test may be: {report.longrepr}"


def allowed(item: pytest.Item) -> bool:
    return item.get_closest_marker("optional") is not None
