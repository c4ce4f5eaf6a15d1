"""Lists of hosts, and expressions that stand for many."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hvdctl.importers import hostlist
from import_sources import imported, refusal


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("n1", "n1"),
        ("gpu[01-03,07],login1", "gpu01 gpu02 gpu03 gpu07 login1"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[098-101]x", "n098x n099x n100x n101x"),
        ("r[1-2]n[01-02,5]", "r1n01 r1n02 r1n5 r2n01 r2n02 r2n5"),
        ("[1-2].lab", "1.lab 2.lab"),
        ("a,b[3],c", "a b3 c"),
    ],
)
def test_an_expression_stands_for_these_names(expression: str, names: str) -> None:
    assert list(hostlist.expand(expression, "x")) == names.split()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_folded_unfolds(seed: int) -> None:
    """Numbers of one width that are folded into ranges, as SLURM folds them, come back as they were."""
    draw = random.Random(seed)
    width = draw.choice([1, 2, 3, 5])
    numbers = sorted(draw.sample(range(10 ** min(width, 3)), draw.randint(1, min(10**width, 40))))
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    ]
    folded = ",".join(
        str(run[0]).zfill(width) + (f"-{str(run[-1]).zfill(width)}" if len(run) > 1 else "") for run in runs
    )
    prefix, suffix = draw.choice(["n", "gpu-", "r1c"]), draw.choice(["", ".lab", "-ib"])
    unfolded = list(hostlist.expand(f"{prefix}[{folded}]{suffix},last", "x"))
    assert unfolded == [*(f"{prefix}{str(number).zfill(width)}{suffix}" for number in numbers), "last"]


@pytest.mark.parametrize("seed", range(20))
def test_brackets_multiply(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
    names = list(hostlist.expand("-".join(f"x[1-{size}]" for size in sizes), "x"))
    assert names == ["-".join(f"x{n}" for n in at) for at in itertools.product(*(range(1, s + 1) for s in sizes))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("n[3-1]", "'3-1' in [3-1] is not a number or a range"),
        ("n[a-c]", "'a-c' in [a-c]"),
        ("n[]", "'' in []"),
        ("n[1-2", "the brackets in 'n[1-2' don't match"),
        ("n1-2],x", "the brackets in 'n1-2]' don't match"),
        ("n[1-[2-3]]", "the brackets in"),
        ("a,,b", "a name is missing beside a comma in 'a,,b'"),
        ("a,b,", "a name is missing beside a comma"),
        ("n1:4,n2:4", "'n1:4' could have 4 slots, as in a machinefile of MPICH, or be at port 4"),
        ("10.0.0.300,n1", "'10.0.0.300' is not the name or address of a host"),
        ("n[0-99999999]", "[0-99999999] stands for more than 512 hosts"),
        ("n[1-500][1-500][1-500]", "more than 512 hosts"),
        ("a@b@c,d", "'a@b@c' is not a host"),
        ("a:port,b", "'a:port' is not a host"),
    ],
)
def test_a_bad_expression_is_refused(expression: str, told: str) -> None:
    assert told in refusal(expression).message


def test_lines_may_have_users_ports_slots_and_comments(file: Any) -> None:
    text = "# the lab\nme@n1:2222 slots=4  # head\n\nn[2-3]    slots=4\n2001:db8::7 slots=4\n"
    given = imported(file("hosts", text))
    assert given["slots"] == 4
    assert given["options"]["hosts"] == [
        {"address": "n1", "user": "me", "port": 2222},
        {"address": "n2"},
        {"address": "n3"},
        {"address": "2001:db8::7"},
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("n1\nn2 four slots\n", "hosts, line 2: 'n2 four slots' is not a host"),
        ("n1\nn2 slots=0\n", "hosts, line 2: 'n2 slots=0' is not a host"),
        ("n1\nn1\nn2\n", "n1 has 2 slots and n2 has 1"),
        ("# nothing\n", "hosts has no hosts"),
        ("n_1/\n", "'n_1/' is not the name or address of a host"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
    ],
)
def test_a_bad_list_is_refused_by_line(file: Any, text: str | bytes, told: str) -> None:
    assert told in refusal(file("hosts", text)).message


def test_a_number_behind_a_name_is_a_port_or_refused(file: Any) -> None:
    """MPICH's machinefiles have slots there."""
    refused = refusal(file("hosts", "n1\nn2:16\n"))
    assert "hosts, line 2: 'n2:16' could have 16 slots" in refused.message
    assert refused.hint == "write `n2 slots=16`, or with a login me@n2:16 for the port"
    taken = imported(file("hosts", "n1:22\nn2:2222\nme@n3:222\n2001:db8::7\n"))["options"]["hosts"]
    assert [host.get("port") for host in taken] == [None, 2222, 222, None]


def test_a_single_host_has_a_comma() -> None:
    assert imported("me@n01,")["options"]["hosts"] == [{"address": "n01", "user": "me"}]
    refused = refusal("n01")
    assert refused.message == "there is no file n01"
    assert refused.hint.endswith("a single host needs a file, or a comma: `hvdctl import n01,`")
    assert "comma" not in refusal("gone.rspec").hint
    assert "empty name" in refusal("").message
