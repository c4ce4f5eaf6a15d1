"""The provider: one Docker client and one client of GPULab, shared by all resources."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import docker
from tf.iface import Config, Provider, Resource
from tf.schema import Schema
from tf.utils import Diagnostics

from hvdctl import engine
from hvdctl.tfprovider import SOURCE
from hvdctl.tfprovider import gpulab as jobs
from hvdctl.tfprovider.gpulab import Gpulab, HvdGpulabJob
from hvdctl.tfprovider.machine import HvdSwitch, HvdVirtualMachine
from hvdctl.tfprovider.network import HvdNetwork
from hvdctl.tfprovider.node import HvdContainerNode
from hvdctl.tfprovider.volume import HvdVolume


class Endpoints:
    """Any number of containers may start at once, but one ends alone.

    With starts and ends at once, Docker 20.10 was seen to miscount a network's endpoints, and then can't remove the
    network until it is restarted. Starts alone, ten at a time, were not seen to do that.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._starting = 0

    @contextmanager
    def start(self) -> Iterator[None]:
        with self._turn:
            self._starting += 1
        try:
            yield
        finally:
            with self._turn:
                self._starting -= 1
                self._turn.notify_all()

    @contextmanager
    def end(self) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: self._starting == 0)
            yield


class HvdProvider(Provider):  # type: ignore[misc]
    def __init__(self) -> None:
        self.endpoints = Endpoints()
        self.gpulab = Gpulab({})

    @cached_property
    def engine(self) -> docker.DockerClient:
        return engine.client()

    def get_model_prefix(self) -> str:
        return "hvd_"

    def full_name(self) -> str:
        return SOURCE

    def get_provider_schema(self, diags: Diagnostics) -> Schema:
        return Schema(version=1, attributes=jobs.settings())

    def validate_config(self, diags: Diagnostics, config: Config) -> None:
        pass

    def configure_provider(self, diags: Diagnostics, config: Config) -> None:
        self.gpulab = Gpulab(config)

    def get_data_sources(self) -> list[Any]:
        return []

    def get_resources(self) -> list[type[Resource]]:
        return [HvdNetwork, HvdVolume, HvdContainerNode, HvdSwitch, HvdVirtualMachine, HvdGpulabJob]
