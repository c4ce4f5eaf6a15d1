"""The page: one file that needs no other, says what was found, labels what is emulated, and keeps secrets."""

from __future__ import annotations

import json
import os
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import bench_sample as sample
import pytest
from hvdctl.bench import report, results, tables, wording
from support import Hvdctl


class Page(HTMLParser):
    """What a browser would find: text, links, ids, and whether tags are closed in order."""

    VOID = ("meta", "link", "br", "img", "hr", "path", "use")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.said: list[str] = []
        self.feed(text)
        assert self.open == []
        self.text = re.sub(r"[\s\u202f]+", " ", "".join(self.said))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"src", "href", "xlink:href", "srcset", "action"}:
                self.links.append(value or "")
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.said.append(data)


def page_of(folder: Path, records: list[dict[str, Any]]) -> Page:
    return Page(report.build(sample.write(folder, records)).read_text())


@pytest.fixture(scope="module")
def html(whole: dict[str, Any]) -> str:
    figures = [figure for figure, _ in whole.values()]
    return report.render(sample.records(), figures, {name: pictures for name, (_, pictures) in whole.items()})


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_needs_nothing_else(html: str, page: Page) -> None:
    assert {link for link in page.links if not link.startswith(("#", "data:"))} == set()
    assert {"script", "iframe", "img"}.isdisjoint(page.tags)
    assert not re.search(r"url\((?!#)|@import", html)


def test_a_sample_of_pairs_is_a_list_that_says_of_how_many(tmp_path: Path) -> None:
    page = page_of(tmp_path, [sample.bench(), sample.sampled_links(random.Random(1), 100)])
    assert "Bandwidth of a sample, 200 of 9 900 pairs, slowest first" in page.text
    assert "Bandwidth from row to column" not in page.text
    assert "A sample: 200 of 9 900 pairs were measured." in page.text
    assert re.search(r"from ?to ?Mbit/s ?node2 ?node1 ?610", page.text)
    whole = page_of(tmp_path / "whole", [sample.bench(), sample.links(random.Random(1))])
    assert "Bandwidth from row to column" in whole.text
    assert "sample" not in whole.text


