"""`hvdctl list`: one cluster that can't be looked at hides no other."""

from __future__ import annotations

import json

import pytest
from fake_engine import FakeEngine
from hvdctl import owner
from hvdctl.cluster import Cluster
from hvdctl.sites import local
from hvdctl.spec import Spec
from support import Hvdctl, refuse, stand


def test_a_list_is_not_stopped_by_a_cluster_of_another_account(
    hvdctl: Hvdctl, cluster: Cluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `sudo hvdctl up` leaves it."""
    Cluster("alpha").store_spec(Spec(name="alpha", nodes=4))
    stand(engine, "node0")
    refuse(monkeypatch, cluster.folder)
    listed = hvdctl("list", "--json")
    assert listed.code == 0, listed.err
    rows = {row["cluster"]: row["state"] for row in json.loads(listed.out)}
    assert rows == {
        "alpha": "half-made",
        "demo": f"unreadable: {cluster.folder}/spec.json can't be read: Permission denied",
    }


def test_a_list_is_not_stopped_by_what_a_site_can_not_tell_of_one_cluster(
    hvdctl: Hvdctl, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claims(cluster: str, spec: Spec | None = None) -> list[owner.Claim]:
        if cluster == "one":
            raise PermissionError(13, "Permission denied", "/there")
        return [owner.Claim("container x", "", "")]

    stand(engine, "node0", cluster="one")
    stand(engine, "node0", cluster="two")
    monkeypatch.setattr(local, "claims", claims)
    listed = hvdctl("list")
    assert (listed.code, "two" in listed.out) == (0, True), listed.err
    assert "local can't be asked about one: Permission denied (/there)" in listed.err
