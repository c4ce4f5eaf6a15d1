"""A short part of `make fuzz` with a fixed seed, the fuzzer's own checks, and what it has found so far."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from hvdctl import profile
from hvdctl.cluster import Cluster
from hvdctl.errors import UsageError
from support import Hvdctl, answer

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import fuzz
import fuzz_box
import fuzz_targets
from hypothesis import strategies as st

# Ansible takes a second for each inventory, figures take more: both are left to `make fuzz`.
QUICK = [one for one in fuzz_targets.targets() if one.name not in {"inventories", "results"}]


@pytest.fixture(autouse=True)
def no_callback_stays() -> Iterator[None]:
    """Hypothesis measures garbage collections for ever; a Ctrl-C in its callback would be lost to a later test."""
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before


@pytest.mark.parametrize("target", QUICK, ids=lambda one: one.name)
def test_odd_inputs_end_in_words_and_make_nothing(target: fuzz_targets.Target) -> None:
    with fuzz_box.boxed() as box:
        assert fuzz.batch(box, target, 16, 8, Counter()) == ""


def test_a_defect_and_a_leftover_are_found_with_the_smallest_input(capsys: pytest.CaptureFixture[str]) -> None:
    def check(box: fuzz_box.Box, data: int) -> None:
        box.clean()
        box.call("schema")
        if data > 10:
            (box.home / "left").mkdir(parents=True)
            box.call("plan", "--nodes", "0")
            raise AssertionError("a defect")

    with fuzz_box.boxed() as box:
        problem = fuzz.batch(box, fuzz_targets.Target("numbers", st.integers(0, 1000), check, 1), 1, 100, Counter())
    assert "a defect" in problem
    assert "input: 11" in problem


def test_a_refusal_that_makes_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl import spec

    def template() -> str:
        (Path.cwd() / "made").mkdir()
        raise UsageError("no")

    monkeypatch.setattr(spec, "template", template)
    with fuzz_box.boxed() as box:
        box.clean()
        with pytest.raises(AssertionError, match=r"changed .*made"):
            box.call("init")


def test_a_hang_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl import spec

    def schema() -> dict[str, object]:
        try:
            time.sleep(30)
        except Exception:
            return {}
        return {}

    monkeypatch.setattr(spec, "schema", schema)
    monkeypatch.setattr(fuzz_box, "SECONDS", 0.2)
    with fuzz_box.boxed() as box:
        box.clean()
        with pytest.raises(AssertionError, match="takes more than"):
            box.call("schema")


# What it found.


def test_force_leaves_no_folder_of_a_cluster_that_never_was(hvdctl: Hvdctl) -> None:
    failed = hvdctl("down", "-y", "--force")
    assert failed.code == 4
    assert not Cluster("default").folder.exists()


def test_many_hosts_in_one_word_are_no_name_of_a_file(hvdctl: Hvdctl) -> None:
    many = ",".join(f"gpu{n:03}.example.org" for n in range(100))
    done = hvdctl("import", "-o", "-", "--json", many)
    assert json.loads(done.out)["spec"]["nodes"] == 100, done.err
    refused = hvdctl("import", "-o", "-", "x" * 300)
    assert (refused.code, "File name too long" in refused.err) == (2, True)


def test_a_name_that_is_too_long_for_a_file_is_no_defect(hvdctl: Hvdctl) -> None:
    refused = hvdctl("init", "x" * 300)
    assert (refused.code, "File name too long" in refused.err) == (2, True)
    assert "defect" not in refused.err


@pytest.mark.parametrize("provider", ["[]", "{}", "[[local]]", "1", "null"])
def test_a_provider_that_is_no_word_is_refused(hvdctl: Hvdctl, provider: str) -> None:
    Path("hvdctl.yml").write_text(f"provider: {provider}\n")
    refused = hvdctl("plan")
    assert (refused.code, "is not a provider; choose one of" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize("change", [{"fusion_mb": []}, {"threads": "many"}, {"cycle_ms": 1e400}, {"launcher": None}])
def test_a_profile_of_another_shape_is_named(cluster: Cluster, change: dict[str, object]) -> None:
    (cluster.folder / "profile.json").write_text(json.dumps(fuzz_box.PROFILE))
    assert profile.Profile.of(cluster) is not None
    (cluster.folder / "profile.json").write_text(json.dumps({**fuzz_box.PROFILE, **change}))
    with pytest.raises(UsageError, match=r"profile\.json is not what hvdctl wrote"):
        profile.Profile.of(cluster)


@pytest.mark.parametrize("bits", [None, "fast", [], True])
def test_a_damaged_measurement_is_none(
    hvdctl: Hvdctl, cluster: Cluster, bits: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def observe(cluster: str, nodes: list[str] | None = None) -> dict[str, str]:
        return {"node0": "running", "node1": "running"}

    monkeypatch.setattr("hvdctl.sites.local.observe", observe)
    measured = {"source": "node0", "target": "node1", "bits": 9e8, "asked": 10**9}
    cluster.complete("link", 1, digest="d", measured=measured)
    assert "Link node0 to node1" in hvdctl("status", "--name", "demo").out
    cluster.complete("link", 1, digest="d", measured={**measured, "bits": bits})
    told = hvdctl("status", "--name", "demo")
    assert (told.code, "Link" in told.out) == (0, False), told.err


@pytest.mark.parametrize(
    "record", [{"id": None}, {"duration_s": []}, {"state": 7}, {"started": 1e400}, {"user_command": {}}]
)
def test_a_run_record_of_another_shape_is_no_defect(
    hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path, record: dict[str, object]
) -> None:
    answer(fake_nodes, "list", [])
    (cluster.runs / "1").mkdir(parents=True)
    (cluster.runs / "1" / "run.json").write_text(json.dumps({**fuzz_box.RUN, **record}))
    told = hvdctl("jobs", "--name", "demo")
    assert told.code in {0, 2}
    assert "defect" not in told.err


def test_a_pull_for_no_cluster_makes_no_folder(hvdctl: Hvdctl) -> None:
    assert hvdctl("pull", "x", "results").code == 2
    assert not Path("results").exists()


@pytest.mark.parametrize("change", [{"name": None}, {"ssh_port": []}, {"slots": "many"}, {"address": 7}])
def test_a_node_of_another_shape_is_named(
    hvdctl: Hvdctl, cluster: Cluster, engine: FakeEngine, change: dict[str, object]
) -> None:
    file = cluster.folder / "nodes.json"
    nodes = json.loads(file.read_text())["nodes"]
    file.write_text(json.dumps({"nodes": [nodes[0], {**nodes[1], **change}]}))
    refused = hvdctl("status", "--name", "demo")
    assert (refused.code, f"nodes.json is not what hvdctl wrote: {next(iter(change))} of a node" in refused.err) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    "change",
    [{"start_s": []}, {"link_bits": "x"}, {"fusion_mb": {}}, {"cycle_ms": []}, {"overhead": "x"}, {"reason": 7}],
)
def test_a_point_of_another_shape_is_named(hvdctl: Hvdctl, change: dict[str, object]) -> None:
    records = fuzz_box.few_records()
    index = next(n for n, record in enumerate(records) if record["kind"] == "point")
    changed = [*records[:index], {**records[index], **change}, *records[index + 1 :]]
    Path("results.jsonl").write_text(fuzz_box.lines(changed))
    refused = hvdctl("report", "build", "results.jsonl")
    assert (refused.code, f"{next(iter(change))} of the point can't be" in refused.err) == (2, True), refused.err
    assert [path.name for path in Path().iterdir()] == ["results.jsonl"]
