from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hvdctl.errors import UsageError
from hvdctl.spec import (
    Spec,
    format_rate,
    format_size,
    load,
    masked,
    parse,
    parse_rate,
    parse_size,
    read_file,
    schema,
    template,
)


@pytest.mark.parametrize(
    ("written", "bits"),
    [
        ("100m", 10**8),
        ("1g", 10**9),
        ("10G", 10**10),
        ("2.5g", 2_500_000_000),
        ("2.01g", 2_010_000_000),
        ("100k", 10**5),
        ("1000g", 10**12),
        ("1 gbit", 10**9),
        ("25Gbit/s", 25 * 10**9),
        (1_000_000, 10**6),
        ("none", None),
        (None, None),
    ],
)
def test_rates_are_read(written: object, bits: int | None) -> None:
    assert parse_rate(written) == bits


@pytest.mark.parametrize("written", ["fast", "", "-1g", "0", "1t", "1g 2g", "99k", "1001g", "1e9", True, 3.5, []])
def test_what_is_no_rate_is_named_with_the_valid_form(written: object) -> None:
    with pytest.raises(ValueError, match="is not a link rate; write 100m, 1g, 10g") as refused:
        parse_rate(written)
    assert repr(str(written).strip()) in str(refused.value)


@pytest.mark.parametrize("written", ["512", "10m", "lots", "-4g", True, "4 gigs", []])
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a memory size; write 512m, 4g"):
        parse_size(written)


@pytest.mark.parametrize(("written", "size"), [("64m", 2**26), ("4g", 2**32), ("1.5GiB", 3 * 2**29), ("none", None)])
def test_sizes_are_read(written: str, size: int | None) -> None:
    assert parse_size(written) == size


def test_every_rate_and_size_is_the_same_after_it_was_stored() -> None:
    rates = [None, *(hundredth * 10**7 for hundredth in range(1, 2000)), 123_456_784, 1_000_000_008, 99_999_999_992]
    assert [parse_rate(format_rate(rate)) for rate in rates] == rates
    sizes = [None, 2**26, 2**26 + 1, 3 * 2**29, 2**40]
    assert [parse_size(format_size(size)) for size in sizes] == sizes


def test_a_spec_is_the_same_after_it_was_stored() -> None:
    spec = parse({"name": "a", "net": "2.5g", "memory": "4g", "cpus": 1, "env": {"N": 1}}, source="here")
    assert parse(json.loads(json.dumps(spec.stored())), source="there") == spec


@pytest.mark.parametrize(("key", "near"), [("node", "nodes"), ("Nodes", "nodes"), ("frame_work", "framework")])
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse({key: 4}, source="hvdctl.yml")
    assert f"unknown key {key!r}" in refused.value.message
    assert f"did you mean {near!r}?" in refused.value.message


