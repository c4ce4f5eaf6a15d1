from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hvdctl.errors import UsageError
from hvdctl.gpulab.emulator.faults import Fault, Faults, bent, parse

JOB = {"uuid": "u", "name": "n", "state": {"status": "RUNNING", "resources": {"sshPort": 1}}}


def written(file: Path, entries: object) -> Path:
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(json.dumps(entries))
    os.utime(file, ns=(before + 10**9, before + 10**9))
    return file


def statuses(faults: Faults, *calls: tuple[str, str]) -> list[int | None]:
    return [fault.status if (fault := faults.take(*call)) else None for call in calls]


def test_an_entry_applies_as_often_as_it_says(tmp_path: Path) -> None:
    faults = Faults(written(tmp_path / "f", [{"method": "GET", "path": "^jobs$", "status": 500, "times": 2}]))
    get, other = ("GET", "jobs"), ("GET", "jobs/x")
    assert statuses(faults, get, other, ("POST", "jobs"), get, get) == [500, None, None, 500, None]


def test_one_time_is_the_default_and_minus_one_is_always(tmp_path: Path) -> None:
    faults = Faults(written(tmp_path / "f", [{"status": 503}, {"status": 502, "times": -1}]))
    assert statuses(faults, *[("PUT", "x")] * 4) == [503, 502, 502, 502]


def test_a_rewritten_file_starts_anew(tmp_path: Path) -> None:
    entry = [{"status": 500}]
    faults = Faults(written(tmp_path / "f", entry))
    assert statuses(faults, ("GET", "a"), ("GET", "a")) == [500, None]
    written(tmp_path / "f", entry)
    assert statuses(faults, ("GET", "a"), ("GET", "a")) == [500, None]


def test_a_file_may_come_later_and_go(tmp_path: Path) -> None:
    file = tmp_path / "f"
    faults = Faults(file)
    assert faults.take("GET", "a") is None
    written(file, [{"status": 500, "times": -1}])
    assert faults.take("GET", "a")
    file.unlink()
    assert faults.take("GET", "a") is None


def test_a_file_that_cannot_be_read_leaves_the_earlier_ones(tmp_path: Path) -> None:
    said: list[str] = []
    faults = Faults(written(tmp_path / "f", [{"status": 500, "times": -1}]), said.append)
    written(tmp_path / "f", [{"statsu": 500}])
    assert statuses(faults, ("GET", "a"), ("GET", "a")) == [500, 500]
    assert "statsu" in said[0]
    assert said[1:] == ["fault: GET a: status 500"] * 2, "each use is told"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[{statsu: 5}]", "entry 1: statsu: there is no such key"),
        ("[{}, {drop: never}]", "entry 2: drop: "),
        ("[{path: '('}]", "entry 1: path: .*is not a regular expression"),
        ("{status: 5}", "it is not a list"),
        ("[", "neither YAML nor JSON"),
    ],
)
def test_a_bad_entry_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "f").write_text(content)
    with pytest.raises(UsageError, match=complaint):
        parse(tmp_path / "f")


def test_every_job_of_an_answer_is_bent() -> None:
    fault = Fault(state="EXPLODED", extra={"later": 1, "state": {"resources": {"new": 2}}})
    wanted = {
        "uuid": "u",
        "name": "n",
        "later": 1,
        "state": {"status": "EXPLODED", "resources": {"sshPort": 1, "new": 2}},
    }
    assert bent(JOB, fault) == wanted
    assert bent({"items": [JOB, JOB]}, fault) == {"items": [wanted, wanted]}
    assert bent([{"clusterId": 1}], fault) == [{"clusterId": 1}]
    assert JOB["state"] == {"status": "RUNNING", "resources": {"sshPort": 1}}
