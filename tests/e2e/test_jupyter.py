"""JupyterLab on a real cluster of two nodes, in a real browser, through the real tunnel."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hvdctl import ssh, tunnel
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.chromium import launched, pictures

from .conftest import wait_for
from .lab import Lab, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.docker, pytest.mark.browser]

# A notebook that runs from top to bottom on two shared cores.
PATIENCE_S = 300


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with opened(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def _notebook(page: Page, lab: Lab, name: str) -> None:
    """Open a notebook by its URL and wait for its kernel."""
    page.goto(f"{lab.base}/lab/tree/notebooks/{name}?token={lab.token}&reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
    _idle(page)


def _idle(page: Page, seconds: float = 60) -> None:
    # The status bar, and not the notebook's own mark: that is idle too before there is a kernel.
    page.get_by_text("Python (Horovod) | Idle").wait_for(timeout=seconds * 1000)


def _run_all(page: Page) -> list[str]:
    """Run all cells from the menu; the output of each code cell, when the last one has ended."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    cells = page.locator(".jp-CodeCell")
    count = cells.count()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        prompts = [cells.nth(index).locator(".jp-InputArea-prompt").inner_text() for index in range(count)]
        if all(re.fullmatch(r"\[\d+\]:", prompt.strip()) for prompt in prompts):
            break
        assert time.monotonic() < deadline, f"not to the end: {prompts}"
        page.wait_for_timeout(300)
    _idle(page)
    return [cells.nth(index).locator(".jp-Cell-outputWrapper").inner_text() for index in range(count)]


def _new_notebook(page: Page, lab: Lab, name: str, *lines: str) -> None:
    """A notebook of one cell, opened."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "a",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": "\n".join(lines),
    }
    text = json.dumps(
        {
            "cells": [cell],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "x"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    done = ssh.run(lab.cluster, "node0", ["sh", "-c", f"cat > /shared/notebooks/{name}"], stdin=text)
    assert done.returncode == 0
    _notebook(page, lab, name)


def _shot(page: Page, name: str) -> None:
    page.screenshot(path=pictures() / f"jupyter-{name}.png")


def test_without_the_token_nothing_opens(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.base}/lab")
    page.wait_for_selector("input[name=password]")
    assert not page.locator(".jp-LabShell").count()
    _shot(page, "without-token")
    for path in ("/api/contents", "/api/kernels", "/api/terminals", "/monitor/", "/files/notebooks/hello.ipynb"):
        assert not _leaks(lab, path), path
        assert not _leaks(lab, f"{path}?token={'0' * 48}"), path
    assert lab.get("/api/contents", lab.token) == 200


def _leaks(lab: Lab, path: str) -> bool:
    """Whether a request without a token ends anywhere but at the login."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{lab.base}{path}", timeout=30) as answer:
            return "/login" not in answer.url
    except urllib.error.HTTPError as error:
        return error.code not in (401, 403)


def test_with_the_token_jupyterlab_loads_and_shows_the_examples(lab: Lab, page: Page) -> None:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    outside: list[str] = []
    page.on("request", lambda request: outside.append(request.url) if "127.0.0.1" not in request.url else None)
    page.goto(lab.url)
    page.wait_for_selector(".jp-Launcher", timeout=60_000)
    for name in ("hello.ipynb", "training.ipynb", "scaling.ipynb"):
        page.wait_for_selector(f".jp-DirListing-itemText:has-text('{name}')")
    _shot(page, "lab")
    assert not complaints
    assert not [url for url in outside if url.startswith("http")]


def test_hello_runs_from_the_ui_and_names_every_rank_on_both_nodes(lab: Lab, page: Page) -> None:
    _notebook(page, lab, "hello.ipynb")
    told = "\n".join(_run_all(page))
    _shot(page, "hello")
    for rank in (0, 1):
        assert f"[rank {rank} node{rank}] hello from node{rank}" in told, told
    assert "rank 0 has no luck" in told


def test_training_runs_from_the_ui_with_its_curves(lab: Lab, page: Page) -> None:
    _notebook(page, lab, "training.ipynb")
    told = "\n".join(_run_all(page))
    pictures_shown = page.locator(".jp-OutputArea-output img").count()
    page.locator(".jp-OutputArea-output img").first.scroll_into_view_if_needed()
    _shot(page, "training")
    for rank in (0, 1):
        assert f"[rank {rank} node{rank}] takes " in told, told
    assert "going on from /shared/" in told, told
    assert pictures_shown >= 1


