"""Numbers from ranks while they run, and their curves."""

from __future__ import annotations

import sys
from typing import Any

import hvd_cluster as hc
import numpy
import pytest
from notebook_head import Head


def test_every_record_of_every_rank_arrives(head: Head) -> None:
    def work() -> None:
        for step in range(50):
            hc.report(step=step, loss=1 / (step + 1))

    records: list[dict[str, Any]] = []
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        hc.run(work, live=records.append)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for rank in (0, 1):
        own = [record for record in records if record["rank"] == rank]
        assert [record["step"] for record in own] == list(range(50))
        assert own[1]["loss"] == 0.5
        assert own[0].keys() == {"rank", "seconds", "step", "loss"}


def test_report_does_nothing_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HVD_LIVE", raising=False)
    hc.report(step=1, loss="no number is looked at")


def test_what_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from hvd_cluster import telling

    monkeypatch.setattr(telling, "_known", [])
    monkeypatch.setenv("HVD_LIVE", str(tmp_path))
    monkeypatch.setenv("HVDCTL_RANK", "0")
    with pytest.raises(TypeError, match=r"report\(loss=\.\.\.\) takes a number, not list"):
        hc.report(step=1, loss=[1, 2])


def test_a_panel_for_each_name_and_a_curve_for_each_rank() -> None:
    plot = hc.LivePlot("loss", "rate", x="step")
    for step in range(3):
        for rank in (0, 1):
            plot({"rank": rank, "seconds": 0.1, "step": step, "loss": 3 - step})
    plot({"rank": 0, "seconds": 0.1, "step": 1, "rate": 7})
    loss, rate = plot.figure().axes
    assert [line.get_label() for line in loss.lines] == ["rank 0", "rank 1"]
    assert list(numpy.asarray(loss.lines[0].get_ydata())) == [3, 2, 1]
    assert (loss.get_title("left"), loss.get_xlabel()) == ("loss", "step")
    assert rate.lines[0].get_marker() == "o", "a single point is seen"
    plot.close()


def test_without_steps_time_goes_along_the_axis() -> None:
    plot = hc.LivePlot("loss")
    plot({"rank": 0, "seconds": 2.5, "loss": 1})
    panel = plot.figure().axes[0]
    assert (panel.get_xlabel(), list(numpy.asarray(panel.lines[0].get_xdata()))) == ("seconds", [2.5])


def test_a_plot_of_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="names of what is reported"):
        hc.LivePlot()


def test_a_notebook_has_one_picture_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    from hvd_cluster import figures
    from IPython import display

    shown: list[str] = []

    class Handle:
        def update(self, image: Any) -> None:
            shown.append("update")

    def first(image: Any, display_id: bool) -> Handle:
        assert image.data.startswith(b"\x89PNG")
        shown.append("display")
        return Handle()

    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    monkeypatch.setattr(display, "display", first)
    monkeypatch.setattr(figures, "_EVERY_S", 1000.0)
    plot = hc.LivePlot("loss")
    for step in range(20):
        plot({"rank": 0, "seconds": 0.0, "step": step, "loss": 1.0})
    assert shown == ["display"], "not once for each record"
    plot.close()
    plot.close()
    assert shown == ["display", "update"]


def test_a_name_that_nobody_reports_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    plot = hc.LivePlot("los")
    plot({"rank": 0, "seconds": 0.1, "step": 1, "loss": 2.0})
    plot.close()
    assert capsys.readouterr().err == "no rank reported 'los'; reported: loss, step\n"
