"""hvd_volume: the share of a cluster, a thing of its own so that it can outlive the nodes."""

from __future__ import annotations

from docker.errors import NotFound
from tf.iface import State
from tf.schema import Schema

from hvdctl.tfprovider.resource import EngineResource, common, full_name, imported, labels, own, owned


class HvdVolume(EngineResource):
    kind = "volume"

    @classmethod
    def get_name(cls) -> str:
        return "volume"

    @classmethod
    def get_schema(cls) -> Schema:
        return Schema(version=1, attributes=list(common()))

    def make(self, planned: State) -> State:
        # The engine gives back an existing volume of that name: one kept by `down --keep-data`, for example.
        volume = self.provider.engine.volumes.create(full_name(planned), labels=labels(planned))
        own(planned, volume.attrs.get("Labels"), self.kind)
        return {**planned, "id": volume.name}

    def look(self, current: State) -> State | None:
        try:
            volume = self.provider.engine.volumes.get(current["id"])
        except NotFound:
            return None
        # Its id is its name: once it is gone, somebody else may have made one of that name.
        return current if owned(current, volume.attrs.get("Labels")) else None

    def remove(self, current: State) -> None:
        try:
            volume = self.provider.engine.volumes.get(current["id"])
        except NotFound:
            return
        if owned(current, volume.attrs.get("Labels")):
            volume.remove()

    def find(self, engine_name: str) -> State | None:
        volume = self.provider.engine.volumes.get(engine_name)
        told = imported(volume.attrs.get("Labels"))
        return told and {**told, "id": volume.name}
