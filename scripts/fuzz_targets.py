"""What scripts/fuzz.py feeds to hvdctl: one target for each kind of input."""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from fuzz_box import ROOT, RUN, Box, few_records, lines
from hvdctl import pipeline, providers
from hvdctl.errors import HvdctlError
from hvdctl.importers import ansible
from hvdctl.spec import Spec, load, parse
from hypothesis import strategies as st

SAMPLES = ROOT / "inventory" / "samples"

Data = Any
Check = Callable[[Box, Data], None]


@dataclass(frozen=True)
class Target:
    """One kind of input; `share` is how many inputs of it there are for each input of the slowest kind."""

    name: str
    inputs: st.SearchStrategy[Data]
    check: Check
    share: int


def words(text: str) -> list[str]:
    return text.split()


# Values.

NINES = "9" * 5000
_ODD = words("""
0 -1 1 2 1.5 1e999 nan inf none null true yes auto ² ٣ 1:30 007 0x1f 1_000 2024-02-31 2024-13-45 [ { ' " \\ .. ../x / ~
~nobody/x % %s {{7*7}} ${x} $(id) \u202e é = =x a= a=b=c - -- @ u@h:99999 [::1]:22 1g 10x1 4g 1,2 , 1-3 n[1-3] a,b
&a[*a] local vm static aws openstack gpulab demo default emulated:p100 resnet50 node0 node7
""")
ODD = st.sampled_from(
    [*_ODD, "9" * 25, "9" * 400, "", " ", "\n", "a\nb", "\t", "\r", "\x1b[31m", "\udcff", NINES, "x" * 300, "[" * 3000]
)
TEXT = ODD | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NUMBER = st.integers(-2, 600) | st.sampled_from([10**6, 10**19, 10**400, -(10**30)]) | st.floats()
LEAF = st.none() | st.booleans() | NUMBER | TEXT
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*above, key)
        yield from _paths(child, (*above, key))


@st.composite
def changed(draw: st.DrawFn, base: Any) -> Any:
    """A document with up to three changes in it."""
    value = copy.deepcopy(base)
    for _ in range(draw(st.integers(0, 3))):
        found = list(_paths(value))
        if not found:
            break
        *above, last = draw(st.sampled_from(found))
        place = functools.reduce(lambda inner, key: inner[key], above, value)
        how = draw(st.sampled_from(["value", "value", "leaf", "gone", "more"]))
        if how == "gone":
            del place[last]
        elif how == "more" and isinstance(place, dict):
            place[draw(TEXT)] = draw(VALUE)
        else:
            place[last] = draw(LEAF if how == "leaf" else VALUE)
    return value


@st.composite
def torn(draw: st.DrawFn, text: str) -> str:
    """A text with pieces cut out, put in and doubled."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 40)))
        text = text[:start] + draw(st.just("") | TEXT | st.just(text[start:end] * 2)) + text[end:]
    return text


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


# The targets.

KEYS = st.sampled_from([*Spec.model_fields, "layout", "node", "key", "hosts", "<<"])
OPTIONS = sorted({name for one in providers.REGISTRY.values() for name in one.site.Options.model_fields})
OWN = st.dictionaries(st.sampled_from([*OPTIONS, "x"]), VALUE, max_size=3)
SPEC = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys([*Spec.model_fields, "layout"], VALUE), "options": OWN | VALUE}
)
PLAIN = st.lists(st.tuples(KEYS, TEXT), max_size=5).map(
    lambda pairs: "".join(f"{key}: {text}\n" for key, text in pairs)
)
GOOD = {
    "name": "demo",
    "provider": "vm",
    "nodes": 4,
    "slots": 2,
    "cpus": 1.5,
    "memory": "4g",
    "net": "1g",
    "env": {"A": "b"},
}
SPEC_FILE = (
    st.one_of(SPEC, changed(GOOD)).map(lambda value: yaml.safe_dump(_plain(value), allow_unicode=True))
    | PLAIN
    | torn(yaml.safe_dump(GOOD))
)


def verbs(text: str) -> st.SearchStrategy[tuple[str, ...]]:
    return st.sampled_from([tuple(line.split()) for line in text.strip().splitlines()])


SPEC_VERBS = verbs("""
plan
up -y
up --dry-run --json
status
down -y
down -y --force
jobs
bench --dry-run
scale --nodes 3
predict
""")


def _plain(value: Any) -> Any:
    """What YAML's safe writer can write: a lone half of a pair is no character."""
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def check_spec(box: Box, data: Data) -> None:
    text, verb, cluster = data
    box.clean(cluster=cluster)
    put(box.here / "hvdctl.yml", text)
    box.call(*verb)
    try:
        spec = load(Path("hvdctl.yml"), {})
    except HvdctlError:
        return
    # What is accepted can be stored and handed to Terraform.
    assert parse(json.loads(json.dumps(spec.stored(), allow_nan=False)), source="stored") == spec
    if spec.provider in {"local", "vm"}:
        told = pipeline.variables(spec, image="image", key=("key", "file"), host_keys={})
        json.dumps(told, allow_nan=False).encode()


