"""The page in a real browser: figures drawn, nothing fetched, readable on a desk and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_sample as sample
import pytest
from hvdctl.bench import report

from tests.chromium import launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

WIDE, NARROW = 1280, 400
# What a person sees of each figure: its box, and the height of every text in it.
FIGURES = """
() => [...document.querySelectorAll('figure')].map(figure => {
  const shown = [...figure.querySelectorAll('svg')].filter(svg => svg.getClientRects().length);
  return {
    name: figure.closest('section').id,
    shown: shown.map(svg => {
      const box = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll('text')].filter(text => text.textContent.trim());
      const scale = box.width / svg.viewBox.baseVal.width;
      return {
        variant: svg.parentElement.className,
        label: svg.getAttribute('aria-label'),
        left: box.left, right: box.right, width: box.width, height: box.height,
        shapes: svg.querySelectorAll('path, use').length,
        sizes: texts.map(text => parseFloat(getComputedStyle(text).fontSize) * scale),
        // A turned text is high where a plain one is wide; a single digit is narrow.
        heights: texts.map(text => {
          const b = text.getBoundingClientRect();
          return text.textContent.trim().length > 1 ? Math.min(b.width, b.height) : b.height;
        }),
        outside: texts.filter(text => {
          const b = text.getBoundingClientRect();
          return b.left < box.left - 2 || b.right > box.right + 2 || b.top < box.top - 2 || b.bottom > box.bottom + 2;
        }).map(text => text.textContent),
      };
    }),
  };
})
"""
# How far two colours are apart, as WCAG counts it.
CONTRAST = """
() => {
  const light = rgb => {
    const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.match(/[0-9.]+/g).slice(0, 3).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll('h1, h2, p, td, th, li, a, figcaption, summary, pre, .tag')].map(element => {
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), element.tagName];
  }).sort((x, y) => x[0] - y[0])[0];
}
"""


@dataclass
class Seen:
    """A loaded page, with all that it asked for and complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.build(sample.write(tmp_path_factory.mktemp("bench"), sample.records()))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


def load(browser: Browser, file: Path, width: int, scheme: Any = "light") -> Seen:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    seen = Seen(context.new_page())
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.on("console", lambda said: seen.complaints.append(said.text) if said.type != "log" else None)
    seen.page.goto(file.as_uri())
    return seen


@pytest.fixture(scope="module", params=[WIDE, NARROW], ids=["wide", "narrow"])
def seen(request: pytest.FixtureRequest, browser: Browser, bench: Path) -> Iterator[Seen]:
    found = load(browser, bench, request.param)
    shots = os.environ.get("HVDCTL_SCREENSHOTS")
    if shots:
        found.page.screenshot(path=Path(shots) / f"report-{request.param}.png", full_page=True)
    yield found
    found.page.context.close()


def test_nothing_is_fetched_and_nothing_complains(seen: Seen, bench: Path) -> None:
    assert [url for url in seen.requests if not url.startswith("data:")] == [bench.as_uri()]
    assert seen.complaints == []


def test_each_figure_is_drawn_in_the_variant_of_this_width(seen: Seen) -> None:
    wide = seen.page.viewport_size == {"width": WIDE, "height": 900}
    figures = seen.page.evaluate(FIGURES)
    assert len(figures) == 15
    for figure in figures:
        (shown,) = figure["shown"]
        assert shown["variant"] == ("wide" if wide else "narrow"), figure["name"]
        assert shown["width"] > (390 if wide else 340), figure["name"]
        assert shown["height"] > 150, figure["name"]
        assert shown["shapes"] > 8, figure["name"]
        assert shown["label"], figure["name"]


def test_figures_can_be_read(seen: Seen) -> None:
    for figure in seen.page.evaluate(FIGURES):
        (shown,) = figure["shown"]
        assert min(shown["sizes"]) >= 10, figure["name"]
        assert min(shown["heights"]) >= 9, figure["name"]
        assert shown["outside"] == [], figure["name"]


def test_the_page_is_as_wide_as_the_window(seen: Seen) -> None:
    page = seen.page
    assert page.viewport_size is not None
    width = page.viewport_size["width"]
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for figure in page.evaluate(FIGURES):
        assert 0 <= figure["shown"][0]["left"] < figure["shown"][0]["right"] <= width
    # What is wider scrolls in a box of its own.
    boxes = page.evaluate("[...document.querySelectorAll('.scroll, pre')].map(b => [b.scrollWidth, b.clientWidth])")
    assert any(inner > outer for inner, outer in boxes)
    assert all(outer <= width for _, outer in boxes)


def test_tables_and_findings_are_there(seen: Seen) -> None:
    page = seen.page
    assert page.locator("table").count() >= 15
    lengths = page.evaluate("[...document.querySelectorAll('table')].map(t => t.tBodies[0].rows.length)")
    assert min(lengths) > 0
    assert page.locator("#found").is_visible()
    assert page.locator(".banner").get_by_text("Emulated, not measured on GPUs").is_visible()
    assert page.get_by_text("no baseline", exact=True).first.is_visible()


def test_links_within_the_page_lead_somewhere(seen: Seen) -> None:
    targets = seen.page.evaluate(
        "[...document.querySelectorAll('a')].map(a => [a.hash, !!document.querySelector(a.hash)])"
    )
    assert len(targets) > 6
    assert [target for target, there in targets if not there] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_contrast_and_figures_stay_on_white(browser: Browser, bench: Path, scheme: str) -> None:
    page = load(browser, bench, WIDE, scheme).page
    least, where = page.evaluate(CONTRAST)
    assert least >= 4.5, where
    grounds = page.evaluate("[...document.querySelectorAll('.card')].map(c => getComputedStyle(c).backgroundColor)")
    assert set(grounds) == {"rgb(255, 255, 255)"}
    body = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (body == "rgb(246, 247, 249)") == (scheme == "light")
    shots = os.environ.get("HVDCTL_SCREENSHOTS")
    if shots:
        page.screenshot(path=Path(shots) / f"report-{scheme}.png")
    page.context.close()


def test_a_bench_of_real_devices_has_no_banner(browser: Browser, tmp_path: Path) -> None:
    file = report.build(sample.write(tmp_path, sample.cpu_records()))
    seen = load(browser, file, WIDE)
    assert seen.page.locator(".banner").count() == 0
    assert len(seen.page.evaluate(FIGURES)) == 5
    assert seen.complaints == []
    seen.page.context.close()
