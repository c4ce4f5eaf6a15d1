"""hvd_container_node: one unprivileged container that is a node of a Horovod cluster."""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, EndpointConfig, Mount
from tf.iface import State
from tf.schema import Attribute, Schema
from tf.types import Number, String

from hvdctl.errors import HvdctlError
from hvdctl.tfprovider import link
from hvdctl.tfprovider.resource import EngineResource, common, full_name, imported, labels, own

USER = 1000
SSH_FOLDER = "/etc/hvdctl/ssh"
SHARE = "/shared"
_SHARED_MEMORY = 2**30
_CPU_PERIOD = 100_000
_NO_LIMIT = -1


class HvdContainerNode(EngineResource):
    kind = "container"

    @classmethod
    def get_name(cls) -> str:
        return "container_node"

    @classmethod
    def get_schema(cls) -> Schema:
        text, number = String(), Number()
        return Schema(
            version=1,
            attributes=[
                *common(),
                Attribute("image", text, required=True, requires_replace=True, description="Image"),
                Attribute("network", text, required=True, requires_replace=True, description="Id of the network"),
                Attribute("share", text, required=True, requires_replace=True, description="Volume or folder"),
                Attribute("gpus", number, optional=True, requires_replace=True, description="GPUs"),
                Attribute("ssh_private_key", text, required=True, description="File of the cluster's private key"),
                Attribute("ssh_public_key", text, required=True, requires_replace=True, description="May log in"),
                Attribute("ssh_host_public_key", text, required=True, requires_replace=True, description="Host key"),
                Attribute(
                    "ssh_host_private_key",
                    text,
                    required=True,
                    description="File of the host key's private half",
                ),
                Attribute("cpus", number, optional=True, description="CPUs; null: no limit"),
                Attribute("memory", number, optional=True, description="Bytes; null: no limit"),
                Attribute("rate", number, optional=True, description="Link rate in bit/s; null: not limited"),
                Attribute("started", text, computed=True, description="When it was last started"),
                Attribute("address", text, computed=True, description="Address on the cluster's network"),
            ],
        )

    def make(self, planned: State) -> State:
        container = self._fresh(planned)
        try:
            container.put_archive(SSH_FOLDER, ssh_files(planned))
            with self.provider.endpoints.start():
                container.start()
            if planned["rate"] is not None:
                link.shape(self.provider.engine, container, planned)
            address = _address(container)
        except BaseException:
            with contextlib.suppress(APIError):
                self._drop(container)
            raise
        return {**planned, "id": container.id, "address": address, "started": _started(container)}

    def look(self, current: State) -> State | None:
        """The node as it stands; None where it is gone or has ended, so that it is made anew."""
        try:
            container = self.provider.engine.containers.get(current["id"])
        except NotFound:
            return None
        if container.status != "running":
            return None
        seen = {**current, "address": _address(container), "started": _started(container)}
        # A restarted container has a network namespace of its own again, with no limit on its link.
        return seen if seen["started"] == current["started"] else {**seen, "rate": None}

    def change(self, current: State, planned: State) -> State:
        container = self.provider.engine.containers.get(current["id"])
        if planned["rate"] != current["rate"]:
            link.shape(self.provider.engine, container, planned)
        if (planned["cpus"], planned["memory"]) != (current["cpus"], current["memory"]):
            self._limit(container, planned)
        return {**planned, "id": current["id"], "address": current["address"], "started": current["started"]}

    def remove(self, current: State) -> None:
        try:
            self._drop(self.provider.engine.containers.get(current["id"]))
        except NotFound:
            return

    def find(self, engine_name: str) -> State | None:
        container = self.provider.engine.containers.get(engine_name)
        # A container shows the labels of its image as its own.
        of_image = container.image.labels if container.image else {}
        told = imported({key: value for key, value in container.labels.items() if key not in of_image})
        if told is None:
            return None
        attrs = container.attrs
        host = attrs["HostConfig"]
        mount: dict[str, Any] = next((m for m in attrs["Mounts"] if m["Destination"] == SHARE), {})
        (network,) = attrs["NetworkSettings"]["Networks"].values()
        files = _read_ssh_files(container)
        return {
            **told,
            "id": container.id,
            "image": attrs["Config"]["Image"],
            "network": network["NetworkID"],
            "share": mount.get("Name") or mount.get("Source"),
            "gpus": sum(request.get("Count", 0) for request in host.get("DeviceRequests") or []),
            "ssh_public_key": files["authorized_keys"],
            "ssh_host_public_key": files["ssh_host_ed25519_key.pub"],
            "ssh_host_private_key": "",
            "ssh_private_key": "",
            "cpus": host["CpuQuota"] / _CPU_PERIOD if host["CpuQuota"] > 0 else None,
            "memory": host["Memory"] if host["Memory"] > 0 else None,
            "rate": link.rate_of(container),
            "address": _address(container),
            "started": _started(container),
        }

    def _fresh(self, planned: State) -> Container:
        """A new container; a creation that a killed hvdctl left under way in the engine may still take the name."""
        for _ in range(5):
            self._clear(planned)
            try:
                return self._create(planned)
            except APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:
                    raise
                time.sleep(1)
        return self._create(planned)

    def _clear(self, planned: State) -> None:
        """Remove a dead or half-made container of the same name, and its helper, if they are this cluster's."""
        stale = None
        with contextlib.suppress(NotFound):
            stale = self.provider.engine.containers.get(full_name(planned))
            own(planned, stale.labels, self.kind)
        link.clear(self.provider.engine, planned)
        if stale is not None:
            self._drop(stale)

    def _drop(self, container: Container) -> None:
        with self.provider.endpoints.end():
            container.remove(force=True, v=True)

    def _create(self, planned: State) -> Container:
        client = self.provider.engine
        network = client.networks.get(planned["network"])
        is_folder = planned["share"].startswith("/")
        options: dict[str, Any] = {}
        if planned["memory"]:
            options |= {"mem_limit": int(planned["memory"]), "memswap_limit": int(planned["memory"])}
        if planned["gpus"]:
            options["device_requests"] = [DeviceRequest(count=int(planned["gpus"]), capabilities=[["gpu"]])]
        return client.containers.create(
            planned["image"],
            name=full_name(planned),
            hostname=planned["name"],
            labels=labels(planned),
            user=f"{USER}:{USER}",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            network=network.name,
            networking_config={
                str(network.name): EndpointConfig(client.api.api_version, aliases=[planned["name"]]),
            },
            mounts=[Mount(SHARE, planned["share"], type="bind" if is_folder else "volume")],
            shm_size=_SHARED_MEMORY,
            cpu_period=_CPU_PERIOD,
            cpu_quota=_quota(planned),
            **options,
        )

    def _limit(self, container: Container, planned: State) -> None:
        # The engine can't lift a limit of memory; all that the machine has is none.
        memory = int(planned["memory"] or self.provider.engine.info()["MemTotal"])
        container.update(cpu_quota=_quota(planned), mem_limit=memory, memswap_limit=memory)


