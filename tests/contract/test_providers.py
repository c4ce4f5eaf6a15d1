"""Every provider obeys the one contract."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hvdctl import plugin
from hvdctl.cluster import Node
from hvdctl.pipeline import variables
from hvdctl.providers import REGISTRY, Site
from hvdctl.spec import Spec
from hvdctl.tfprovider import SOURCE

INFRA = Path(__file__).parents[2] / "infra"
CONTRACT = INFRA / "contract"
PROVIDERS = sorted(folder.name for folder in INFRA.iterdir() if folder.is_dir() and folder != CONTRACT)

needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on PATH")
each = pytest.mark.parametrize("name", PROVIDERS)


def declared(kind: str, text: str) -> set[str]:
    return set(re.findall(rf'^{kind} "(\w+)"', text, re.MULTILINE))


def test_the_registry_and_the_folders_agree() -> None:
    assert sorted(REGISTRY) == PROVIDERS


@each
@pytest.mark.parametrize("file", ["variables.tf", "outputs.tf"])
def test_the_contract_is_linked_not_copied(name: str, file: str) -> None:
    linked = INFRA / name / file
    assert linked.is_symlink()
    assert str(linked.readlink()) == f"../contract/{file}"


@each
def test_a_provider_adds_only_its_options(name: str) -> None:
    own = [file for file in (INFRA / name).glob("*.tf") if not file.is_symlink()]
    text = "\n".join(file.read_text() for file in own)
    assert declared("variable", text) <= {"options"}
    assert declared("output", text) == set()
    assert "required_version" in text
    assert {"main.tf", "versions.tf"} <= {file.name for file in own}


@pytest.mark.parametrize("name", [n for n, p in REGISTRY.items() if p.kind == "machine" and not p.keeps_machines])
def test_machines_are_a_counted_resource_called_node(name: str) -> None:
    """By its address, node[0], hvdctl sees in a plan that the head would go, and the share with it."""
    block = re.search(r'^resource "\w+" "node" \{\n(.*?)^\}', (INFRA / name / "main.tf").read_text(), re.M | re.S)
    assert block
    assert re.search(r"^  count += var\.nodes$", block[1], re.MULTILINE)


@pytest.mark.parametrize("name", [name for name, provider in REGISTRY.items() if not provider.keeps_machines])
def test_everything_that_is_made_gets_the_labels(name: str) -> None:
    """They say whose it is. A cloud's own resources that take neither tags nor metadata are named here."""
    text = "\n".join(file.read_text() for file in sorted((INFRA / name).glob("*.tf")) if not file.is_symlink())
    without = {
        *("aws_route_table_association", "openstack_networking_router_interface_v2"),
        *("openstack_networking_secgroup_rule_v2", "terraform_data"),
    }
    made = re.findall(r'^resource "(\w+)" "\w+" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL)
    assert made
    for kind, block in made:
        assert kind in without or re.search(r"\b(var\.labels|local\.(tags|labels))\b", block), kind
    assert "var.labels" in text


def test_every_variable_is_typed_and_described() -> None:
    blocks = re.split(r"^variable ", (CONTRACT / "variables.tf").read_text(), flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        name = block.split('"')[1]
        assert re.search(r"^  type +=", block, re.MULTILINE), name
        assert re.search(r"^  description +=", block, re.MULTILINE), name
        for message in re.findall(r'error_message = "(.*)"', block):
            assert message.startswith(f"{name}: "), message


def test_what_hvdctl_gives_is_what_the_contract_takes() -> None:
    given = variables(Spec(), image="x", key=("k", "f"), host_keys={}, labels={})
    assert set(given) == declared("variable", (CONTRACT / "variables.tf").read_text()) | {"options"}


@needs_terraform
@each
def test_the_options_of_terraform_and_of_the_spec_are_the_same(name: str, tmp_path: Path) -> None:
    """Names and defaults, as Terraform itself reads them."""
    shutil.copyfile(INFRA / name / "options.tf", tmp_path / "options.tf")
    done = subprocess.run(
        ["terraform", "console"],
        input="jsonencode(var.options)\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = json.dumps(dict(REGISTRY[name].site.Options()))
    assert json.loads(json.loads(done.stdout)) == json.loads(ours)


@each
def test_every_option_is_described(name: str) -> None:
    for key, field in REGISTRY[name].site.Options.model_fields.items():
        assert field.description, key


def test_what_the_contract_gives_is_what_a_node_has() -> None:
    named = re.findall(r"^    (\w+) +=", (CONTRACT / "outputs.tf").read_text(), re.MULTILINE)
    wanted = [field.name for field in fields(Node)]
    assert [name for name in named if name in wanted] == wanted


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_site_answers_every_question(name: str) -> None:
    site = importlib.import_module(REGISTRY[name].module)
    asked = [question for question in (*vars(Site), *Site.__annotations__) if not question.startswith("_")]
    assert asked
    for question in asked:
        assert callable(getattr(site, question, None)), question
    assert REGISTRY[name].summary


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_site_takes_what_the_contract_gives(name: str) -> None:
    site = importlib.import_module(REGISTRY[name].module)
    for question, asked in vars(Site).items():
        if question.startswith("_") or not callable(asked):
            continue
        wanted = [one for one in inspect.signature(asked).parameters.values() if one.name != "self"]
        given = inspect.signature(getattr(site, question)).parameters.values()
        assert [(one.name, one.kind, one.default) for one in given] == [
            (one.name, one.kind, one.default) for one in wanted
        ], question


@needs_terraform
def test_the_files_are_formatted() -> None:
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-recursive", "-diff", INFRA], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def sources(name: str) -> list[str]:
    """The providers that a module needs, each with its registry."""
    named = re.findall(r'^ +source += "(.+)"', (INFRA / name / "versions.tf").read_text(), re.MULTILINE)
    return [source if source.count("/") == 2 else f"registry.terraform.io/{source}" for source in named]


OPTIONAL = {"openstack": "no mirror that CI can count on holds Terraform's OpenStack provider"}


@needs_terraform
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.optional(OPTIONAL[name]) if name in OPTIONAL else ()) for name in PROVIDERS],
)
def test_terraform_validates_it(name: str, tmp_path: Path) -> None:
    """With providers from this machine's mirrors, else from their registry, as for a user of hvdctl."""
    held = {SOURCE, *(source for _, held in plugin.found_mirrors() for source in held)}
    missing = [source for source in sources(name) if source not in held]
    if missing and name in OPTIONAL:
        pytest.skip(f"no mirror of this machine holds {', '.join(missing)}")
    module = tmp_path / "module"
    shutil.copytree(INFRA / name, module)
    (tmp_path / "terraform.rc").write_text(plugin.cli_config())
    env = {**os.environ, "TF_CLI_CONFIG_FILE": str(tmp_path / "terraform.rc"), "HVDCTL_PYTHON": sys.executable}
    env |= {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    # The registry's files must have the committed checksums.
    committed = ["-lockfile=readonly"] if (module / ".terraform.lock.hcl").exists() else []
    assert committed or not missing, f"{', '.join(missing)} would be downloaded, and infra/{name} has no lock file"
    for command in (["init", "-backend=false", "-no-color", *committed], ["validate", "-no-color"]):
        done = subprocess.run(["terraform", *command], cwd=module, env=env, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if command[0] == "init" and missing:
            why = f"no mirror of this machine holds {', '.join(missing)}, and `terraform init` can't get it elsewhere"
            assert done.returncode == 0, f"{why}; HVDCTL_TF_MIRROR can name a mirror\n{said}"
        assert done.returncode == 0, said


@needs_terraform
def test_the_contract_does_what_it_says(tmp_path: Path) -> None:
    """`terraform test` on a module that fills the contract with made-up nodes."""
    module = tmp_path / "module"
    shutil.copytree(Path(__file__).parent / "module", module)
    env = {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    for command in (["init", "-backend=false", "-no-color"], ["test", "-no-color"]):
        done = subprocess.run(["terraform", *command], cwd=module, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
    assert not done.stdout.startswith("Success! 0 passed"), done.stdout


@needs_terraform
@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("cluster", '"Big Name"', "cluster: use 1 to 32 lower-case letters"),
        ("nodes", "0", "nodes: write a whole number from 1"),
        ("slots", "1.5", "slots: write a whole number from 1"),
        ("gpus", "-1", "gpus: write a whole number from 0"),
        ("rate", "0", "rate: write bits per second"),
        ("share", '"here"', "share: write auto or an absolute path"),
    ],
)
def test_the_contract_refuses_bad_values_by_name(tmp_path: Path, variable: str, value: str, told: str) -> None:
    shutil.copyfile(CONTRACT / "variables.tf", tmp_path / "variables.tf")
    given = {"cluster": '"demo"', "nodes": "1", "image": '"x"', "ssh_host_keys": "{}"}
    given |= {"ssh_public_key": '"k"', "ssh_private_key_file": '"f"'}
    given[variable] = value
    (tmp_path / "terraform.tfvars").write_text("".join(f"{name} = {text}\n" for name, text in given.items()))
    done = subprocess.run(
        ["terraform", "plan", "-no-color", "-input=false"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert told in " ".join(done.stderr.replace("│", " ").split())
