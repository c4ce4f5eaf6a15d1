"""No stored command line has a secret in it, and there are ways to give one that no command line has at all."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from agent_node import Node
from hvdctl import redact
from hvdctl.cluster import Cluster, command_line
from hvdctl.spec import Spec
from support import Hvdctl, answer


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("up --env TOKEN=hush", "up --env TOKEN=..."),
        ("up --env=TOKEN=hush -y", "up --env=TOKEN=... -y"),
        ("up --env 'TOKEN=hush hush' -y", "up --env TOKEN=... -y"),
        ("up --env TOKEN=a=hush", "up --env TOKEN=..."),
        ("up --env TOKEN --env-file .env", "up --env TOKEN --env-file .env"),
        ("up --option password=hush --option zone=a", "up --option password=... --option zone=a"),
        ("up --option=password=hush --option=zone=a", "up --option=password=... --option=zone=a"),
        ("run --env A=hush -- python t.py --env B=kept", "run --env A=... -- python t.py --env B=kept"),
        ("run -- env A=hush B=hush python t.py lr=0.1", "run -- env A=... B=... python t.py lr=0.1"),
        ("run -- /usr/bin/env -i A=hush python", "run -- /usr/bin/env -i A=... python"),
        ("run -- t.py --api-key=hush --wandb_token=hush", "run -- t.py --api-key=... --wandb_token=..."),
        ("exec WANDB_API_KEY=hush dbPassword=hush", "exec WANDB_API_KEY=... dbPassword=..."),
        ("run -- t.py --tokenizer=bert --max_tokens=5 key=1", "run -- t.py --tokenizer=bert --max_tokens=5 key=1"),
    ],
)
def test_values_that_may_be_secret_are_hidden_and_others_are_not(given: str, shown: str) -> None:
    words = shlex.split(given)
    hidden = redact.hvdctl(words)
    assert (shlex.join(hidden), len(hidden)) == (shown, len(words))


def test_a_lock_keeps_the_line_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["hvdctl", "up", "--env", "TOKEN=hush hush"])
    with Cluster("demo").locked(command_line()):
        held = json.loads((Cluster("demo").folder / "lock").read_text())
    assert held["command"] == "up --env TOKEN=..."


def test_a_traceback_that_quotes_the_command_hides_its_secrets(
    hvdctl: Hvdctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hvdctl import envfile

    def fail(given: list[str], files: list[Path]) -> dict[str, str]:
        raise RuntimeError(f"a command failed: {given}")

    monkeypatch.setattr(envfile, "collect", fail)
    assert hvdctl("run", "--env", "TOKEN=hush-hush", "--", "x").code == 1
    (log,) = (tmp_path / "cache" / "logs").iterdir()
    assert "a command failed: ['TOKEN=...']" in log.read_text()
    assert "hush-hush" not in log.read_text()


def test_what_others_may_see_of_a_spec_has_no_values() -> None:
    spec = Spec(env={"TOKEN": "hush"})
    assert spec.shown()["env"] == {"TOKEN": "..."}
    assert spec.stored()["env"] == {"TOKEN": "hush"}


def test_a_request_has_the_whole_command_and_what_may_be_shown(
    hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path
) -> None:
    answer(fake_nodes, "submit", {"id": 3})
    assert hvdctl("run", "--name", "demo", "--detach", "--", "env", "A=hush", "x").code == 0
    asked = json.loads((fake_nodes / "submit.request.node0").read_text())
    assert asked["command"] == ["env", "A=hush", "x"]
    assert (asked["shown"], asked["user_command"]) == (["env", "A=...", "x"], "env A=... x")


def test_the_record_of_a_run_hides_what_the_rank_is_given(tmp_path: Path) -> None:
    node = Node(tmp_path)
    script = "import os, sys; print('got', os.environ['A_KEY'], sys.argv[1], 'HVDCTL_COMMAND' in os.environ)"
    command = ["env", "A_KEY=hush", "python3", "-c", script, "--token=hushed"]
    record = node.finished(node.submit(*command, np=1, shown=redact.words(command), user_command=None))
    assert record["state"] == "succeeded", record
    assert "got hush --token=hushed False" in node.log(record["id"])
    assert (record["command"][1], record["command"][-1]) == ("A_KEY=...", "--token=...")
    assert "hush" not in node.log(record["id"], "run.json")


@pytest.mark.parametrize("verb", [["run", "--detach"], ["up", "--image", "none:1"], ["plan", "--image", "none:1"]])
def test_a_variable_that_is_not_set_here_is_named(hvdctl: Hvdctl, cluster: Cluster, verb: list[str]) -> None:
    words = ["--", "x"] if verb[0] == "run" else []
    refused = hvdctl(*verb, "--name", "demo", "--env", "NO_SUCH_TOKEN", *words)
    assert refused.code == 2, refused.err
    assert "--env: NO_SUCH_TOKEN is not set in this environment" in refused.err


def test_variables_come_from_here_and_from_files(
    hvdctl: Hvdctl, cluster: Cluster, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(fake_nodes, "submit", {"id": 3})
    monkeypatch.setenv("FROM_HERE", "here = there")
    monkeypatch.setenv("TOO", "from here too")
    Path("first.env").write_text(
        "\ufeff# comment\n\nexport A=1\r\nB = two words  # not this\nC='#  $x \\n'\n"
        'D="a\\n\\"b\\"" # nor this\nTOO\nE=\nF=a#b\n'
    )
    Path("second.env").write_text("A=over\nG=x\n")
    words = ["--env-file", "first.env", "--env-file", "second.env", "--env", "FROM_HERE", "--env", "G=flag"]
    assert hvdctl("run", "--name", "demo", "--detach", *words, "--", "x").code == 0
    asked = json.loads((fake_nodes / "submit.request.node0").read_text())
    assert asked["env"] == {
        "A": "over",
        "B": "two words",
        "C": "#  $x \\n",
        "D": 'a\n"b"',
        "E": "",
        "F": "a#b",
        "G": "flag",
        "TOO": "from here too",
        "FROM_HERE": "here = there",
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"A=1\n=hush\n", "line 2: that is not the name"),
        (b"hush hush\n", "line 1: that is not the name"),
        (b"A='hush\n", "line 1: the quote does not end"),
        (b'A="hush" hush\n', "line 1: the quote does not end"),
        (b"NO_SUCH_TOKEN\n", "NO_SUCH_TOKEN is not set"),
        (b"A=\xff", "it is not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_is_refused_without_its_values(
    hvdctl: Hvdctl, cluster: Cluster, content: bytes | None, told: str
) -> None:
    if content is not None:
        Path("x.env").write_bytes(content)
    refused = hvdctl("run", "--name", "demo", "--env-file", "x.env", "--", "x")
    assert (refused.code, told in refused.err) == (2, True), refused.err
    assert "hush" not in refused.err


@pytest.mark.parametrize("word", ["=hush", "2=hush", "sk-hush", ""])
def test_a_wrong_word_is_refused_without_its_value(hvdctl: Hvdctl, cluster: Cluster, word: str) -> None:
    refused = hvdctl("run", "--name", "demo", "--env", word, "--", "x")
    assert (refused.code, "name of an environment variable" in refused.err) == (2, True), refused.err
    assert "hush" not in refused.err
