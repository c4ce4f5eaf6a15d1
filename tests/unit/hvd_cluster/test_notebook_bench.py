"""Benches from a notebook: the real agent, ranks that answer at once, hvdctl's own results and figures."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

import hvd_cluster as hc
import pytest
from hvd_cluster import calls, sweeps, talk
from hvd_cluster.runs import Guard
from hvdctl.bench import report, results, session
from notebook_head import Head, wait_for


@pytest.fixture(autouse=True)
def worker(head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "worker"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("bench_worker.py"), folder / "main.py")
    monkeypatch.setattr(talk, "WORKER", folder)
    monkeypatch.setattr(report, "build", lambda path: path / "report.html")


def test_a_bench_is_what_hvdctl_reads(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    made = hc.bench(batch=[8, 16])
    records = results.read(made.folder)
    assert made.folder.parent == head.share / "bench"
    assert results.whole(records)
    bench = results.bench(records)
    assert bench["cluster"]["name"] == "demo"
    assert bench["cluster"]["spec"]["env"] == ["FROM_SPEC"], "names only: values may be secrets"
    assert bench["cluster"]["one_machine"]
    points = results.points(records)
    assert [(p["nodes"], p["batch"], p["net"], p["link_bits"]) for p in points] == [
        (1, 8, 10**9, None),
        (1, 16, 10**9, None),
        (2, 8, 10**9, 10**9),
        (2, 16, 10**9, 10**9),
    ]
    assert {p["threads"] for p in points} == {max(1, (os.cpu_count() or 1) // 2)}, "the same at every point"
    assert [(one["nodes"], one["net"]) for one in results.of_kind(records, "allreduce")] == [(2, 10**9)]
    assert len(results.of_kind(records, "fit")) == 1
    assert [p["used_for_fit"] for p in results.of_kind(records, "prediction")] == [False] * 4, "so they can be checked"
    assert "4 of 4: convnet_cifar10 b16 2x1 1g" in (said := capsys.readouterr().out)
    assert "report.html" in said
    assert (head.left(), head.processes()) == ([], [])
    assert [row["command"] for row in head.records()] == ["python3 main.py hvdctl-bench notebook"] * 2

    told = made.points()
    assert told[2]["efficiency"] == pytest.approx(0.8)
    assert told[2]["predicted_low"] < told[2]["predicted_images_per_s"] < told[2]["predicted_high"]
    table = repr(made).splitlines()
    assert table[1].split("  ")[0] == "nodes"
    assert "80%" in table[4]
    assert "<table>" in made._repr_html_()
    assert "2 nodes" in made.findings()[0].replace("\xa0", " ")

    assert [one.id for one in hc.results()] == [made.id]
    assert "complete  4" in repr(hc.results())
    picture = hc.plot()
    assert "predicted by the cost model" in picture.caption
    assert picture._repr_mimebundle_()[0]["image/png"].startswith(b"\x89PNG")
    assert picture.save(head.share / "x.svg").read_text().startswith("<svg")
    with pytest.raises(ValueError, match=r"no figure of kind 'pie'; it has: .*throughput"):
        made.plot(kind="pie")
    with pytest.raises(ValueError, match=f"no bench 'gone'; there are: {made.id}"):
        hc.plot("gone")


def test_a_point_that_fails_is_kept_and_the_others_go_on() -> None:
    made = hc.bench(nodes=1, batch=[8, 13], micro=False)
    assert [(one["batch"], one["status"]) for one in made.points()] == [(8, "ok"), (13, "failed")]
    assert "failed: 13 is refused" in repr(made)


def test_an_interrupt_ends_the_ranks_and_keeps_what_was_measured(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.describe(env={"BENCH_STUCK": "1"})

    def interrupt() -> None:
        wait_for(lambda: list(head.runs.glob("*/stuck")), 60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        hc.bench(nodes=1)
    assert (head.records()[-1]["state"], head.processes(), head.left()) == ("cancelled", [], [])
    assert "interrupted  0" in repr(hc.results())


def test_without_benches_both_say_so() -> None:
    assert repr(hc.results()) == "no bench yet: bench() measures one"
    with pytest.raises(ValueError, match=r"there is no bench in .*bench\(\) measures one"):
        hc.plot()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": 3}, "nodes=3: nodes is a whole number from 1 to 2 here"),
        ({"nodes": []}, "nodes is a number or several"),
        ({"slots": 2}, "slots=2"),
        ({"batch": 0}, "batch=0"),
        ({"threads": 0}, "threads=0"),
        ({"model": "convnet"}, "no model 'convnet': there are convnet_cifar10"),
        ({"scaling": "up"}, "scaling is one of weak, strong, not 'up'"),
        ({"scaling": "strong", "batch": 9}, "2 ranks can't share 9 images evenly"),
        ({"max_seconds": 0}, "max_seconds=0"),
    ],
)
def test_what_cant_be_measured_is_refused(head: Head, given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hc.bench(**given)  # type: ignore[arg-type]
    assert not head.runs.exists()


def test_it_needs_pytorch(head: Head) -> None:
    head.describe(framework="tensorflow")
    with pytest.raises(hc.ClusterError, match="measures PyTorch; this cluster has tensorflow"):
        hc.bench()


def another(command: str) -> Guard:
    """A run of this name that goes on until it is released."""
    request = {"command": ["sleep", "60"], "user_command": command, "np": 1}
    request |= {"launcher": "horovod", "hosts": [["localhost", 1]], "env": {}, "workdir": "/"}
    return Guard(request, calls.private_folder())


@pytest.mark.parametrize("command", [session.OURS, session.NOTEBOOK])
def test_two_at_once_are_refused(head: Head, command: str) -> None:
    guard = another(command)
    with pytest.raises(hc.ClusterError, match="a bench is under way on this cluster, run 1"):
        hc.bench()
    guard.release(done=False)


def test_one_that_began_between_two_points_is_left_alone(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    guards = []

    def say(text: str) -> None:
        if text.startswith("2 of 2"):
            guards.append(another(session.OURS))

    monkeypatch.setattr(sweeps, "_say", say)
    with pytest.raises(hc.ClusterError, match="a bench is under way on this cluster, run 2"):
        hc.bench(nodes=[1, 2], micro=False)
    assert head.records()[-1]["state"] in ("starting", "running")
    (guard,) = guards
    guard.release(done=False)
    assert [point["nodes"] for point in hc.results()[0].points()] == [1]