def test_a_killed_kernel_and_a_killed_tunnel_recover(lab: Lab, page: Page) -> None:
    # JupyterLab tells of a lost kernel and of each request that failed, in dialogs one after the other.
    page.add_locator_handler(page.locator(".jp-Dialog-button").first, lambda button: button.click())
    _new_notebook(page, lab, "recover.ipynb", "import os, time", "print(time.time(), 'pid', os.getpid())")
    first = _run_all(page)[0]
    assert "pid" in first
    lab.head(f"kill -9 {first.split()[-1]}")
    wait_for(lambda: _run_again(page) not in ("", first), 90)
    _shot(page, "kernel-restarted")

    keeper = tunnel.state(lab.cluster)["pid"]
    (link,) = (int(pid) for pid in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split())
    os.kill(link, signal.SIGKILL)
    wait_for(lambda: tunnel.state(lab.cluster)["rebuilt"] >= 1 and lab.alive(), 30)
    before = page.locator(".jp-CodeCell .jp-Cell-outputWrapper").first.inner_text()
    wait_for(lambda: _run_again(page) not in ("", before), 120)
    assert lab.hvdctl("jupyter", "--status", "--json").data["tunnel"]["rebuilt"] >= 1


def _run_again(page: Page) -> str:
    """What the one cell says now; nothing while there is no kernel."""
    cell = page.locator(".jp-CodeCell .cm-content").first
    try:
        _idle(page, 10)
        cell.click(timeout=10_000)
        cell.press("Control+Enter", timeout=10_000)
        page.wait_for_timeout(1500)
        _idle(page, 20)
    except PlaywrightTimeout:
        return ""
    return page.locator(".jp-CodeCell .jp-Cell-outputWrapper").first.inner_text()


def test_a_cell_that_fails_on_one_rank_names_it_and_ends_the_others(lab: Lab, page: Page) -> None:
    _new_notebook(
        page,
        lab,
        "failing.ipynb",
        "%%hvd -np 2",
        "import time",
        "if rank == 1: raise ValueError('only here')",
        "time.sleep(600)",
    )
    began = time.monotonic()
    told = _run_all(page)[0]
    assert time.monotonic() - began < 90
    _shot(page, "failing-rank")
    assert "rank 1 on node1" in told
    assert "ValueError: only here" in told
    wait_for(lambda: not lab.hvdctl.processes("hvd_cluster"), 30)


def test_the_monitor_shows_every_node(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.base}/lab?token={lab.token}&reset")
    page.wait_for_selector(".jp-Launcher", timeout=60_000)
    page.locator(".jp-LauncherCard", has_text="Cluster monitor").click()
    frame = page.frame_locator("iframe")
    for node in ("node0", "node1"):
        frame.get_by_text(node, exact=True).first.wait_for(timeout=30_000)
    wait_for(lambda: len(lab.hvdctl.processes("agent sample")) >= 2, 30)
    _shot(page, "monitor")
    # Behind another tab it asks nothing, so that soon nothing is measured; in front again it goes on.
    page.locator("#jp-main-dock-panel .lm-TabBar-addButton").first.click()
    page.wait_for_selector(".jp-Launcher:visible")
    wait_for(lambda: not lab.hvdctl.processes("agent sample"), 45)
    page.locator(".lm-TabBar-tab", has_text="Cluster monitor").click()
    wait_for(lambda: len(lab.hvdctl.processes("agent sample")) >= 2, 30)


def test_a_notebook_runs_unattended(lab: Lab) -> None:
    """The one that no test runs in the browser."""
    lab.execute("scaling")


def test_a_new_token_shuts_out_the_old_one_and_keeps_the_kernels(lab: Lab, page: Page) -> None:
    _new_notebook(page, lab, "rotate.ipynb", "x = 41", "print('set')")
    _run_all(page)
    before, kernels = lab.token, {kernel["id"] for kernel in lab.kernels()}
    lab.open("--rotate")
    assert lab.token != before
    assert lab.get("/api/contents", before) == 403
    assert lab.alive()
    assert {kernel["id"] for kernel in lab.kernels()} == kernels
    # The cookie of the browser that was let in with the old one is worth nothing either.
    page.goto(f"{lab.base}/lab")
    page.wait_for_selector("input[name=password]")
