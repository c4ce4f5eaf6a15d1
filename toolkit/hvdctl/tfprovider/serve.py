"""The plugin's server, with a thread for every call that Terraform makes at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from tf import runner

from hvdctl.tfprovider.provider import HvdProvider

# Terraform's -parallelism is the real bound. A thread exists only from the first call that needs it.
_THREADS = 1024


def run(argv: Sequence[str]) -> None:
    """Serve Terraform's calls.

    The library has ten threads. Ten jobs that wait for their start would hold all of them, and the jobs after them
    would not even be submitted.
    """
    wide: Any = SimpleNamespace(ThreadPoolExecutor=lambda max_workers: ThreadPoolExecutor(_THREADS))
    runner.futures = wide
    runner.run_provider(HvdProvider(), list(argv))
