"""What a person writes means what it looks like, and no file of a person's ends in a traceback."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hvdctl import yamltext
from hvdctl.cluster import Cluster
from hvdctl.spec import load, read_file
from support import Hvdctl

NINES = "9" * 5000
DOUBLED = "k0: &k0 [x, x]\n" + "".join(f"k{n}: &k{n} [*k{n - 1}, *k{n - 1}]\n" for n in range(1, 30))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-4", -4),
        ("+0", 0),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        # YAML 1.1 reads these as 90, 8, 16, 1000, booleans and dates.
        ("1:30", "1:30"),
        ("010", "010"),
        ("0b10000", "0b10000"),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("2024-02-31", "2024-02-31"),
        ("2024-13-45", "2024-13-45"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        (NINES, NINES),
        (f"1e{NINES}", f"1e{NINES}"),
        ("'4'", "4"),
        ("2ms", "2ms"),
    ],
)
def test_words_mean_what_they_mean_in_yaml_1_2(text: str, value: Any) -> None:
    found = yamltext.load(f"x: {text}\n")["x"]
    assert (found, type(found)) == (value, type(value))


def test_values_of_env_stay_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "hvdctl.yml"
    file.write_text("env: {VERSION: 1.10, MODE: 0755, RATE: 1e-3, START: 1:30, DAY: 2024-02-31, YES: yes, N: 4}\n")
    assert load(file, {}).env == {
        "VERSION": "1.10",
        "MODE": "0755",
        "RATE": "1e-3",
        "START": "1:30",
        "DAY": "2024-02-31",
        "YES": "yes",
        "N": "4",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: 1:30\n", "nodes: '1:30' is not valid"),
        ("nodes: 010\n", "nodes: '010' is not valid"),
        ("jupyter: yes\n", "jupyter: 'yes' is not valid"),
        (f"nodes: {NINES}\n", "nodes: '999"),
        (f"net: {NINES}\n", "net: '999"),
        (f"memory: {NINES}g\n", "memory: '999"),
        (f"layout: {NINES}x1\n", "layout: '999"),
        ("nodes: " + "[" * 5000 + "\n", "nested too deeply"),
        ("nodes: " + "[" * 200 + "]" * 200 + "\n", "nodes: ["),
        ("options: &a {b: *a}\n", "it refers to itself"),
        (DOUBLED, "more than 100000 values"),
        ("nodes: !!int x\n", "is not YAML"),
        ("nodes: !!timestamp 2024-02-31\n", "is not YAML"),
        ("nodes: !!binary x\n", "is not YAML"),
    ],
)
@pytest.mark.parametrize("verb", [["plan"], ["status"], ["down", "-y"]])
def test_a_file_of_a_person_is_no_defect(hvdctl: Hvdctl, text: str, told: str, verb: list[str]) -> None:
    Path("hvdctl.yml").write_text(text)
    refused = hvdctl(*verb)
    # `down` needs no more than the name; there is no engine that it could ask about that.
    assert refused.code in ((2, 4) if verb[0] == "down" else (2,)), refused.err
    assert "defect" not in refused.err
    assert len(refused.err) < 1000
    if verb == ["plan"]:
        assert told in refused.err
    assert not Cluster("default").folder.exists()


def test_a_date_that_is_none_is_the_name_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("image: 2024-13-45\n")
    assert read_file(tmp_path / "x.yml") == {"image": "2024-13-45"}


@pytest.mark.parametrize("flag", ["--batch", "--nodes", "--slots", "--net"])
@pytest.mark.parametrize("digits", [25, 400, 5000])
def test_a_prediction_of_absurd_numbers_is_refused(hvdctl: Hvdctl, flag: str, digits: int) -> None:
    refused = hvdctl("predict", flag, "9" * digits)
    assert refused.code == 2, refused.err
    assert "defect" not in refused.err
    assert len(refused.err) < 500


@pytest.mark.parametrize(
    "words",
    [
        ["--option", "x=2024-02-31"],
        ["--option", f"x={NINES}"],
        ["--option", "x=" + "[" * 5000],
        ["--net", f"{NINES}g"],
        ["--memory", f"{NINES}g"],
        ["--memory", "9999999t"],
        ["--layout", f"{NINES}x{NINES}"],
        ["--nodes", NINES],
        ["--cpus", "nan"],
        ["--cpus", "inf"],
    ],
)
def test_a_flag_of_a_person_is_no_defect(hvdctl: Hvdctl, words: list[str]) -> None:
    refused = hvdctl("plan", "--provider", "vm", *words)
    assert refused.code == 2, refused.err
    assert "defect" not in refused.err
    assert not Cluster("default").folder.exists()
