"""What a user writes reaches the nodes as it is: Ansible takes none of it for a template, ssh none for a setting."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hvdctl import access, configure, inventory, jobs, keys, machines, pipeline, ssh, verbatim
from hvdctl.cluster import Cluster, write
from hvdctl.errors import HvdctlError, UsageError
from hvdctl.importers.scan import scan
from hvdctl.progress import Silent
from hvdctl.sites.hosts import Host
from hvdctl.spec import Spec
from ssh_server import SshServer, serving
from support import IMAGE, Hvdctl, make_nodes

needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the nodes' interpreter")


class Loader(yaml.SafeLoader):
    """Reads what Ansible marks as no template."""


def text_of(loader: Loader, node: yaml.ScalarNode) -> object:
    return loader.construct_scalar(node)


Loader.add_constructor("!unsafe", text_of)


def evil(mark: Path) -> str:
    """A text that makes this file wherever it is evaluated as a template."""
    return f"/x{{{{ lookup('pipe', 'touch {mark}') }}}}"


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "a-command-has-run"


@pytest.fixture
def ready(cluster: Cluster, fake_nodes: Path) -> Cluster:
    hosts = inventory.inventory("demo", cluster.nodes(), cluster.ssh_config)
    write(cluster.inventory, verbatim.dump(hosts))
    return cluster


def arrived(cluster: Cluster, variables: dict[str, Any]) -> Any:
    """The variables as a task of a real play sends them to a node."""
    told = "{" + ", ".join(f"'{name}': {name}" for name in variables) + "}"
    task = {"ansible.builtin.raw": f"printf %s {{{{ {told} | to_json | quote }}}}", "register": "said"}
    # What a node answers is no template either.
    again = {"ansible.builtin.raw": "printf %s {{ kept | quote }}", "vars": {"kept": "{{ said.stdout }}"}}
    book = cluster.folder / "book.yml"
    book.write_text(yaml.safe_dump([{"hosts": "head", "gather_facts": False, "tasks": [task, again]}]))
    answers: dict[str, dict[str, Any]] = {}
    configure.play(cluster, str(book), variables, lambda _: None, answers=answers)
    return answers["node0"]


@pytest.mark.parametrize("seed", range(20))
def test_every_value_comes_back_from_the_file_as_it_was(seed: int) -> None:
    dice = random.Random(seed)
    letters = string.printable + "\u00e9\u2028\U0001f600{}%#\\\x85\x00\x1b"
    texts = ["".join(dice.choices(letters, k=dice.randrange(30))) for _ in range(50)]
    texts += [
        "{{ 7*7 }}",
        "{% raw %}",
        "!unsafe x",
        "null",
        "12",
        "true",
        "2024-01-01",
        "- a",
        "&a",
        "*a",
        "#jinja2: x",
    ]
    values = {"texts": texts, "nested": {"a": [texts, None, True, 1, 1.5]}}
    assert yaml.load(verbatim.dump(values), Loader) == values


def test_text_that_can_be_no_template_stays_as_people_write_it() -> None:
    assert verbatim.dump({"path": "/home/me/my data", "rate": 10}) == "path: /home/me/my data\nrate: 10\n"
    assert verbatim.dump({"path": "a{b"}) == 'path: !unsafe "a{b"\n'


@needs_python
def test_no_variable_of_a_play_is_a_template(ready: Cluster, mark: Path) -> None:
    texts = [
        evil(mark),
        "{{ 7*7 }}",
        "{% set x = 1 %}{{ x }}",
        "#jinja2: variable_start_string:'[['\n[[ 7*7 ]]",
        "'\"$(x)",
    ]
    variables = {
        "one": texts[0],
        "many": texts,
        "deep": {"a": {"b": texts}},
        "number": 3,
        "nothing": None,
        "yes_": True,
    }
    assert arrived(ready, variables) == variables
    assert not mark.exists()


@needs_python
def test_no_text_of_the_inventory_is_a_template(ready: Cluster, mark: Path) -> None:
    nodes = [replace(node, private_address=evil(mark)) for node in ready.nodes()]
    write(ready.inventory, verbatim.dump(inventory.inventory("demo", nodes, ready.ssh_config)))
    book = ready.folder / "book.yml"
    task = {"ansible.builtin.raw": "printf %s {{ {'at': hvd_private_address} | to_json | quote }}"}
    book.write_text(yaml.safe_dump([{"hosts": "head", "gather_facts": False, "tasks": [task]}]))
    answers: dict[str, dict[str, Any]] = {}
    configure.play(ready, str(book), {}, lambda _: None, answers=answers)
    assert answers["node0"] == {"at": evil(mark)}
    assert not mark.exists()


@needs_python
def test_what_a_spec_says_of_machines_arrives_as_it_is(ready: Cluster, mark: Path) -> None:
    nodes = [replace(node, kind="machine") for node in ready.nodes()]
    spec = Spec(name="demo", share=evil(mark), image=f"x{{{{7*7}}}}{IMAGE}")
    variables = machines.variables(ready, spec, nodes, spec.image)
    assert variables["nfs_share"] == evil(mark)
    assert arrived(ready, variables) == variables
    assert not mark.exists()


@needs_python
@pytest.mark.parametrize("target", [None, "/scratch/{{ 7*7 }}"])
def test_a_folder_is_staged_under_the_name_that_it_has(
    target: str | None, ready: Cluster, fake_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "lost", lambda cluster, hosts: [])
    with pytest.raises(HvdctlError, match=r"/shared/set\{\{ 7\*7 }}"):
        pipeline.stage(ready, "set{{ 7*7 }}", target, Silent())
    assert "pack '/shared/set{{ 7*7 }}'" in (fake_nodes / "ssh.log").read_text()


@needs_python
def test_the_environment_of_jobs_reaches_notebooks_as_it_is(ready: Cluster, fake_nodes: Path, mark: Path) -> None:
    facts = {"env": {"TOKEN": evil(mark), "MORE": "{{ 7*7 }}"}}
    for verb in ("apply", "jupyter"):
        (fake_nodes / f"{verb}.json").write_text('{"changed": true}')
    write(ready.folder / "facts.json", json.dumps(facts))
    variables = {"node_bundle": "x", "jupyter_facts": str(ready.folder / "facts.json")}
    configure.play(ready, "site.yml", variables, lambda _: None)
    assert json.loads((fake_nodes / "jupyter.request.node0").read_text()) == facts
    assert not mark.exists()


@needs_python
def test_what_a_node_answers_is_no_template(ready: Cluster, fake_nodes: Path, mark: Path) -> None:
    (fake_nodes / "apply.json").write_text(json.dumps({"changed": True, "said": evil(mark)}))
    (fake_nodes / "verify.json").write_text(json.dumps({"ok": False, "problems": [evil(mark)]}))
    (fake_nodes / "jupyter.json").write_text(json.dumps({"error": evil(mark)}))
    (fake_nodes / "jupyter.code").write_text("1")
    write(ready.folder / "facts.json", "{}")
    variables = {"node_bundle": "x", "verify_nonce": "n", "jupyter_facts": str(ready.folder / "facts.json")}
    for playbook in ("site.yml", "verify.yml"):
        with pytest.raises(HvdctlError) as told:
            configure.play(ready, playbook, variables, lambda _: None)
        assert f"touch {mark}" in told.value.message
    assert not mark.exists()


@needs_python
def test_the_home_of_clusters_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: Path) -> None:
    home = tmp_path / f"a {{{{ lookup('pipe', 'touch {mark.name}') }}}} %d 'b'"
    monkeypatch.setenv("HVDCTL_HOME", str(home))
    server = SshServer(keys.ensure(tmp_path / "key").private)
    with serving(server):
        cluster = Cluster("demo")
        node = replace(make_nodes(1)[0], address="127.0.0.1", ssh_port=server.port, host_key=server.public)
        cluster.store_nodes([node])
        access.written(cluster, Spec(name="demo"), [node])
        write(cluster.inventory, verbatim.dump(inventory.inventory("demo", [node], cluster.ssh_config)))
        assert ssh.run(cluster, "node0", ["echo", "here"]).stdout == "here\n"
        assert arrived(cluster, {"one": "1"}) == {"one": "1"}
    assert not list(tmp_path.rglob(mark.name))


# Files of other programs.


@pytest.mark.parametrize("path", ["/a\nb", "/a\tb", "/a\\", "/a\x00b", "/a\x7f"])
def test_a_share_is_one_line_of_text(path: str, hvdctl: Hvdctl) -> None:
    Path("hvdctl.yml").write_text(json.dumps({"share": path}))
    told = hvdctl("plan")
    assert told.code == 2
    assert "is not a share; write auto or the absolute path of a folder, without line breaks" in told.err


@pytest.mark.parametrize("image", ["--privileged", "-v", "a b", "a\nb", " a"])
def test_an_image_is_a_name_and_no_option(image: str, hvdctl: Hvdctl) -> None:
    Path("hvdctl.yml").write_text(json.dumps({"image": image}))
    told = hvdctl("plan")
    assert told.code == 2
    assert "is not an image; write auto or a name such as" in told.err


INJECTED = [
    '/k"\n  ProxyCommand touch {}\n#',
    '/k"\nMatch exec "touch {}"\n#',
    "/k\nMatch exec 'touch {}'",
    "/k\\",
    "/${{HOME}}/k",
]


@pytest.mark.parametrize("name", INJECTED)
def test_the_path_of_a_key_is_no_setting_of_ssh(name: str, mark: Path) -> None:
    path = Path(name.format(mark))
    host = Host(address="127.0.0.1", user="me", port=9, proxy="gate")
    writes: list[Callable[[], object]] = [
        lambda: scan([host], path),
        lambda: inventory.ssh_config("demo", make_nodes(1), path, Path("/known")),
        lambda: inventory.ssh_config("demo", make_nodes(1), Path("/key"), path),
    ]
    for one in writes:
        with pytest.raises(UsageError, match="can't be written into a configuration of ssh"):
            one()
    assert not mark.exists()