FLAGS = words("""--nodes --slots --cpus --memory --gpus --net --framework --image --share --env --layout --provider
--option --name --file --env-file --keep-image --no-jupyter --json -y --dry-run""")
BENCH = words("""--model --nodes --batch --net --device --layout --launcher --threads --scaling --data --ci
--max-steps --max-seconds --gpu --slots --fit --dilation --stage --json --output --resume""")
_WORDS = {
    "plan": FLAGS,
    "up": FLAGS,
    "scale": words("--nodes --keep-image --name -y"),
    "status": words("--name --json"),
    "down": words("--name -y --keep-data --force --no-verify"),
    "bench --dry-run": BENCH,
    "predict": [*BENCH, "--name"],
    "tune --dry-run": BENCH,
    "run": words("--np --launcher --env --env-file --workdir --detach --name --json --"),
    "exec": words("--all --timeout --name --json --"),
    "jobs": words("--name --json"),
    "logs": words("-f --rank --name"),
    "cancel": ["--name"],
    "push": words("--to --name"),
    "pull": ["--name"],
    "stage": words("--to --name"),
    "jupyter --status": words("--name --json --port"),
    "top": words("--name --every --json --once"),
    "report list": ["--json"],
    "report open --no-browser": words("--name --json"),
    "bench compare": words("--fail-under --json"),
    "import -o -": words("--name --user --group --key --proxy --json"),
    "schema": [],
}


@st.composite
def call(draw: st.DrawFn) -> tuple[list[str], bool]:
    """A command line of a verb that needs no network, mostly with flags that it has."""
    verb = draw(st.sampled_from(sorted(_WORDS)))
    words = verb.split()
    for _ in range(draw(st.integers(0, 4))):
        flag = draw(st.sampled_from([*_WORDS[verb], *FLAGS[:3], ""]))
        words += [flag] if flag else []
        words += draw(st.lists(TEXT, min_size=not flag, max_size=1))
    return words, draw(st.booleans())


def check_flags(box: Box, data: Data) -> None:
    words, cluster = data
    box.clean(cluster=cluster)
    box.call(*words)


def check_file(name: str, *words: str) -> Check:
    """A check of `hvdctl WORDS FILE`, with the input as the file."""

    def check(box: Box, data: Data) -> None:
        box.clean()
        put(box.here / name, data)
        box.call(*words, name)

    return check


NODE_XML = (
    '<node client_id="{}" component_id="{}"><sliver_type name="{}"/><services><login authentication="ssh-keys" '
    'hostname="{}" port="{}" username="{}"/></services>'
    '<interface client_id="{}"><ip address="{}" netmask="{}"/></interface></node>'
)
LINK_XML = (
    '<link client_id="{}"><interface_ref client_id="{}"/><interface_ref client_id="{}"/>'
    '<property capacity="{}"/></link>'
)
MANIFEST = '<rspec xmlns="http://www.geni.net/resources/rspec/3" type="{}">{}</rspec>'
NAMES = st.sampled_from(words("a b n0 n0:if0 n1:if0 raw-pc 10.0.0.1 10.0.0.2 255.255.255.0 22 1000000"))


