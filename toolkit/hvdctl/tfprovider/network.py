"""hvd_network: a bridge network of the cluster's own."""

from __future__ import annotations

from docker.errors import NotFound
from tf.iface import State
from tf.schema import Schema

from hvdctl.tfprovider.resource import EngineResource, common, full_name, imported, labels, own


class HvdNetwork(EngineResource):
    kind = "network"

    @classmethod
    def get_name(cls) -> str:
        return "network"

    @classmethod
    def get_schema(cls) -> Schema:
        return Schema(version=1, attributes=list(common()))

    def make(self, planned: State) -> State:
        networks = self.provider.engine.networks
        for known in networks.list(names=[full_name(planned)]):
            if known.name == full_name(planned):  # the engine's filter matches parts of names
                own(planned, known.attrs.get("Labels"), self.kind)
                return {**planned, "id": known.id}
        made = networks.create(full_name(planned), driver="bridge", labels=labels(planned), check_duplicate=True)
        return {**planned, "id": made.id}

    def look(self, current: State) -> State | None:
        try:
            self.provider.engine.networks.get(current["id"])
        except NotFound:
            return None
        return current

    def remove(self, current: State) -> None:
        try:
            self.provider.engine.networks.get(current["id"]).remove()
        except NotFound:
            return

    def find(self, engine_name: str) -> State | None:
        network = self.provider.engine.networks.get(engine_name)
        told = imported(network.attrs.get("Labels"))
        return told and {**told, "id": network.id}
