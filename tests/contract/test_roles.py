"""Every role obeys the same rules, and playbooks list roles only."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
ROLES = sorted(folder.name for folder in (PLAYBOOKS / "roles").iterdir() if folder.is_dir())
BOOKS = sorted(file.name for file in PLAYBOOKS.glob("*.yml"))
SCRIPTS = sorted(PLAYBOOKS.glob("roles/*/files/*.sh"))
# What a task may hold beside its module.
KEYWORDS = {
    "name", "register", "changed_when", "failed_when", "no_log", "when", "loop", "loop_control", "become", "notify",
    "vars", "tags", "environment", "delegate_to", "run_once", "until", "retries", "delay", "args", "check_mode",
    "block", "rescue", "always", "async", "poll", "throttle",
}  # fmt: skip
PLAY = {"name", "hosts", "gather_facts", "become", "any_errors_fatal", "serial", "strategy"}
COMMANDS = {f"ansible.builtin.{name}" for name in ("raw", "command", "shell", "script")}

each = pytest.mark.parametrize("role", ROLES)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def specs(role: str) -> dict[str, dict[str, Any]]:
    found: dict[str, Any] = read(PLAYBOOKS / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    return found


def options(role: str) -> dict[str, Any]:
    return specs(role)["main"]


def tasks(role: str, pattern: str = "*.yml") -> list[dict[str, Any]]:
    files = [file for part in ("tasks", "handlers") for file in (PLAYBOOKS / "roles" / role / part).glob(pattern)]
    return [task for file in files for task in flat(read(file) or [])]


def flat(listed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in listed:
        yield task
        for part in ("block", "rescue", "always"):
            yield from flat(task.get(part, []))


def machine_roles() -> list[str]:
    """The roles that turn a machine into a Horovod host, in their order."""
    (play,) = [play for play in read(PLAYBOOKS / "site.yml") if play["hosts"] == "machines"]
    return [role["role"] for role in play["roles"]]


@each
def test_a_role_describes_itself_and_every_variable(role: str) -> None:
    readme = (PLAYBOOKS / "roles" / role / "README.md").read_text()
    for entry, told in specs(role).items():
        assert (PLAYBOOKS / "roles" / role / "tasks" / f"{entry}.yml").exists()
        assert told["short_description"]
        for name, option in told["options"].items():
            assert option["description"], name
            assert option["type"], name
            assert f"`{name}`" in readme, f"{name} is not in the README"


@each
def test_variables_carry_the_name_of_their_role(role: str) -> None:
    known = set(options(role)["options"])
    defaults = set(read(PLAYBOOKS / "roles" / role / "defaults" / "main.yml") or {})
    inner = set(read(PLAYBOOKS / "roles" / role / "vars" / "main.yml") or {})
    for task in tasks(role):
        inner |= {task["register"]} if "register" in task else set()
        inner |= set(task.get("ansible.builtin.set_fact", {}))
        inner |= {name for name in task.get("vars", {}) if not name.startswith("ansible_")}
    assert {name for name in known | defaults | inner if not name.startswith(f"{role}_")} == set()
    assert defaults <= known


@each
def test_defaults_and_argument_specs_say_the_same(role: str) -> None:
    defaults = read(PLAYBOOKS / "roles" / role / "defaults" / "main.yml") or {}
    for name, option in options(role)["options"].items():
        assert option.get("default") == defaults.get(name), name
        assert bool(option.get("required")) == (name not in defaults), name
    for told in specs(role).values():
        for name, option in told["options"].items():
            main = options(role)["options"][name]
            assert (option["type"], option.get("default")) == (main["type"], main.get("default")), name


@each
def test_tasks_are_named_and_modules_have_their_full_names(role: str) -> None:
    assert tasks(role)
    for task in tasks(role):
        assert task.get("name", "")[:1].isupper(), task
        for key in set(task) - KEYWORDS:
            # No other collection is installed with hvdctl.
            assert re.fullmatch(r"ansible\.builtin\.[a-z_0-9]+", key), f"{key} in {task['name']}"


@each
def test_a_command_says_whether_it_changed_something(role: str) -> None:
    for task in tasks(role):
        if COMMANDS & set(task):
            assert "changed_when" in task, task["name"]


@pytest.mark.parametrize("book", BOOKS)
def test_a_playbook_lists_roles_only(book: str) -> None:
    for play in read(PLAYBOOKS / book):
        assert play["name"]
        if "ansible.builtin.import_playbook" in play:
            assert (PLAYBOOKS / play["ansible.builtin.import_playbook"]).exists()
            continue
        # An entry of `roles` can't name another entry point, so that the inverse is a list of imports.
        part = "tasks" if book == "teardown.yml" else "roles"
        assert set(play) <= PLAY | {part}
        if part == "roles":
            assert {role["role"] for role in play["roles"]} <= set(ROLES)
        for task in play.get("tasks", []):
            assert set(task) == {"name", "ansible.builtin.import_role"}
            assert task["ansible.builtin.import_role"]["tasks_from"] == "undo"


def test_every_role_is_used() -> None:
    used = {role["role"] for book in BOOKS for play in read(PLAYBOOKS / book) for role in play.get("roles", [])}
    assert used == set(ROLES)


def test_ansible_takes_every_playbook() -> None:
    done = ansible("--syntax-check", *BOOKS, inventory=PLAYBOOKS.parent / "inventory" / "example.yml")
    assert done.returncode == 0, done.stderr


def test_strict_host_key_checking_is_on() -> None:
    settings = (PLAYBOOKS / "ansible.cfg").read_text()
    assert re.search(r"^host_key_checking = True$", settings, re.MULTILINE)
    assert "StrictHostKeyChecking=no" not in settings


# What is done to machines is undone.


def test_the_inventory_is_checked_before_anything_else_and_for_all_machines() -> None:
    (play,) = [play for play in read(PLAYBOOKS / "site.yml") if play["hosts"] == "machines"]
    assert machine_roles()[0] == "preflight"
    assert play["any_errors_fatal"] is True


def test_teardown_undoes_the_roles_in_reverse() -> None:
    (play,) = read(PLAYBOOKS / "teardown.yml")
    undone = [task["ansible.builtin.import_role"]["name"] for task in play["tasks"]]
    have = [role for role in machine_roles() if (PLAYBOOKS / "roles" / role / "tasks" / "undo.yml").exists()]
    assert undone == have[::-1]
    # One machine that can't be reached must not keep the others.
    assert "any_errors_fatal" not in play


@pytest.mark.parametrize("role", machine_roles())
def test_a_role_of_machines_says_what_stays(role: str) -> None:
    readme = (PLAYBOOKS / "roles" / role / "README.md").read_text()
    told = readme.split("\n## After teardown\n")[1]
    assert "stay" in told
    # What writes units or folders of its own has an inverse; packages stay.
    own = "".join(file.read_text() for file in SCRIPTS if file.parts[-3] == role)
    makes = re.search(r"^\s*(if )?(unit|folder) ", own, re.MULTILINE)
    assert not makes or "undo" in specs(role)


def test_an_undo_leaves_machines_of_other_clusters_alone() -> None:
    undone = {file for role in machine_roles() for file in scripts_of(tasks(role, "undo.yml"), role)}
    assert len(undone) >= 6
    for file in undone:
        code = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert code[0] == '[ -d "$HVD_ETC" ] || exit 0', file


def test_keys_are_neither_logged_nor_on_a_command_line() -> None:
    (task,) = [task for task in tasks("horovod") if "no_log" in task]
    assert task["no_log"] is True
    assert "horovod_texts" in task["ansible.builtin.command"]["stdin"]
    variables = read(PLAYBOOKS / "roles" / "horovod" / "vars" / "main.yml")
    users = {name for name, value in variables.items() if "horovod_texts" in str(value)}
    assert users == {"horovod_sums"}
    assert "hash" in variables["horovod_sums"]
    for other in tasks("horovod"):
        assert other == task or "horovod_texts" not in str(other)


# The scripts themselves, as far as they run without a machine of their own.


def test_a_script_on_a_machine_has_a_shell_and_says_what_it_does() -> None:
    assert SCRIPTS
    for file in [*SCRIPTS, PLAYBOOKS / "files" / "prelude.sh"]:
        first, second = file.read_text().splitlines()[:2]
        assert first == "#!/bin/sh", file  # shellcheck looks at files that say so
        assert second.startswith("# "), file


def test_a_file_is_written_in_place_and_only_when_it_is_another(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "hosts"
    assert shell(f"put {file} 644 'one\ntwo'").stdout == f"changed: {file}\n"
    node = file.stat().st_ino
    assert file.read_text() == "one\ntwo\n"
    assert shell(f"put {file} 644 'one\ntwo' || echo same").stdout == "same\n"
    assert shell(f"if put {file} 600 'three'; then echo stale; fi").stdout == f"changed: {file}\nstale\n"
    assert (file.read_text(), file.stat().st_mode & 0o777, file.stat().st_ino) == ("three\n", 0o600, node)
    assert shell(f"drop {file} {file}").stdout == f"changed: {file} removed\n"
    assert not file.exists()


def test_a_file_that_cannot_be_written_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    done = shell(f"put {tmp_path}/taken/file 644 text || true; echo went on")
    assert done.returncode == 1
    assert "went on" not in done.stdout
    assert done.stderr.endswith(f"can't write {tmp_path}/taken/file\n")


def test_the_probe_tells_about_a_machine_in_one_line() -> None:
    script = (PLAYBOOKS / "roles" / "preflight" / "files" / "probe.sh").read_text()
    env = {"PATH": "/usr/bin:/bin", "SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 2022"}
    argv = ["sh", "-c", f"HVD_ADDRESS=203.0.113.7\n{script}"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["port"], told["interface"], told["network"]) == ("2022", "", "203.0.113.7/32")
    assert told["free"] > 2**20
    assert told["python"] in {"yes", "no"}


MACHINE = {"hvd_node": "node0", "hvd_role": "head", "hvd_private_address": "203.0.113.7", "hvd_slots": 1, "hvd_gpus": 0}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hvd_private_address": "here"}, "hvd_private_address of node0.machine is 'here', which is no IPv4 address"),
        ({"hvd_role": "worker"}, "the first machine is the head, all others are workers"),
        ({"hvd_slots": 0}, "hvd_slots of node0.machine is 0, not 1 or more"),
        ({"hvd_gpus": 99}, "none of its interfaces has the address 203.0.113.7"),
        ({"hvd_gpus": 99}, "NVIDIA GPUs, 99 are asked for"),
        ({"nfs_share": "/shared/data"}, "the share /shared/data can't be mounted on /shared"),
        ({}, "it does not tell the port of the SSH connection"),
    ],
)
def test_preflight_names_the_machine_and_the_way_out(wrong: dict[str, Any], said: str, tmp_path: Path) -> None:
    host = {"ansible_connection": "local", "hvd_cluster": "demo"} | MACHINE | wrong
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"machines": {"hosts": {"node0.machine": host}}, "containers": {"hosts": {}}}))
    done = ansible("site.yml", inventory=inventory)
    assert done.returncode == 2
    assert "node0.machine" in done.stdout
    assert said in done.stdout
    assert "base :" not in done.stdout, "something ran after preflight"


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_gpus_that_nobody_asked_for_are_left_alone(words: tuple[str, ...], tmp_path: Path) -> None:
    book = tmp_path / "nvidia.yml"
    play = {"name": "Try", "hosts": "machines", "gather_facts": False, "roles": [str(PLAYBOOKS / "roles" / "nvidia")]}
    book.write_text(yaml.safe_dump([play]))
    host = {"ansible_connection": "local", "hvd_cluster": "demo"} | MACHINE
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"machines": {"hosts": {"node0.machine": host}}}))
    done = ansible(*words, str(book), inventory=inventory)
    assert done.returncode == 0, done.stdout
    assert re.search(r"changed=0 .* failed=0 .* skipped=2", done.stdout), done.stdout


def test_a_machine_is_started_anew_only_where_that_is_allowed() -> None:
    (task,) = [task for task in tasks("nvidia") if "ansible.builtin.reboot" in task]
    assert task["when"].startswith("nvidia_reboot | bool and ")
    assert options("nvidia")["options"]["nvidia_reboot"]["default"] is False
    # All other roles do without.
    assert not [role for role in ROLES for task in tasks(role) if "ansible.builtin.reboot" in task and role != "nvidia"]


def test_the_undo_of_the_share_asks_neither_for_head_nor_setting() -> None:
    assert [task for task in tasks("nfs", "undo.yml") if "when" in task] == []


def test_small_files_travel_as_one_tar_and_only_once(tmp_path: Path) -> None:
    pack, copy = stage("pack"), stage("copy")
    share, local = tmp_path / "shared", (str(tmp_path / "scratch"), str(tmp_path / "home"))
    source = share / "photos"
    (source / "cats").mkdir(parents=True)
    for number in range(20):
        (source / "cats" / f"{number}.jpg").write_bytes(bytes([number]) * 1000)

    packed = pack(str(source), "1048576", share=str(share))
    assert (packed["files"], packed["bytes"], packed["changed"]) == (20, 20000, True)
    assert Path(packed["tar"]).is_file()
    assert pack(str(source), "1048576", share=str(share)) == packed | {"changed": False}

    first = copy(str(source), json.dumps(packed), "", local=local)
    assert first["changed"]
    assert "20 files, 0.0 MB" in first["said"]
    assert first["target"] == str(tmp_path / "home" / "photos")  # there is no /scratch here
    assert sorted(file.name for file in Path(first["target"], "cats").iterdir()) == sorted(
        f"{number}.jpg" for number in range(20)
    )
    assert not copy(str(source), json.dumps(packed), "", local=local)["changed"]

    # Another state of the source is another tar, and the old one is gone.
    (source / "cats" / "0.jpg").write_bytes(b"new")
    again = pack(str(source), "1048576", share=str(share))
    assert again["tar"] != packed["tar"]
    assert not Path(packed["tar"]).exists()
    assert copy(str(source), json.dumps(again), "", local=local)["changed"]
    assert Path(first["target"], "cats", "0.jpg").read_bytes() == b"new"


def test_large_files_are_copied_as_they_are(tmp_path: Path) -> None:
    share = tmp_path / "shared"
    (share / "set").mkdir(parents=True)
    (share / "set" / "a").write_bytes(b"a" * 3000)
    (share / "set" / "b").write_bytes(b"b" * 3000)
    packed = stage("pack")(str(share / "set"), "1000", share=str(share))
    assert packed["tar"] is None
    target = tmp_path / "disk" / "set"
    assert stage("copy")(str(share / "set"), json.dumps(packed), str(target))["changed"]
    assert (target / "b").read_bytes() == b"b" * 3000


def test_staging_takes_nothing_from_elsewhere_and_overwrites_nothing(tmp_path: Path) -> None:
    script = PLAYBOOKS / "roles" / "staging" / "files" / "stage.py"
    outside = subprocess.run([sys.executable, script, "pack", "/etc", "1"], capture_output=True, text=True, check=False)
    assert outside.returncode == 1
    assert "/etc is not below /shared" in json.loads(outside.stdout)["error"]

    packed = json.dumps({"stamp": "s", "files": 1, "bytes": 1, "tar": None})
    (tmp_path / "mine").mkdir()
    argv: list[str | Path] = [sys.executable, script, "copy", str(tmp_path), packed, str(tmp_path / "mine")]
    taken = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert taken.returncode == 1
    assert "choose another staging_target" in json.loads(taken.stdout)["error"]
    assert (tmp_path / "mine").is_dir()


def test_two_data_sets_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    pack, copy = stage("pack"), stage("copy")
    share, disk = tmp_path / "shared", str(tmp_path / "scratch")
    packed = {}
    for owner in ("a", "b"):
        (share / owner / "data").mkdir(parents=True)
        for number in range(2):
            (share / owner / "data" / str(number)).write_text(owner)
        packed[owner] = pack(str(share / owner / "data"), "1000", share=str(share))
    assert Path(packed["a"]["tar"]).exists(), "the second one has removed it"
    copied = copy(str(share / "a" / "data"), json.dumps(packed["a"]), "", local=(disk,))
    with pytest.raises(Exception, match=r"holds a copy of .*/a/data: choose another staging_target for .*/b/data"):
        copy(str(share / "b" / "data"), json.dumps(packed["b"]), "", local=(disk,))
    assert Path(copied["target"], "0").read_text() == "a"
    other = copy(str(share / "b" / "data"), json.dumps(packed["b"]), f"{disk}/b-data", local=(disk,))
    assert Path(other["target"], "0").read_text() == "b"


@pytest.mark.parametrize("small", ["1", "1000000"])
def test_a_name_that_is_not_utf_8_is_staged_as_it_is(tmp_path: Path, small: str) -> None:
    share, odd = tmp_path / "shared", os.fsdecode(b"caf\xe9")
    (share / "set" / odd).mkdir(parents=True)
    for name in (odd, "plain"):
        (share / "set" / odd / name).write_text("x")
    packed = stage("pack")(str(share / "set"), small, share=str(share))
    assert packed["files"] == 2
    target = tmp_path / "disk" / "set"
    assert stage("copy")(str(share / "set"), json.dumps(packed), str(target))["changed"]
    assert sorted(os.fsencode(path.name) for path in (target / odd).iterdir()) == [b"caf\xe9", b"plain"]


def stage(name: str) -> Callable[..., dict[str, Any]]:
    found: Callable[..., dict[str, Any]] = runpy.run_path(str(PLAYBOOKS / "roles" / "staging" / "files" / "stage.py"))[
        name
    ]
    return found


def scripts_of(listed: list[dict[str, Any]], role: str) -> list[Path]:
    """The scripts that these tasks look up, but for the prelude."""
    names = re.findall(r"lookup\('ansible\.builtin\.file', '([a-z]+\.sh)'\)", str(listed).replace("\\'", "'"))
    return [PLAYBOOKS / "roles" / role / "files" / name for name in names if name != "prelude.sh"]


def shell(code: str) -> subprocess.CompletedProcess[str]:
    """Code after the prelude, as a role's script runs."""
    prelude = (PLAYBOOKS / "files" / "prelude.sh").read_text()
    argv = ["sh", "-c", f"HVD_CLUSTER=demo\n{prelude}\n{code}"]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def ansible(*words: str, inventory: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).parent / "ansible-playbook"
    env = {"ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}
    env |= {"PATH": "/usr/bin:/bin", "HOME": str(inventory.parent), "ANSIBLE_LOCALHOST_WARNING": "false"}
    argv: list[str | Path] = [tool, "-i", inventory, *words]
    return subprocess.run(argv, cwd=PLAYBOOKS, env=env, capture_output=True, text=True, check=False)