@st.composite
def manifest(draw: st.DrawFn) -> str:
    def filled(form: str) -> str:
        words = [draw(NAMES | NAMES | TEXT) for _ in range(form.count("{}"))]
        return form.format(*(word.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;") for word in words))

    parts = [filled(draw(st.sampled_from([NODE_XML, NODE_XML, LINK_XML]))) for _ in range(draw(st.integers(0, 4)))]
    return MANIFEST.format(draw(st.sampled_from(["manifest", "request", ""])), "".join(parts))


MANIFESTS = manifest() | torn((SAMPLES / "virtual-wall.rspec").read_text())

HOST = st.sampled_from(words("a b.example.org 10.0.0.1 [::1] u@h:2200 n[01-04] n[1-3,7] n[9-1] n[1-99999999]"))
HOST_LINES = st.lists(
    st.tuples(HOST | TEXT, st.sampled_from(["", " slots=2", ":4", " 4", " # x"]) | TEXT).map("".join), max_size=5
)
HOSTS = (
    HOST_LINES.map("\n".join)
    | torn((SAMPLES / "pbs_nodefile").read_text())
    | torn((SAMPLES / "slurm_nodelist").read_text())
)


def check_hosts(box: Box, data: Data) -> None:
    text, way, slots = data
    box.clean()
    put(box.here / "hosts", text)
    text = text.replace("\0", "")
    if way == "word":
        box.call("import", "-o", "-", "--", text)
    elif way == "slurm":
        os.environ |= {"SLURM_JOB_NODELIST": text, "SLURM_TASKS_PER_NODE": slots}
        try:
            box.call("import", "-o", "-")
        finally:
            del os.environ["SLURM_JOB_NODELIST"], os.environ["SLURM_TASKS_PER_NODE"]
    else:
        box.call("import", "-o", "-", "hosts")


VARIABLE = st.sampled_from(
    words("""ansible_host ansible_port ansible_user ansible_connection ansible_ssh_common_args
    ansible_ssh_private_key_file ansible_password hvd_slots hvd_private_address x""")
)
_ARGUMENTS = ["-J u@h:22", "-o ProxyCommand='ssh -W %h:%p b'", "-o ProxyJump=none", "-F x", "-p", "ssh", "22"]
SETTING = st.sampled_from(_ARGUMENTS) | VALUE
HOSTVARS = st.dictionaries(HOST | TEXT, st.dictionaries(VARIABLE, SETTING, max_size=3), max_size=3)
_INI = ["[gpu]", "[gpu:children]", "[gpu:vars]", "[all:vars]", "gpu", "a ansible_host=10.0.0.1", "b ansible_port=x"]
_SET = st.tuples(HOST, VARIABLE, TEXT).map(lambda it: f"{it[0]} {it[1]}={it[2]}")
INI = st.lists(st.sampled_from(_INI) | _SET | TEXT, max_size=6).map("\n".join)
INVENTORIES = INI | torn((SAMPLES / "lab.ini").read_text()) | torn((SAMPLES / "lab.yml").read_text())


def check_inventory(box: Box, data: Data) -> None:
    text, suffix = data
    box.clean()
    put(box.here / f"inventory.{suffix}", text)
    box.call("import", "-o", "-", f"inventory.{suffix}")


def check_hostvars(box: Box, data: Data) -> None:
    """As `check_inventory`, with what Ansible would have read: starting Ansible takes a second."""
    box.clean()
    put(box.here / "inventory.yml", "all:\n")
    listed = {"_meta": {"hostvars": data}, "all": {"hosts": list(data)}}
    real, ansible._listed = ansible._listed, lambda source: listed
    try:
        box.call("import", "-o", "-", "inventory.yml")
    finally:
        ansible._listed = real


RESULT_VERBS = verbs("""
report list
report list --json
report build results.jsonl
predict
predict --fit results.jsonl
bench compare results.jsonl 20261118-031500
bench compare 20261118-031500 results.jsonl
bench --dry-run --resume 20261118-031500
""")


def check_results(box: Box, data: Data) -> None:
    text, verb = data
    box.clean(cluster=True)
    put(box.here / "hvdctl.yml", "name: demo\n")
    put(box.here / "results.jsonl", text)
    if "results.jsonl" not in verb:
        put(box.home / "demo" / "bench" / "20261118-031500" / "results.jsonl", text)
    box.call(*verb)


STATE_VERBS = verbs("""
status --name demo
list
jobs --name demo
jobs --name demo --json
logs 1 --name demo
plan --name demo
up -y --name demo
up --name demo --keep-image
top --name demo
run --name demo --detach -- x
exec --name demo -- x
ssh --name demo --print
jupyter --name demo --status
scale --name demo --nodes 1
down --name demo
bench --name demo --dry-run
tune --name demo --dry-run
""")
STORED = words("""spec.json nodes.json phases.json profile.json terraform/terraform.tfstate
terraform/terraform.tfvars.json runs/1/run.json ssh/config ssh/id_ed25519.pub inventory/hosts.yml""")


@st.composite
def stored(draw: st.DrawFn) -> tuple[str, str, tuple[str, ...]]:
    """A file of a cluster, a damaged text for it, and a verb that may read it."""
    name = draw(st.sampled_from(STORED))
    text = _stored_text(name)
    try:
        damaged = draw(changed(json.loads(text)).map(json.dumps) | torn(text))
    except ValueError:
        damaged = draw(torn(text))
    return name, damaged, draw(STATE_VERBS)


@functools.cache
def _stored_text(name: str) -> str:
    file = Path(os.environ["HVDCTL_HOME"]).parent / "stored" / "demo" / name
    return file.read_text() if file.exists() else "{}"


def check_stored(box: Box, data: Data) -> None:
    name, text, verb = data
    box.clean(cluster=True)
    put(box.home / "demo" / name, text)
    box.answer.write_text(json.dumps({"logs": RUN, "jupyter": SERVER, "run": {"id": 4}}.get(verb[0], [RUN])))
    box.call(*verb)


ANSWER_VERBS = verbs("""
jupyter --name demo --status
exec --name demo -- x
top --name demo --once
""")
SERVER = {"running": True, "installed": True, "version": "4", "socket": "/x", "token": "x", "kernels": 1}
ANSWERS = st.sampled_from([SERVER, {"nodes": [{"name": "node0", "cpu": 1.0}]}, {"id": 4}, [RUN]])
ANSWER = ANSWERS.flatmap(changed).map(json.dumps) | TEXT


def check_answer(box: Box, data: Data) -> None:
    """What a node says is not trusted."""
    text, verb = data
    box.clean(cluster=True)
    box.answer.write_bytes(text.encode("utf-8", "surrogateescape"))
    box.call(*verb)


ENV_LINE = st.sampled_from(["A=1", "export B=2", "C='x'", 'D="y\\n"', "E", "# c", "", "F=", "G='", 'H="\\'])
ENV_FILES = st.lists(ENV_LINE | TEXT | st.tuples(st.just("X="), TEXT).map("".join), max_size=5).map("\n".join)


def targets() -> tuple[Target, ...]:
    return (
        Target("specs", st.tuples(SPEC_FILE, SPEC_VERBS, st.booleans()), check_spec, 20),
        Target("flags", call(), check_flags, 20),
        Target("manifests", MANIFESTS, check_file("x.rspec", "import", "-o", "-"), 10),
        Target(
            "host lists",
            st.tuples(HOSTS, st.sampled_from(["file", "word", "slurm"]), TEXT.map(_no_zero)),
            check_hosts,
            10,
        ),
        Target("inventories", st.tuples(INVENTORIES, st.sampled_from(["ini", "yml"])), check_inventory, 1),
        Target("host variables", HOSTVARS, check_hostvars, 10),
        Target(
            "results",
            st.tuples(changed(few_records()).map(lines) | torn(lines(few_records())), RESULT_VERBS),
            check_results,
            8,
        ),
        Target("stored state", stored(), check_stored, 20),
        Target(
            "node answers", st.tuples(ANSWERS.flatmap(changed).map(json.dumps) | TEXT, ANSWER_VERBS), check_answer, 10
        ),
        Target("env files", ENV_FILES, check_file("x.env", "run", "--env-file"), 5),
    )


def _no_zero(text: str) -> str:
    return text.replace("\0", "")
