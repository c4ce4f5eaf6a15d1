"""`hvdctl import` as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hvdctl import keys
from hvdctl.importers.scan import fingerprint
from hvdctl.spec import load
from support import Hvdctl

SAMPLES = Path(__file__).parents[2] / "inventory" / "samples"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user of whom nothing is known, outside of any job."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    for name in ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "PBS_NODEFILE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: Callable[[Path], None]) -> Callable[[str], str]:
    """Gives a host a key to show, whether it is asked by ssh-keyscan or, through a jump host, by ssh."""
    folder, programs = tmp_path / "shown", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    scan = (
        '#!/bin/sh\necho "# $7:$4 SSH-2.0-OpenSSH"\ncat "$SHOWN/$7" || { echo "$7: Connection refused" >&2; exit 1; }\n'
    )
    through = (
        "#!/bin/sh\n"
        'cp "$2" "$SHOWN/config"\n'
        "host=$(sed -n '0,/HostName/s/^HostName //p' \"$2\")\n"
        'file=$(sed -n \'0,/UserKnownHostsFile/s/^UserKnownHostsFile "\\(.*\\)"$/\\1/p\' "$2")\n'
        'cat "$SHOWN/$host" >"$file" || { rm "$file"; echo "stdio forwarding failed" >&2; exit 255; }\n'
        'echo "me@$host: Permission denied (publickey)." >&2\n'
        "exit 255\n"
    )
    for name, text in (("ssh-keyscan", scan), ("ssh", through)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("SHOWN", str(folder))
    on_path(programs)

    def show(host: str) -> str:
        key = keys.ensure(tmp_path / "keys" / host).public
        (folder / host).write_text(f"{host} {key}\n")
        return key

    return show


def test_a_file_becomes_a_spec_that_hvdctl_reads(hvdctl: Hvdctl) -> None:
    result = hvdctl("import", str(SAMPLES / "virtual-wall.rspec"), "--name", "wall")
    assert result.code == 0, result.err
    assert result.out == "wrote hvdctl.yml: 3 nodes; `hvdctl up` makes the cluster\n"
    text = Path("hvdctl.yml").read_text()
    assert text.startswith("# Written by `hvdctl import virtual-wall.rspec`;")
    spec = load(Path("hvdctl.yml"), {})
    assert (spec.name, spec.provider, spec.nodes, spec.net) == ("wall", "static", 3, 10**9)


@pytest.mark.parametrize("verb", [["import", str(SAMPLES / "pbs_nodefile")], ["init"]])
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, verb: list[str]) -> None:
    """A limit on the size of files stands for the disk."""
    spec = tmp_path / "full" / "hvdctl.yml"
    spec.parent.mkdir()
    spec.write_text("nodes: 7\n")
    words = ["prlimit", "--fsize=20", sys.executable, "-c", "from hvdctl import cli; cli.main()", *verb, "--force"]
    refused = subprocess.run(words, cwd=spec.parent, capture_output=True, text=True, check=False)
    assert (refused.returncode, "hvdctl.yml can't be written: File too large" in refused.stderr) == (2, True)
    assert spec.read_text() == "nodes: 7\n"
    assert list(spec.parent.iterdir()) == [spec]


def test_a_file_that_is_written_over_keeps_its_place_and_mode(hvdctl: Hvdctl, tmp_path: Path) -> None:
    kept = tmp_path / "kept.yml"
    kept.write_text("nodes: 7\n")
    kept.chmod(0o640)
    Path("hvdctl.yml").symlink_to(kept)
    assert hvdctl("import", str(SAMPLES / "pbs_nodefile"), "--force").code == 0
    assert Path("hvdctl.yml").is_symlink()
    assert (kept.stat().st_mode & 0o777, yaml.safe_load(kept.read_text())["slots"]) == (0o640, 4)
    usual = os.umask(0o027)
    assert hvdctl("import", str(SAMPLES / "pbs_nodefile"), "--output", "new.yml").code == 0
    assert os.umask(usual) == 0o027
    assert Path("new.yml").stat().st_mode & 0o777 == 0o640


def test_an_existing_file_is_not_written_over(hvdctl: Hvdctl) -> None:
    Path("hvdctl.yml").write_text("nodes: 7\n")
    refused = hvdctl("import", str(SAMPLES / "pbs_nodefile"))
    assert refused.code == 2
    assert "hvdctl.yml exists" in refused.err
    assert Path("hvdctl.yml").read_text() == "nodes: 7\n"
    assert hvdctl("import", str(SAMPLES / "pbs_nodefile"), "--output", "other.yml").code == 0
    assert yaml.safe_load(Path("other.yml").read_text())["slots"] == 4
    assert hvdctl("import", str(SAMPLES / "pbs_nodefile"), "--force").code == 0
    assert yaml.safe_load(Path("hvdctl.yml").read_text())["slots"] == 4
    refused = hvdctl("import", str(SAMPLES / "pbs_nodefile"), "-o", "no/such/folder.yml")
    assert refused.code == 2
    assert "no/such/folder.yml can't be written" in refused.err


def test_to_stdout_and_as_json(hvdctl: Hvdctl, tmp_path: Path) -> None:
    key = tmp_path / "login"
    key.write_text("x")
    words = ("import", str(SAMPLES / "lab.ini"), "--group", "gpu", "--user", "me", "--key", str(key), "-o", "-")
    printed = hvdctl(*words)
    assert printed.code == 0, printed.err
    spec = yaml.safe_load(printed.out)
    assert spec["options"]["key"] == str(key)
    assert {host["user"] for host in spec["options"]["hosts"]} == {"me"}
    assert not Path("hvdctl.yml").exists()
    data = json.loads(hvdctl(*words, "--json").out)
    note = "host keys of 3 hosts are not known here: add --scan, or log in to each once with ssh"
    assert data == {"file": None, "spec": spec, "notes": [note], "fingerprints": {}}


def test_in_a_job_its_hosts_are_taken(hvdctl: Hvdctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[08-10]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "4(x3)")
    spec = yaml.safe_load(hvdctl("import", "-o", "-").out)
    assert (spec["nodes"], spec["slots"]) == (3, 4)
    assert [host["address"] for host in spec["options"]["hosts"]] == ["gpu08", "gpu09", "gpu10"]
    assert "--group g: only an Ansible inventory has groups" in hvdctl("import", "--group", "g").err
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    monkeypatch.setenv("PBS_NODEFILE", str(SAMPLES / "pbs_nodefile"))
    assert yaml.safe_load(hvdctl("import", "-o", "-").out)["nodes"] == 3


def test_with_nothing_to_import_it_says_what_can_be_given(hvdctl: Hvdctl) -> None:
    result = hvdctl("import")
    assert result.code == 2
    assert "there is nothing to import" in result.err
    for what in ("jFed or GENI manifest", "Ansible inventory", "SLURM_JOB_NODELIST", "PBS_NODEFILE"):
        assert what in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone.rspec"], "there is no file gone.rspec"),
        (["bad.rspec"], "bad.rspec is not XML: syntax error: line 1"),
        (["gpu[3-1]"], "'3-1' in [3-1] is not a number or a range"),
        (["n1,n2", "--name", "Big Name"], "'Big Name' is not a cluster name"),
        (["n1,n2", "--user", "a b"], "'a b' is not a login name"),
        (["n1,n2", "--key", "gone"], "--key: there is no file"),
        (["n1,n2", "--group", "gpu"], "--group gpu: only an Ansible inventory has groups"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(hvdctl: Hvdctl, words: list[str], said: str) -> None:
    Path("bad.rspec").write_text("not XML")
    result = hvdctl("import", *words)
    assert result.code == 2
    assert said in result.err.splitlines()[0]
    assert len(result.err.splitlines()) == 2
    assert not Path("hvdctl.yml").exists()


def test_notes_go_to_stderr(hvdctl: Hvdctl) -> None:
    node = '<node client_id="{0}"><services><login authentication="ssh-keys" hostname="{0}"/></services></node>'
    nodes = "".join(map(node.format, "ab"))
    Path("m.xml").write_text(f'<rspec xmlns="http://www.geni.net/resources/rspec/3">{nodes}</rspec>')
    result = hvdctl("import", "m.xml", "-o", "-")
    assert result.err.startswith("note: no link joins the nodes")
    assert yaml.safe_load(result.out)["nodes"] == 2


def test_the_login_key_is_the_private_one_by_its_whole_path(hvdctl: Hvdctl, tmp_path: Path) -> None:
    for name in ("k", "k.pub"):
        (tmp_path / name).write_text("x")
    (tmp_path / "below").mkdir()
    words = ("import", "n1,n2", "-o", "-", "--key")
    assert yaml.safe_load(hvdctl(*words, f"{tmp_path}/below/../k").out)["options"]["key"] == str(tmp_path / "k")
    refused = hvdctl(*words, str(tmp_path / "k.pub"))
    assert refused.code == 2
    assert f"k.pub' is the public key; name the private one, {tmp_path}/k\n" in refused.err


# Host keys.


def test_hosts_without_a_known_key_are_told(hvdctl: Hvdctl, home: Path, tmp_path: Path) -> None:
    told = "note: host keys of {} are not known here: add --scan --force, or log in to each once with ssh"
    assert told.format("2 hosts") in hvdctl("import", "n1,n2").err.splitlines()
    (home / ".ssh" / "known_hosts").write_text(f"n1 {keys.ensure(tmp_path / 'one').public}\n")
    assert told.format("1 host") in hvdctl("import", "n1,n2", "--force").err.splitlines()
    assert "note" not in hvdctl("import", "n1,", "--force").err


def test_scan_writes_keys_and_shows_their_fingerprints(
    hvdctl: Hvdctl, shown: Callable[[str], str], tmp_path: Path
) -> None:
    wanted = {name: shown(name) for name in ("n1", "n2")}
    result = hvdctl("import", "me@n1,me@n2:2222", "--scan")
    assert result.code == 0, result.err
    hosts = load(Path("hvdctl.yml"), {}).options["hosts"]
    assert [host["host_key"] for host in hosts] == [[wanted["n1"]], [wanted["n2"]]]
    told = result.err.splitlines()
    for line, name in zip(told, ("me@n1", "me@[n2]:2222"), strict=False):
        key = wanted["n1" if "n1" in name else "n2"]
        file = tmp_path / "one.pub"
        file.write_text(key + "\n")
        print_ = subprocess.run(["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True).stdout.split()[
            1
        ]
        assert line == f"{name}: ssh-ed25519 {print_}"
    assert told[-1].startswith("Compare these with")
    assert "not known" not in result.err


def test_scan_goes_through_jump_hosts_that_are_known(
    hvdctl: Hvdctl, home: Path, shown: Callable[[str], str], tmp_path: Path
) -> None:
    (home / ".ssh" / "known_hosts").write_text("gate ssh-ed25519 AAAA\n")
    key = shown("inner")
    Path("lab.ini").write_text("[gpu]\ninner ansible_user=me ansible_ssh_common_args='-J gate'\n")
    assert hvdctl("import", "lab.ini", "--scan").code == 0
    assert load(Path("hvdctl.yml"), {}).options["hosts"][0]["host_key"] == [key]
    first, gate = (tmp_path / "shown" / "config").read_text().split("Host *")
    assert "ProxyJump gate" in first
    assert "PreferredAuthentications none" in first
    assert "StrictHostKeyChecking yes" in gate, "a jump host is never taken on trust"
    assert f'UserKnownHostsFile "{home}/.ssh/known_hosts"' in gate


def test_a_host_that_shows_no_key_is_named_and_nothing_is_written(hvdctl: Hvdctl, shown: Callable[[str], str]) -> None:
    shown("n1")
    Path("lab.ini").write_text("[gpu]\nn1\nn2\nn3 ansible_ssh_common_args='-J gate'\n")
    result = hvdctl("import", "lab.ini", "--user", "me", "--scan")
    assert result.code == 1
    assert "no host key from me@n2 (" in result.err
    assert "me@n3 via gate (" in result.err
    assert "me@n1" not in result.err
    assert "the host key of gate on the way is not known here: log in to it once with ssh" in result.err
    assert not Path("hvdctl.yml").exists()


def test_of_several_jump_hosts_those_that_are_not_known_are_named(
    hvdctl: Hvdctl, home: Path, shown: Callable[[str], str], tmp_path: Path
) -> None:
    key = keys.ensure(tmp_path / "gate").public
    (home / ".ssh" / "known_hosts").write_text(f"[gate]:2200 {key}\n")
    result = hvdctl("import", "n1,", "--scan", "--proxy", "me@gate:2200,me@[2001:db8::1]:99999,10.0.0.300")
    assert "the host key of [2001:db8::1]:99999, 10.0.0.300 on the way is not known here" in result.err
    (home / ".ssh" / "known_hosts").write_text(f"gate {key}\n")
    assert "see that these are up" in hvdctl("import", "n1,", "--scan", "--proxy", "gate").err


def test_a_key_that_is_not_the_known_one_is_refused(
    hvdctl: Hvdctl, home: Path, shown: Callable[[str], str], tmp_path: Path
) -> None:
    key = shown("n1")
    old = keys.ensure(tmp_path / "keys" / "old").public
    (home / ".ssh" / "known_hosts").write_text(f"n1 {old}\n")
    result = hvdctl("import", "me@n1,", "--scan")
    assert result.code == 2
    assert f"me@n1 shows another host key than your known_hosts has: {fingerprint(key)}" in result.err
    assert not Path("hvdctl.yml").exists()
    (home / ".ssh" / "known_hosts").write_text(f"n1 {key}\n")
    assert hvdctl("import", "me@n[1]", "--scan").code == 0
