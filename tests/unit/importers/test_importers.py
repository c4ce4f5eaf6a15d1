"""From files of several kinds, and from jobs, to the keys of a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdctl import importers
from hvdctl.errors import UsageError
from hvdctl.spec import parse
from import_sources import BASTION, SAMPLES, imported, link, manifest, nic, node, refusal

GATE = "trainer@gate.lab.example:2200"


def wall(node: str, last: int, mac: str, user: str = "jdoe") -> dict[str, Any]:
    return {
        "address": f"{node}.wall2.ilabt.iminds.be",
        "user": user,
        "private_address": f"192.168.0.{last}",
        "mac": mac,
        "proxy": BASTION,
    }


GOLDEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "virtual-wall.rspec",
        {},
        {
            "provider": "static",
            "nodes": 3,
            "net": "1g",
            "options": {
                "hosts": [
                    wall("n095-04a", 1, "02ed052451de"),
                    wall("n095-04b", 2, "02bcba641360"),
                    wall("n095-05a", 3, "0265b6205ad1"),
                ]
            },
        },
    ),
    (
        "lab.ini",
        {"group": "gpu"},
        {
            "provider": "static",
            "nodes": 3,
            "options": {
                "key": "~/.ssh/lab_ed25519",
                "hosts": [
                    {"address": f"gpu0{n}.lab.example", "user": "trainer", "port": 2222, "proxy": GATE}
                    for n in (1, 2, 3)
                ],
            },
        },
    ),
    (
        "lab.yml",
        {},
        {
            "provider": "static",
            "nodes": 2,
            "slots": 4,
            "options": {
                "hosts": [
                    {"address": "10.20.0.11", "user": "trainer", "private_address": "10.30.0.11", "proxy": GATE},
                    {
                        "address": "10.20.0.12",
                        "user": "trainer",
                        "port": 2222,
                        "private_address": "10.30.0.12",
                        "proxy": GATE,
                    },
                ]
            },
        },
    ),
    (
        "pbs_nodefile",
        {},
        {
            "provider": "static",
            "nodes": 3,
            "slots": 4,
            "options": {"hosts": [{"address": f"r3i1n{n}.cluster.example"} for n in (4, 5, 9)]},
        },
    ),
    (
        "slurm_nodelist",
        {},
        {
            "provider": "static",
            "nodes": 5,
            "options": {"hosts": [{"address": name} for name in ("gpu01", "gpu02", "gpu03", "gpu07", "login1")]},
        },
    ),
]


@pytest.mark.parametrize(("sample", "choice", "wanted"), GOLDEN, ids=[case[0] for case in GOLDEN])
def test_a_sample_gives_this_spec(sample: str, choice: dict[str, Any], wanted: dict[str, Any]) -> None:
    given = imported(SAMPLES / sample, **choice)
    assert given == wanted
    assert list(given) == list(wanted), "in the order in which a person would write them"
    assert parse(given, sample).nodes == wanted["nodes"]


def test_every_sample_is_tried_and_described() -> None:
    readme = (SAMPLES.parent / "README.md").read_text()
    names = {file.name for file in SAMPLES.iterdir()}
    assert names == {case[0] for case in GOLDEN}
    assert all(f"[`{name}`](samples/{name})" in readme for name in names)


def test_a_job_tells_its_hosts() -> None:
    job = importers.from_job({"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_TASKS_PER_NODE": "8(x2)"}, user="me")
    assert job.hosts == [{"address": "gpu1", "user": "me"}, {"address": "gpu2", "user": "me"}]
    assert (job.slots, job.notes) == (8, [])
    uneven = importers.from_job({"SLURM_JOB_NODELIST": "gpu[1-2]", "SLURM_TASKS_PER_NODE": "8,4"})
    assert uneven.slots is None
    assert "SLURM_TASKS_PER_NODE is 8,4" in uneven.notes[0]
    assert importers.from_job({"PBS_NODEFILE": str(SAMPLES / "pbs_nodefile")}).slots == 4
    with pytest.raises(UsageError, match="this is no job of SLURM or PBS") as refused:
        importers.from_job({})
    assert "jFed or GENI manifest, an Ansible inventory or a list of hosts" in refused.value.hint


def test_files_that_are_not_there_or_not_files(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path}/gone.ini" in refusal(tmp_path / "gone.ini").message
    assert f"{tmp_path} is a folder" in refusal(tmp_path).message


def test_files_of_several_kinds_are_put_together(file: Any) -> None:
    given = imported(file("hosts", "n1\n"), file("m.rspec", manifest(node("a", "me@a"))))
    assert [host["address"] for host in given["options"]["hosts"]] == ["a", "n1"]
    refused = refusal(file("two", "n1\nn1\n"), file("four", "n2 slots=4\n"))
    assert "the files have different slots: 2 and 4" in refused.message


def test_what_one_file_says_is_not_spread_to_the_hosts_of_another(file: Any) -> None:
    pair = [node(n, f"me@{n}", interface=nic(f"{n}:0", f"10.0.0.{i}")) for i, n in enumerate("ab", 1)]
    wall = file("m.rspec", manifest(*pair, links=link("lan", "a:0", "b:0", capacity="1000000")))
    listed = file("hosts", "n1 slots=4\n")
    found = importers.read([str(listed), str(wall)])
    assert (found.slots, found.rate) == (None, None)
    assert found.notes == [
        f"slots is left out, as it would be that of all nodes: {listed} has 4, {wall} none",
        f"net is left out, as it would be that of all nodes: {wall} has 1g, {listed} none",
    ]


def test_a_login_key_for_the_hosts_of_other_files_is_told(file: Any) -> None:
    inventory, listed = file("x.ini", "a ansible_ssh_private_key_file=/k\n"), file("hosts", "n1\n")
    found = importers.read([str(inventory), str(listed)])
    assert (found.key, found.notes) == ("/k", [f"the login key /k is used for the hosts of {listed} too"])
    assert importers.read([str(inventory), str(listed)], key="/mine").notes == []