def _quota(state: State) -> int:
    return int(state["cpus"] * _CPU_PERIOD) if state["cpus"] else _NO_LIMIT


def _started(container: Container) -> str:
    return str(container.attrs["State"]["StartedAt"])


def _address(container: Container) -> str:
    """The node's address; an error with the container's own last words where it ended at once."""
    deadline = time.monotonic() + 10
    while True:
        container.reload()
        for network in container.attrs["NetworkSettings"]["Networks"].values():
            if container.status == "running" and network["IPAddress"]:
                return str(network["IPAddress"])
        if container.status not in {"created", "running"} or time.monotonic() > deadline:
            said = container.logs(tail=3).decode(errors="replace").strip() or "it said nothing"
            raise HvdctlError(f"the container is {container.status}: {said}")
        time.sleep(0.05)


def ssh_files(planned: State) -> bytes:
    """A tar of the files that sshd needs, owned by the node's user."""
    files = {
        "ssh_host_ed25519_key": Path(planned["ssh_host_private_key"]).read_bytes(),
        "ssh_host_ed25519_key.pub": planned["ssh_host_public_key"].encode() + b"\n",
        "authorized_keys": planned["ssh_public_key"].encode() + b"\n",
        "id_ed25519": Path(planned["ssh_private_key"]).read_bytes(),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uid, info.gid = len(content), 0o600, USER, USER
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _read_ssh_files(container: Container) -> dict[str, str]:
    chunks, _ = container.get_archive(SSH_FOLDER)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        files = {Path(member.name).name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read().decode().strip() for name, file in files.items() if file}