def test_an_unknown_key_like_none_lists_all() -> None:
    with pytest.raises(UsageError, match=r"unknown key 'zzz'; valid keys: name, provider, nodes"):
        parse({"zzz": 1}, source="hvdctl.yml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nodes", "4"),
        ("nodes", True),
        ("nodes", 2.0),
        ("nodes", None),
        ("nodes", [2]),
        ("nodes", 513),
        ("slots", 0),
        ("gpus", -1),
        ("cpus", 0),
        ("cpus", float("nan")),
        ("cpus", "two"),
        ("framework", "mxnet"),
        ("image", ""),
        ("image", 7),
        ("share", "relative/folder"),
        ("share", "~nobody-has-this-name/x"),
        ("share", 5),
        ("env", ["A=1"]),
        ("name", 5),
        ("name", ""),
        ("name", "-a"),
        ("name", "a-"),
        ("name", "Upper"),
        ("name", "new\nline"),
        ("name", "a\n"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(key: str, value: object) -> None:
    with pytest.raises(UsageError) as refused:
        parse({key: value}, source="hvdctl.yml")
    assert refused.value.message.startswith(f"{key}: {value!r} is not")
    assert "hvdctl.yml" in refused.value.hint


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        parse({"nodes": 0, "net": "fast", "nmae": "x"}, source="hvdctl.yml")
    for part in ("nodes: 0", "'fast'", "'nmae'"):
        assert part in refused.value.message


@pytest.mark.parametrize(
    ("flags", "told", "place"),
    [
        ({"net": "fast"}, "net: 'fast' is not a link rate", "in --net"),
        ({"env": {"2X": "1"}}, "'2X' is not the name", "in --env"),
        ({"env": {"X": True}}, "env.X: True is not valid", "in --env X"),
        ({"net": "fast", "nodes": 0}, "nodes: 0", "in --nodes and --net"),
        (
            {"options": {"firewal": False}},
            "unknown key 'options.firewal'; did you mean 'firewall'?",
            "in --option firewal",
        ),
        ({"options": {"hosts": ["n1"]}}, "options.hosts.0: 'n1'", "in --option hosts"),
    ],
)
def test_a_bad_flag_is_not_blamed_on_the_file(tmp_path: Path, flags: dict[str, object], told: str, place: str) -> None:
    file = tmp_path / "hvdctl.yml"
    file.write_text("provider: static\noptions: {delay: 2ms}\n")
    with pytest.raises(UsageError) as refused:
        load(file, flags)
    assert told in refused.value.message
    options = "; docs/providers.md and `hvdctl schema` have all options" if "options" in flags else ""
    assert refused.value.hint == place.format(file=file) + options


def test_a_bad_file_is_not_blamed_on_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "hvdctl.yml"
    file.write_text("provider: static\noptions: {firewal: false}\n")
    with pytest.raises(UsageError) as refused:
        load(file, {"net": "1g", "options": {"delay": "2ms"}})
    assert refused.value.hint == f"in {file}; docs/providers.md and `hvdctl schema` have all options"
    file.write_text("nodes: 0\n")
    with pytest.raises(UsageError) as refused:
        load(file, {"net": "fast"})
    assert refused.value.hint == f"in {file} and --net; `hvdctl init` writes a file with every key"


def test_a_provider_without_options_says_so() -> None:
    with pytest.raises(UsageError, match=r"^options\.firewall: provider local has no options$"):
        load(None, {"options": {"firewall": False}})


def test_single_settings_go_over_the_others(tmp_path: Path) -> None:
    file = tmp_path / "hvdctl.yml"
    file.write_text("provider: vm\noptions: {delay: 2ms, internet: false}\n")
    flags = {"options": {"delay": "5ms"}, "env": {"A": "1"}}
    spec = load(file, flags, {"provider": "vm", "env": {"B": "2"}, "options": {"firewall": False}})
    assert spec.options == {"delay": "5ms", "internet": False}
    assert spec.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize("name", ["2X", "a-b", "", "A=B", 5])
def test_the_name_of_a_variable_is_checked(name: object) -> None:
    with pytest.raises(UsageError, match="is not the name of an environment variable"):
        parse({"env": {name: "x"}}, source="here")


def test_numbers_in_env_become_text_but_yes_and_no_do_not() -> None:
    assert parse({"env": {"A": 2, "B": 0.5}}, source="here").env == {"A": "2", "B": "0.5"}
    with pytest.raises(UsageError, match=r"env\.A: True is not valid"):
        parse({"env": {"A": True}}, source="here")


def test_flags_win_over_the_file_and_the_file_over_what_was(tmp_path: Path) -> None:
    file = tmp_path / "hvdctl.yml"
    file.write_text("nodes: 4\nnet: 1g\n")
    spec = load(file, {"net": "10g"}, {"nodes": 8, "slots": 3, "net": "100m"})
    assert (spec.nodes, spec.slots, spec.net) == (4, 3, 10**10)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nodes: [1", "is not YAML in line 1"),
        ("nodes: 1\nnodes: 2\n", "in line 2: the key 'nodes' stands twice"),
        ("env: {A: 1, A: 2}\n", "the key 'A' stands twice"),
        ("- nodes\n", "holds list, not keys and values"),
        ("four nodes\n", "holds str, not keys and values"),
        ("? [a]\n: 1\n", "unhashable key"),
        ("nodes: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("\x00", "is not YAML"),
    ],
)
def test_a_file_of_the_wrong_form_is_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "hvdctl.yml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_file(file)
    assert str(file) in refused.value.message
    assert told in refused.value.message


def test_a_file_that_is_no_text_a_folder_and_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00nodes")
    for name, told in (("binary.yml", "can't be read"), (".", "can't be read"), ("gone.yml", "there is no file")):
        with pytest.raises(UsageError, match=told):
            read_file(tmp_path / name)


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "hvdctl.yml").write_text("# nothing yet\n")
    assert load(tmp_path / "hvdctl.yml", {}) == Spec()


