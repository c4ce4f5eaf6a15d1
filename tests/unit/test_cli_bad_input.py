"""Whatever is wrong: exit code 2, the value and the valid form in the message, nothing created, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdctl.cluster import Cluster
from support import Hvdctl

LONG = "x" * 200


@pytest.fixture
def nothing_made(tmp_path: Path) -> Iterator[None]:
    yield
    assert not (tmp_path / "clusters").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nodes", "0"], ["nodes: 0 is not valid", "greater than or equal to 1"]),
        (["--nodes", "-3"], ["nodes: -3 is not valid", "greater than or equal to 1"]),
        (["--nodes", "100000"], ["nodes: 100000 is not valid", "less than or equal to 512"]),
        (["--nodes", "two"], ["'two' is not a whole number"]),
        (["--nodes", "2.5"], ["'2.5' is not a whole number"]),
        (["--cpus", "many"], ["'many' is not a number"]),
        (["--cpus", "nan"], ["cpus: nan is not valid"]),
        (["--slots", "0"], ["slots: 0 is not valid"]),
        (["--net", "fast"], ["net: 'fast' is not a link rate; write 100m, 1g, 10g"]),
        (["--memory", "lots"], ["memory: 'lots' is not a memory size; write 512m, 4g"]),
        (["--name", "my cluster"], ["name: 'my cluster' is not a cluster name; use 1 to 32 lower-case letters"]),
        (["--name", LONG], ["xxx...' is not a cluster name; use 1 to 32"]),
        (["--name", "../x"], ["name: '../x' is not a cluster name"]),
        (["--name", ""], ["name: '' is not a cluster name"]),
        (["--provider", "azure"], ["provider: 'azure' is not a provider; choose one of: local"]),
        (["--framework", "mxnet"], ["framework: 'mxnet' is not valid", "'pytorch' or 'tensorflow'"]),
        (["--share", "some/folder"], ["'some/folder' is not a share; write auto or the absolute path"]),
        (["--file", "gone.yml"], ["there is no file gone.yml"]),
        (["--no-such-flag"], ["--no-such-flag"]),
    ],
)
@pytest.mark.parametrize("verb", ["up", "plan"])
@pytest.mark.usefixtures("nothing_made")
def test_a_bad_flag(hvdctl: Hvdctl, verb: str, words: list[str], told: list[str]) -> None:
    result = hvdctl(verb, *words)
    assert result.code == 2, result.err
    for part in told:
        assert part in result.err
    assert LONG not in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("pair", ["NOVALUE", "=x", "2X=1", "A-B=1"])
@pytest.mark.usefixtures("nothing_made")
def test_a_bad_variable(hvdctl: Hvdctl, pair: str) -> None:
    result = hvdctl("up", "--env", pair)
    assert result.code == 2
    assert pair.partition("=")[0] in result.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("node: 4\n", "unknown key 'node'; did you mean 'nodes'?"),
        ("nodes: four\n", "nodes: 'four' is not valid; input should be a valid integer"),
        ("nodes: 4\nnodes: 5\n", "the key 'nodes' stands twice"),
        ("net: quick\n", "net: 'quick' is not a link rate"),
        ("name: My Cluster\n", "name: 'My Cluster' is not a cluster name"),
        ("nodes: [\n", "hvdctl.yml is not YAML in line"),
        ("? [a]\n: 1\n", "hvdctl.yml is not YAML"),
    ],
)
@pytest.mark.usefixtures("nothing_made")
def test_a_bad_file(hvdctl: Hvdctl, text: str, told: str) -> None:
    Path("hvdctl.yml").write_text(text)
    result = hvdctl("up")
    assert result.code == 2
    assert told in result.err
    assert "hvdctl.yml" in result.err
    assert Path("hvdctl.yml").read_text() == text


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--net", "fast"], "in --net"),
        (["--option", "firewal=false"], "in --option firewal; docs/providers.md"),
        (["--name", "My Cluster"], "in --name"),
    ],
)
@pytest.mark.usefixtures("nothing_made")
def test_a_bad_flag_beside_a_good_file(hvdctl: Hvdctl, words: list[str], place: str) -> None:
    Path("hvdctl.yml").write_text("provider: vm\noptions: {internet: false}\n")
    result = hvdctl("up", *words)
    assert result.code == 2
    assert place in result.err
    assert "hvdctl.yml" not in result.err
    assert "hvdctl init" not in result.err


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["ssh"],
        ["exec", "--", "ls"],
        ["run", "--", "ls"],
        ["scale", "--nodes", "3"],
        ["logs"],
        ["cancel"],
        ["push", "."],
        ["pull", "x"],
    ],
)
@pytest.mark.usefixtures("nothing_made")
def test_a_cluster_that_is_not_there(hvdctl: Hvdctl, words: list[str]) -> None:
    result = hvdctl(words[0], "--name", "gone", *words[1:])
    assert result.code == 2
    assert "'gone'" in result.err


@pytest.mark.parametrize("verb", ["status", "ssh", "down", "jobs", "logs", "check"])
@pytest.mark.usefixtures("nothing_made")
def test_a_name_that_leads_out_of_the_folder_is_refused_everywhere(hvdctl: Hvdctl, verb: str) -> None:
    result = hvdctl(verb, "--name", "../../etc")
    assert result.code == 2
    assert "'../../etc' is not a cluster name" in result.err


CORRUPT = {
    "spec.json": ["{", "[]", "", '{"nodes": 3}', '{"name": "demo", "nodes": "x"}'],
    "nodes.json": ["{", "[]", '{"nodes": [{"name": "node0"}]}', '{"nodes": 5}'],
    "phases.json": ["{", '{"configure": 5}'],
    "terraform/terraform.tfstate": ["{", "[]", "\x00\x00"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in CORRUPT.items() for text in texts])
@pytest.mark.parametrize("verb", ["up", "plan", "scale"])
def test_a_corrupt_file_of_a_cluster_is_named_and_nothing_is_lost(
    hvdctl: Hvdctl, cluster: Cluster, verb: str, name: str, text: str
) -> None:
    file = cluster.folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    before = {path: path.read_bytes() for path in cluster.folder.rglob("*") if path.is_file()}
    result = hvdctl(verb, "--name", "demo", "--nodes", "3")
    assert result.code == 2, result.err
    assert str(file) in result.err
    assert "defect" not in result.err
    for path, content in before.items():
        assert path.read_bytes() == content, path


@pytest.mark.parametrize("name", ["spec.json", "terraform/terraform.tfstate"])
def test_down_with_a_corrupt_file_is_refused_and_names_the_way_out(hvdctl: Hvdctl, cluster: Cluster, name: str) -> None:
    cluster.ssh_config.unlink()
    file = cluster.folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("{")
    result = hvdctl("down", "--name", "demo", "-y")
    assert result.code == 2
    assert str(file) in result.err
    assert "--force" in result.err
    assert file.read_text() == "{"


def test_a_state_without_a_spec_outlives_a_plan(hvdctl: Hvdctl, tmp_path: Path) -> None:
    state = Cluster("demo").terraform / "terraform.tfstate"
    state.parent.mkdir(parents=True)
    state.write_text("{")
    assert hvdctl("plan", "--name", "demo").code == 2
    assert state.read_text() == "{"


def test_all_that_is_wrong_is_told_at_once(hvdctl: Hvdctl) -> None:
    result = hvdctl("up", "--nodes", "0", "--net", "fast")
    assert "nodes: 0" in result.err
    assert "'fast'" in result.err


def test_errors_stay_off_stdout(hvdctl: Hvdctl) -> None:
    assert hvdctl("up", "--nodes", "0", "--json").out == ""


@pytest.mark.parametrize("words", [["logs", "first"], ["run", "--np", "all", "--", "x"], ["scale", "--nodes", "x"]])
def test_a_number_that_is_none_is_named(hvdctl: Hvdctl, cluster: Cluster, words: list[str]) -> None:
    result = hvdctl(words[0], "--name", "demo", *words[1:])
    assert result.code == 2
    assert "is not a whole number" in result.err


def test_an_unknown_verb_names_near_ones(hvdctl: Hvdctl) -> None:
    result = hvdctl("stauts")
    assert result.code == 2
    assert "stauts" in result.err


def test_a_home_that_is_no_folder_is_one_line(hvdctl: Hvdctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HVDCTL_HOME", str(tmp_path / "file" / "x"))
    result = hvdctl("status")
    assert result.code == 1
    assert result.err.startswith(f"error: Not a directory ({tmp_path / 'file'}")
    assert "HVDCTL_HOME" in result.err
    assert "defect" not in result.err


def test_a_defect_is_told_as_one_with_its_traceback_in_a_file(
    hvdctl: Hvdctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hvdctl import spec

    monkeypatch.setattr(spec, "schema", lambda: 1 / 0)
    result = hvdctl("schema")
    assert result.code == 1
    assert "ZeroDivisionError" in result.err
    assert "Traceback" not in result.err
    (log,) = (tmp_path / "cache" / "logs").iterdir()
    assert str(log) in result.err
    assert "Traceback" in log.read_text()


def test_an_interrupt_is_told(hvdctl: Hvdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    from hvdctl import spec

    def interrupt() -> dict[str, object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(spec, "schema", interrupt)
    result = hvdctl("schema")
    assert result.code == 130
    assert result.err.startswith("error: interrupted")


def test_json_errors_do_not_break_the_document(hvdctl: Hvdctl, cluster: Cluster) -> None:
    result = hvdctl("list", "--json")
    assert result.code == 4
    assert result.out == "" or json.loads(result.out)