def test_ids_are_unique_and_links_lead_somewhere(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_files_lie_beside_the_results(tmp_path: Path) -> None:
    page = report.build(sample.write(tmp_path / "out", [sample.bench(), sample.links(random.Random(1))]))
    files = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert page == tmp_path / "out" / "report.html"
    assert files == {"report.html", "results.jsonl", "figures/links.png", "figures/links.svg"}


def test_it_begins_with_what_was_found(page: Page) -> None:
    assert "How ResNet-50 and VGG-16 scale" in page.text
    assert "Cluster demo, 10 nodes · 17 November 2026, 03:15 UTC" in page.text
    points = results.points(sample.records())
    (best,) = [one for one in points if one["key"].startswith("resnet50 b96 10x1 10g")]
    share = results.efficiency(best, points)
    assert share is not None
    told = f"at 10 Gbit/s {best['images_per_s']:,.0f} images/s, {share * 100:.0f} % of ideal".replace(",", " ", 1)
    assert told in page.text
    assert "ResNet-50 on emulated P100s, batch 96 a rank, 10 nodes:" in page.text
    assert "the link limits: 76 % of a step" in page.text
    assert "node2 to node1 is slow with 610 Mbit/s" in page.text
    assert "1 of 68 points failed" in page.text


def test_emulation_is_told_with_its_factors(page: Page) -> None:
    assert "All 68 points emulate the P100" in page.text
    assert "Time dilation 3× to 30×." in page.text
    assert "Latency can't be dilated" in page.text
    # Every table of points says so again.
    assert page.text.count("emulated P100, time dilation 3× to 30×") > 10


def test_a_real_bench_has_no_such_word(tmp_path: Path) -> None:
    real = page_of(tmp_path, sample.cpu_records())
    assert "Emulated, not measured on GPUs" not in real.text
    assert "time dilation 3" not in real.text
    assert "The bench is interrupted: Ctrl-C." in real.text
    assert "Predicted and measured" not in real.text


def test_what_failed_and_what_has_no_baseline_is_told(page: Page) -> None:
    assert "rank 7 on node7 ended with exit code 137; its memory limit of 2g was reached" in page.text
    assert "no answer from node5" not in page.text  # it was run again
    assert "no baseline" in page.text


def test_predictions_stand_beside_measurements(page: Page) -> None:
    records = sample.records()
    errors = tables.prediction_errors(records, results.points(records))
    assert len(errors) == 45
    table = tables.predictions(records, results.points(records))
    assert table is not None
    assert len(table.rows) == 49
    assert "on 45 points that it was not fitted to" in page.text
    assert [row[4] for row in table.rows].count("yes") == 4


def test_single_ranks_do_not_flatter_the_predictions() -> None:
    chance = random.Random(1)
    points = [sample.point("vgg16", 32, nodes, 10**9, chance) for nodes in (1, 2)]
    records = [sample.bench(), *points, *(sample.predicted(one, chance) for one in points)]
    assert len(tables.prediction_errors(records, points)) == 1


@pytest.mark.parametrize(
    ("value", "half", "shown"),
    [(1480.2, 12.3, "1 480 ± 12"), (194.2, 0.04, "194.20 ± 0.04"), (64.6, 1.0, "64.6 ± 1.0"), (5.0, None, "5")],
)
def test_a_rate_is_shown_to_the_place_of_its_interval(value: float, half: float | None, shown: str) -> None:
    assert wording.with_ci(value, half).replace("\u202f", " ") == shown


def test_allreduce_stands_there_as_nccl_tests_print_it(page: Page) -> None:
    lines = tables.nccl(sample.allreduce(4, random.Random(1)))
    assert lines[1].split() == ["#", "size", "count", "type", "redop", "time", "algbw", "busbw", "of", "link"]
    row = lines[3].split()
    assert row[:4] == ["1024", "256", "float", "sum"]
    assert float(lines[-2].split()[-1]) == pytest.approx(93, abs=6)
    assert "# Avg bus bandwidth" in page.text


def test_what_is_needed_to_repeat_it(page: Page) -> None:
    bench = sample.bench()
    for wanted in (
        bench["command"],
        bench["image"]["reference"],
        bench["image"]["id"],
        "AMD EPYC 7B13",
        "0.28.1",
        "6.1.0-28-amd64",
        '"provider": "local"',
    ):
        assert wanted in page.text, wanted


def test_values_of_the_jobs_environment_are_not_in_the_page(html: str) -> None:
    assert "s3cret" not in html
    assert "TOKEN" in html


def test_terms_are_defined(page: Page) -> None:
    for term in ("share of ideal", "Weak and strong scaling", "Confidence interval", "Bus bandwidth", "time dilation"):
        assert term in page.text


def test_words_of_others_can_t_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    chance = random.Random(1)
    points = [sample.point("vgg16", 32, nodes, 10**9, chance) | {"model": evil} for nodes in (1, 2)]
    bad = sample.failed(sample.point("vgg16", 64, 1, 10**9, chance), f"\"{evil}' & more")
    bench = sample.bench()
    bench["cluster"]["name"] = bench["machine"]["cpu"] = evil
    links = {"kind": "links", "net": None, "pairs": [{"source": evil, "target": "b", "bits": 1e9}]}
    made = page_of(tmp_path, [bench, *points, bad, links])
    assert "script" not in made.tags
    assert made.text.count(evil) > 5


def test_the_same_results_make_the_same_page(tmp_path: Path) -> None:
    few = [sample.bench(), sample.links(random.Random(1))]
    made = [report.build(sample.write(tmp_path / name, few)).read_bytes() for name in ("a", "b")]
    assert made[0] == made[1]


@pytest.mark.parametrize("reason", [None, "the engine went away"])
def test_a_bench_without_a_single_good_point(tmp_path: Path, reason: str | None) -> None:
    lost = sample.failed(sample.point("vgg16", 64, 1, 10**9, random.Random(1)), "gone")
    end = {"kind": "end", "state": "failed", "seconds": 1.0, "reason": reason}
    made = page_of(tmp_path, [sample.bench(), lost, end])
    assert "No point was measured: every one failed." in made.text
    assert f"The bench is failed{': the engine went away' if reason else ''}." in made.text


def test_a_bench_that_has_only_begun(tmp_path: Path) -> None:
    made = page_of(tmp_path, [{"kind": "bench", "version": 1, "id": "x", "created": sample.CREATED}])
    assert "No point was measured." in made.text
    assert "The bench is unfinished." in made.text


def test_open_never_shows_a_page_that_came_from_elsewhere(hvdctl: Hvdctl, tmp_path: Path) -> None:
    """A job can write a page with a script of its own beside its results, and choose its time."""
    folder = tmp_path / "clusters" / "demo" / "bench" / "20261117-031500"
    sample.write(folder, [sample.bench()])
    told = hvdctl("report", "open", "--name", "demo", "--no-browser")
    assert (told.code, told.out.strip()) == (0, str(folder / "report.html"))
    page = folder / "report.html"
    built = page.read_text()
    page.write_text("<script>evil()</script>")
    os.utime(page, (2**32, 2**32))
    assert json.loads(hvdctl("report", "open", folder.name, "--json", "--no-browser").out)["opened"] is False
    assert page.read_text() == built


def test_a_browser_is_only_opened_where_there_is_a_display(
    hvdctl: Hvdctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sample.write(tmp_path / "out", [sample.bench()])
    opened: list[str] = []

    def open_page(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", open_page)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    hvdctl("report", "open", str(folder))
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    hvdctl("report", "open", str(folder), "--no-browser")
    assert opened == []
    hvdctl("report", "open", str(folder))
    assert opened == [(folder / "report.html").as_uri()]


def test_report_on_the_command_line_says_what_is_wrong(hvdctl: Hvdctl, tmp_path: Path) -> None:
    for words, told in (
        (["open"], "cluster 'default' has no bench"),
        (["open", "yesterday"], "there is no bench 'yesterday'"),
        (["build", str(tmp_path)], "there is no results file"),
        (["build", "no/such"], "there is no results file no/such"),
    ):
        result = hvdctl("report", *words)
        assert result.code == 2
        assert told in result.err


def test_build_on_the_command_line_makes_it_anew(hvdctl: Hvdctl, tmp_path: Path) -> None:
    folder = sample.write(tmp_path / "out", [sample.bench()])
    (folder / "report.html").write_text("old")
    assert hvdctl("report", "build", str(folder / "results.jsonl")).out.strip() == str(folder / "report.html")
    assert "old" not in (folder / "report.html").read_text()[:10]