def test_the_template_is_the_default_spec_with_every_key_described(tmp_path: Path) -> None:
    (tmp_path / "hvdctl.yml").write_text(template())
    assert load(tmp_path / "hvdctl.yml", {}) == Spec()
    assert list(yaml.safe_load(template())) == list(Spec.model_fields)
    for field in Spec.model_fields.values():
        assert f"# {field.description}" in template()


def test_the_schema_knows_every_key_and_refuses_others() -> None:
    told = schema()
    assert set(told["properties"]) == {*Spec.model_fields, "layout"}
    assert told["additionalProperties"] is False
    assert all(key.get("description") for key in told["properties"].values())
    assert "local" in told["properties"]["provider"]["enum"]


def test_the_schema_takes_a_delay_as_the_command_does() -> None:
    assert schema()["$schema"].startswith("https://json-schema.org/")
    (vm,) = [rule["then"] for rule in schema()["allOf"] if rule["if"]["properties"]["provider"]["const"] == "vm"]
    pattern = vm["properties"]["options"]["properties"]["delay"]["pattern"]
    for delay in ("500us", "2ms", "1s", "1.5ms", "none"):
        assert re.search(pattern, delay), delay
        parse({"provider": "vm", "options": {"delay": delay}}, source="here")
    for delay in ("2 ms", "about 2ms", "2msec", "2"):
        assert not re.search(pattern, delay), delay


@pytest.mark.parametrize(("layout", "nodes", "gpus"), [("10x1", 10, 1), ("1x10", 1, 10), ("4x2", 4, 2)])
def test_a_layout_is_nodes_and_gpus_with_a_rank_each(tmp_path: Path, layout: str, nodes: int, gpus: int) -> None:
    (tmp_path / "hvdctl.yml").write_text(f"layout: {layout}\n")
    for found in (load(tmp_path / "hvdctl.yml", {}), load(None, {"layout": layout})):
        assert (found.nodes, found.slots, found.gpus) == (nodes, gpus, gpus)
    flagged = load(tmp_path / "hvdctl.yml", {"nodes": 3})
    assert (flagged.nodes, flagged.gpus) == (3, gpus), "a flag wins over the file"
    assert load(None, {"layout": layout}, Spec(nodes=7, gpus=3).stored()).nodes == nodes


@pytest.mark.parametrize("layout", ["10", "x1", "0x1", "1x0", "1x", "ten x one", "1x1x1", 4, None])
def test_a_layout_that_is_none_is_told(layout: object) -> None:
    with pytest.raises(UsageError, match="is not NODESxGPUS; write 10x1"):
        load(None, {"layout": layout})


def test_a_layout_beside_what_it_stands_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hvdctl.yml").write_text("layout: 2x1\nnodes: 3\n")
    with pytest.raises(UsageError, match="layout says what nodes say too"):
        load(tmp_path / "hvdctl.yml", {})
    with pytest.raises(UsageError, match="layout says what slots and gpus say too"):
        load(None, {"layout": "2x1", "gpus": 1, "slots": 1})


def test_a_layout_of_too_many_is_told_by_its_flag() -> None:
    with pytest.raises(UsageError, match="nodes: 999 is not valid") as told:
        load(None, {"layout": "999x1"})
    assert told.value.hint == "in --layout"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bob:s3cr3t@reg.example.org:5000/a/b:1", "...@reg.example.org:5000/a/b:1"),
        ("up --image bob:s3/cr@x/y:1 --name a", "up --image ...@x/y:1 --name a"),
        ("up --image=bob:s3cr3t@x/y", "up --image=...@x/y"),
        ("reg.example.org:5000/a/b:1", "reg.example.org:5000/a/b:1"),
        ("--option bastion=me@gate:22", "--option bastion=me@gate:22"),
    ],
)
def test_the_login_to_a_registry_is_shown_nowhere(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert " " in text or Spec(image=text).shown()["image"] == shown
