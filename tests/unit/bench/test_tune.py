"""The search for faster settings, on ranks whose speed depends on them as the test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from hvdctl import jobs, pipeline, profile
from hvdctl.bench import ranks, tune
from hvdctl.bench.plan import Layout, Point
from hvdctl.bench.session import PointFailed
from hvdctl.cluster import Cluster
from hvdctl.errors import HvdctlError, Interrupted, UsageError
from hvdctl.profile import Profile
from hvdctl.progress import Silent
from hvdctl.spec import Spec
from support import answer, make_nodes, stand

KEPT = Profile("mpi", 2, 32.0, 5.0, "2x2", "1g", "resnet50", 0.1, 0.05, 0.15)
START = tune.starting_point("convnet_cifar10", 8, Layout(2, 2), "real", 10**9)


class Ranks:
    def __init__(self, point: Point) -> None:
        self.purpose: object = point.session
        self.ready = True

    def close(self) -> None:
        self.ready = False


@pytest.fixture
def speed(
    cluster: Cluster, engine: FakeEngine, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Point], float]], None]:
    """Sets how fast each setting is."""
    stand(engine, "node0", "node1")
    answer(fake_nodes, "list", [])
    monkeypatch.setattr(pipeline, "relink", lambda *_: None)
    monkeypatch.setattr(ranks, "start", lambda _, point, pressed, env: Ranks(point))

    def use(of: Callable[[Point], float]) -> None:
        monkeypatch.setattr(ranks, "measure", lambda _session, point, *_: {"images_per_s": of(point)})

    return use


def search(cluster: Cluster, pressed: Callable[[], int] = lambda: 0) -> tune.Outcome:
    return tune.run(cluster, START, 2, Silent(), pressed)


def by_settings(point: Point) -> float:
    """MPI is faster, 32 MB a little more, and no cycle time matters."""
    return 100 * (1.3 if point.launcher == "horovod-mpi" else 1) * (1.1 if point.fusion_mb == 32 else 1)


def test_the_best_of_every_axis_is_kept_with_its_gain(cluster: Cluster, speed: Any) -> None:
    speed(by_settings)
    found = search(cluster)
    assert found.profile is not None
    assert (found.profile.launcher, found.profile.fusion_mb, found.profile.cycle_ms) == ("mpi", 32, None)
    assert found.gain == pytest.approx(0.43)
    assert Profile.of(cluster) == found.profile


def test_what_is_not_faster_every_time_is_not_kept(cluster: Cluster, speed: Any) -> None:
    rates = iter([100.0] + [130.0] + [100.0] * 8 + [100, 130, 100, 130, 100, 99])
    speed(lambda point: next(rates))
    found = search(cluster)
    assert found.profile is None
    assert found.gain_low == pytest.approx(-0.01)
    assert Profile.of(cluster) is None


def test_defaults_that_are_best_need_no_proof(cluster: Cluster, speed: Any) -> None:
    speed(lambda point: 100.0)
    found = search(cluster)
    assert (found.profile, found.gain) == (None, 0)
    assert len(found.tried) == 1 + 1 + 2 + 3 + 3


def test_a_setting_that_fails_is_passed_over(cluster: Cluster, speed: Any) -> None:
    def fragile(point: Point) -> float:
        if point.launcher == "horovod-mpi":
            raise PointFailed("rank 1 on node1 ended with exit code 1")
        return 100.0 if point.threads != 1 else 150.0

    speed(fragile)
    found = search(cluster)
    assert found.profile is not None
    assert (found.profile.launcher, found.profile.threads) == ("horovod", 1)
    assert any("ended with exit code 1" in (one.reason or "") for one in found.tried)


def test_defaults_that_fail_end_the_search(cluster: Cluster, speed: Any) -> None:
    def broken(point: Point) -> float:
        raise PointFailed("no memory")

    speed(broken)
    with pytest.raises(HvdctlError, match="the defaults can't be measured: no memory"):
        search(cluster)


def test_ctrl_c_leaves_the_profile_as_it_was(cluster: Cluster, speed: Any) -> None:
    KEPT.store(cluster)
    speed(by_settings)
    with pytest.raises(Interrupted):
        search(cluster, pressed=lambda: 1)
    assert Profile.of(cluster) == KEPT


def test_one_rank_alone_has_no_launcher_or_fusion_to_search() -> None:
    alone = replace(START, layout=Layout(1, 1))
    assert [axis for axis, _ in tune.axes(alone, 4)] == ["threads"]
    assert list(tune.axes(replace(alone, device="emulated:p100"), 4)) == []
    assert dict(tune.axes(START, 4))["threads"] == (1, 2, 4)


def asked(job: jobs.Job, kept: Profile | None = KEPT, spec: Spec | None = None) -> dict[str, Any]:
    return jobs.request(job, spec or Spec(), make_nodes(2, slots=2), "/shared/work/x", 4, kept)


def test_run_takes_the_profile_under_what_the_user_says() -> None:
    plain = asked(jobs.Job(["x"]))
    assert (plain["launcher"], plain["threads"]) == ("mpi", 2)
    assert plain["env"] == {"HOROVOD_FUSION_THRESHOLD": str(32 * 2**20), "HOROVOD_CYCLE_TIME": "5"}
    own = asked(jobs.Job(["x"], launcher="horovod", env={"HOROVOD_CYCLE_TIME": "1"}), spec=Spec(env={"A": "b"}))
    assert own["launcher"] == "horovod"
    assert own["env"]["HOROVOD_CYCLE_TIME"] == "1"
    assert own["env"]["A"] == "b"


def test_threads_are_for_ranks_that_lie_as_they_did_when_tuned() -> None:
    tuned = replace(KEPT, threads=3)
    assert asked(jobs.Job(["x"]), tuned)["threads"] == 3
    assert asked(jobs.Job(["x"], np=1), tuned)["threads"] == 4, "one rank alone has all cores"
    assert asked(jobs.Job(["x"], np=2), tuned)["threads"] == 2


def test_a_damaged_profile_is_named_with_the_way_out(cluster: Cluster) -> None:
    KEPT.store(cluster)
    (cluster.folder / "profile.json").write_text("{")
    with pytest.raises(UsageError, match=r"profile.json is not what hvdctl wrote") as told:
        Profile.of(cluster)
    assert "tune --reset" in told.value.hint
    assert profile.forget(cluster)
    assert not profile.forget(cluster)
