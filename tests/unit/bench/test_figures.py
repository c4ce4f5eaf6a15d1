"""Every figure that the records allow and no other; readable, labelled, the same each time."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bench_sample as sample
import pytest
from hvdctl.bench import figures
from hvdctl.bench.figures import Figure, Pictures

Drawn = dict[str, tuple[Figure, Pictures]]


def draw(records: list[dict[str, Any]]) -> Drawn:
    return {figure.name: (figure, figure.pictures()) for figure in figures.build(records)}


@pytest.fixture(scope="module")
def cpu() -> Drawn:
    return draw(sample.cpu_records())


def texts(svg: str) -> list[str]:
    found = ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    return [text.replace("\u00a0", " ").replace("\u202f", " ") for text in found]


def both(drawn: Drawn) -> list[tuple[Figure, str]]:
    return [(figure, svg) for figure, pictures in drawn.values() for svg in (pictures.wide, pictures.narrow)]


def test_the_figures_of_a_whole_bench(whole: Drawn) -> None:
    assert [name for name in whole if "vgg16" in name] == ["throughput-vgg16", "efficiency-vgg16", "split-vgg16"]
    assert {figure.kind for figure, _ in whole.values() if figure.model == "resnet50"} == {
        "throughput",
        "efficiency",
        "split",
        "layout",
        "launcher",
        "scaling",
    }
    assert [name for name, (figure, _) in whole.items() if not figure.model] == ["allreduce", "links", "timeline"]


def test_axes_with_several_values_get_a_figure(cpu: Drawn) -> None:
    assert set(cpu) == {f"{kind}-resnet50" for kind in ("throughput", "efficiency", "split", "data", "threads")}


def test_what_is_emulated_says_so_in_the_figure(whole: Drawn, cpu: Drawn) -> None:
    for figure, svg in both(whole):
        label = [text for text in texts(svg) if "emulated P100, time dilation" in text]
        assert len(label) == (figure.kind not in {"allreduce", "links"}), figure.name
    assert "emulated P100, time dilation 3× to 30×" in texts(whole["throughput-vgg16"][1].wide)
    assert "emulated P100, time dilation 30×" in texts(whole["launcher-resnet50"][1].narrow)
    assert not [text for _, svg in both(cpu) for text in texts(svg) if "emulated" in text]
    assert whole["throughput-vgg16"][0].factors == (3.0, 30.0)
    assert whole["throughput-vgg16"][0].emulated
    assert not cpu["throughput-resnet50"][0].emulated


def test_emulated_without_dilation_says_that(tmp_path: Path) -> None:
    points = [sample.point("vgg16", 32, n, None, random.Random(1)) for n in (1, 2)]
    (figure, *_) = figures.build([sample.bench(), *points])
    assert "emulated P100, no time dilation" in texts(figure.pictures().wide)


def test_ideal_and_predicted_are_named_where_they_are_drawn(whole: Drawn, cpu: Drawn) -> None:
    for svg in (whole["throughput-vgg16"][1].wide, whole["efficiency-vgg16"][1].narrow):
        assert {"ideal", "predicted", "failed", "batch 32", "batch 64", "batch 96", "1 Gbit/s"} <= set(texts(svg))
    assert {"predicted", "failed"}.isdisjoint(texts(cpu["throughput-resnet50"][1].wide))


def test_parts_of_a_step_are_named(whole: Drawn) -> None:
    said = texts(whole["split-vgg16"][1].narrow)
    assert {"compute", "communication not hidden", "waiting for other ranks"} <= set(said)
    assert said.count("96") == 2 * 5 - 1  # a bar for each size and rate; one point failed


def test_the_slowest_pair_is_named_and_every_number_shown(whole: Drawn) -> None:
    figure, pictures = whole["links"]
    assert "node2 to node1, 610 Mbit/s, 61 % of 1 Gbit/s" in figure.caption.replace("\u00a0", " ")
    assert "610" in texts(pictures.wide)
    assert len([text for text in texts(pictures.narrow) if re.fullmatch(r"\d{3}", text)]) == 12


def test_a_large_matrix_is_drawn_without_numbers_but_with_a_scale() -> None:
    record = sample.links(random.Random(1), count=20)
    (figure,) = figures.build([sample.bench(), record])
    said = texts(figure.pictures().narrow)
    assert "node19" in said and "Mbit/s" in said
    assert "610" not in said


def test_a_sample_of_pairs_says_so_and_has_room_for_its_names() -> None:
    (figure,) = figures.build([sample.bench(), sample.sampled_links(random.Random(1), 100)])
    caption = figure.caption.replace("\u202f", " ")
    assert "A sample: 200 of 9 900 pairs were measured; the others are blank" in caption
    pictures = figure.pictures()
    for svg in (pictures.wide, pictures.narrow):
        named = Counter(text for text in texts(svg) if text.startswith("node"))
        assert "node0" in named and 10 <= len(named) < 40, "names would cover each other"
    (whole,) = figures.build([sample.bench(), sample.links(random.Random(1))])
    assert "sample" not in whole.caption


def test_no_text_is_smaller_than_nine_points(whole: Drawn, cpu: Drawn) -> None:
    for figure, svg in both(whole) + both(cpu):
        sizes = [float(size) for size in re.findall(r"(?:font-size:|font:[^;\"]*?)\s*(\d+(?:\.\d+)?)px", svg)]
        assert len(sizes) >= 5
        assert min(sizes) >= 9, figure.name


def test_the_two_widths(whole: Drawn) -> None:
    for figure, pictures in whole.values():
        wide, narrow = (
            float(re.search(r'viewBox="0 0 (\S+)', svg)[1])  # type: ignore[index]
            for svg in (pictures.wide, pictures.narrow)
        )
        assert narrow == pytest.approx(3.8 * 72)
        assert narrow < wide <= 9 * 72, figure.name


def test_ids_are_the_page_s_only_ones_and_references_hold(whole: Drawn) -> None:
    seen: set[str] = set()
    for _, svg in both(whole):
        ids = re.findall(r'\sid="([^"]+)"', svg)
        assert len(ids) == len(set(ids))
        assert seen.isdisjoint(ids)
        assert {*re.findall(r"url\(#([^)]+)\)", svg), *re.findall(r'href="#([^"]+)"', svg)} <= set(ids)
        seen |= set(ids)


def test_the_same_records_make_the_same_pictures(whole: Drawn) -> None:
    again = next(figure for figure in figures.build(sample.records()) if figure.name == "efficiency-vgg16")
    assert again.pictures() == whole["efficiency-vgg16"][1]


def test_files_of_each_figure(tmp_path: Path) -> None:
    drawn = figures.build([sample.bench(), sample.links(random.Random(1))])
    figures.save(drawn, tmp_path / "figures")
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"links.png", "links.svg"}
    assert (tmp_path / "figures" / "links.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    ElementTree.fromstring((tmp_path / "figures" / "links.svg").read_text())


def test_no_efficiency_without_a_baseline() -> None:
    points = [sample.point("vgg16", 32, n, 10**9, random.Random(1)) for n in (2, 4)]
    found = {figure.kind: figure for figure in figures.build([sample.bench(), *points])}
    assert set(found) == {"throughput", "split"}
    assert "ideal" not in texts(found["throughput"].pictures().wide)


def test_one_point_is_a_figure_and_none_is_not() -> None:
    one = sample.point("vgg16", 32, 1, None, random.Random(1))
    assert "throughput-vgg16" in draw([sample.bench(), one])
    assert figures.build([sample.bench(), sample.failed(one, "gone")]) == []
    assert figures.build([sample.bench()]) == []


def test_a_single_rank_that_was_measured_once_starts_the_curve_of_every_rate() -> None:
    chance = random.Random(1)
    points = [sample.point("vgg16", 32, 1, 10**9, chance)]
    points += [sample.point("vgg16", 32, n, net, chance) for net in (10**9, 10**10) for n in (2, 4)]
    figure = figures.build([sample.bench(), *points])[0]
    assert sorted((one["net"], one["ranks"]) for one in figure.points) == [
        (net, ranks) for net in (10**9, 10**10) for ranks in (1, 2, 4)
    ]


def test_many_ranks_and_many_panels_can_be_drawn() -> None:
    chance = random.Random(1)
    nets = (10**9, 10**9 * 5, 10**10, 10**9 * 25, None)
    points = [sample.point("vgg16", 32, n, net, chance) for net in nets for n in (1, 2, 16, 64, 128)]
    said = texts(figures.build([sample.bench(), *points])[0].pictures().wide)
    assert {"1 Gbit/s", "25 Gbit/s", "link not limited", "128"} <= set(said)


def test_help_does_not_wait_for_matplotlib() -> None:
    script = "import sys, hvdctl.cli; print([m for m in ('matplotlib', 'numpy', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
