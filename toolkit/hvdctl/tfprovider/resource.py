"""What the resources share: names, labels, and errors as one clear line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf.iface import CreateContext, DeleteContext, ImportContext, ReadContext, Resource, State, UpdateContext
from tf.schema import Attribute
from tf.types import Map, String

from hvdctl import engine, owner
from hvdctl.errors import HvdctlError
from hvdctl.sites import local

if TYPE_CHECKING:
    from hvdctl.tfprovider.provider import HvdProvider


class TakenError(HvdctlError):
    """The name belongs to something that hvdctl did not make for this cluster."""


class EngineResource(Resource):  # type: ignore[misc]
    """A labelled thing of the Docker engine. Subclasses write make, look, change and remove, and raise freely."""

    kind: str

    def __init__(self, provider: HvdProvider) -> None:
        self.provider = provider

    def make(self, planned: State) -> State:
        raise NotImplementedError

    def look(self, current: State) -> State | None:
        raise NotImplementedError

    def change(self, current: State, planned: State) -> State:
        return planned

    def remove(self, current: State) -> None:
        raise NotImplementedError

    def find(self, engine_name: str) -> State | None:
        """The state of an existing thing, for import."""
        raise NotImplementedError

    def create(self, ctx: CreateContext, planned: State) -> State | None:
        return self._tried(ctx, f"create {self.kind} {full_name(planned)}", lambda: self.make(planned), None)

    def read(self, ctx: ReadContext, current: State) -> State | None:
        return self._tried(ctx, f"read {self.kind} {full_name(current)}", lambda: self.look(current), current)

    def update(self, ctx: UpdateContext, current: State, planned: State) -> State | None:
        what = f"change {self.kind} {full_name(current)}"
        return self._tried(ctx, what, lambda: self.change(current, planned), current)

    def delete(self, ctx: DeleteContext, current: State) -> State | None:
        what = f"remove {self.kind} {full_name(current)}"
        return self._tried(ctx, what, lambda: self.remove(current), current)

    def import_(self, ctx: ImportContext, id: str) -> State | None:
        state = self._tried(ctx, f"import {self.kind} {id}", lambda: self.find(id), None)
        if state is None and not ctx.diagnostics.has_errors():
            ctx.diagnostics.add_error(f"there is no {self.kind} {id} with the label {local.LABEL}")
        return state

    def upgrade(self, ctx: Any, version: int, old: State) -> State:
        return old

    def _tried(self, ctx: Any, what: str, act: Callable[[], State | None], otherwise: State | None) -> State | None:
        """The outcome; on an error, a diagnostic and the state as it was before."""
        expected: tuple[type[Exception], ...] = (HvdctlError, *engine.failures())
        try:
            return act()
        except expected as error:
            ctx.diagnostics.add_error(f"can't {what}: {local.explain(error)}")
            return otherwise


@functools.cache
def common() -> tuple[Attribute, ...]:
    """The attributes that every resource has."""
    return (
        Attribute("id", String(), computed=True, description="Identity in the engine"),
        Attribute("cluster", String(), required=True, requires_replace=True, description="Cluster"),
        Attribute("name", String(), required=True, requires_replace=True, description="Name in the cluster"),
        Attribute(
            "labels",
            Map(String()),
            optional=True,
            # Not replaced for them: what stands keeps those that it was made with.
            description="Further labels, for what is made from now on",
        ),
    )


def full_name(state: State) -> str:
    """The name in the engine: hvdctl-<cluster>-<name>."""
    return local.name_of(state["cluster"], state["name"])


def labels(state: State) -> dict[str, str]:
    return {
        **(state.get("labels") or {}),
        local.LABEL: state["cluster"],
        local.NAME_LABEL: state["name"],
    }


def own(state: State, found: dict[str, str] | None, kind: str) -> None:
    """Raise where the thing found under this name is not the cluster's own."""
    if not owned(state, found):
        whose = owner.claim(kind, found).owner
        made = (
            f"belongs to {whose}; choose another --name" if whose else "this cluster did not make; remove or rename it"
        )
        raise TakenError(f"a {kind} of that name exists that {made}")


def owned(state: State, found: dict[str, str] | None) -> bool:
    """Whether a thing with these labels is the one of this state: of the cluster, and of its owner."""
    found = found or {}
    if found.get(local.LABEL) != state["cluster"]:
        return False
    mark = found.get(owner.MARK, "")
    return mark == (state.get("labels") or {}).get(owner.MARK, "") or owner.mine("local", state["cluster"], mark)


def imported(found: dict[str, str] | None) -> dict[str, Any] | None:
    """The common attributes told by the labels of an existing thing."""
    found = dict(found or {})
    cluster, name = found.pop(local.LABEL, None), found.pop(local.NAME_LABEL, None)
    return {"cluster": cluster, "name": name, "labels": found} if cluster and name else None
