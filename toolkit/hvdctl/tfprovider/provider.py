"""The provider: one Docker client, shared by all resources."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

import docker
from tf.iface import Config, Provider, Resource
from tf.schema import Schema
from tf.utils import Diagnostics

from hvdctl import engine
from hvdctl.tfprovider import SOURCE
from hvdctl.tfprovider.network import HvdNetwork
from hvdctl.tfprovider.node import HvdContainerNode
from hvdctl.tfprovider.volume import HvdVolume


class HvdProvider(Provider):  # type: ignore[misc]
    def __init__(self) -> None:
        # Docker 20.10 miscounts a network's endpoints when containers on it start or end at once, and then
        # can't remove the network until it is restarted.
        self.endpoints = threading.Lock()

    @cached_property
    def engine(self) -> docker.DockerClient:
        return engine.client()

    def get_model_prefix(self) -> str:
        return "hvd_"

    def full_name(self) -> str:
        return SOURCE

    def get_provider_schema(self, diags: Diagnostics) -> Schema:
        return Schema(version=1, attributes=[])

    def validate_config(self, diags: Diagnostics, config: Config) -> None:
        pass

    def configure_provider(self, diags: Diagnostics, config: Config) -> None:
        pass

    def get_data_sources(self) -> list[Any]:
        return []

    def get_resources(self) -> list[type[Resource]]:
        return [HvdNetwork, HvdVolume, HvdContainerNode]
