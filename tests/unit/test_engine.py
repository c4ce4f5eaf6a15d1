"""Errors around the engine, in the words of whoever is at fault."""

from __future__ import annotations

import errno
import os

import pytest
import requests
from docker.errors import DockerException
from hvdctl import engine
from hvdctl.errors import ToolMissing


def of(number: int, *place: str) -> OSError:
    return OSError(number, os.strerror(number), *place)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (of(errno.EMFILE), "Too many open files"),
        (of(errno.ENOSPC, "/cache/push"), "No space left on device: /cache/push"),
        (of(errno.ENOENT, "/cache/x"), "No such file or directory: /cache/x"),
        (of(errno.EACCES, "/cache/x"), "Permission denied: /cache/x"),
        # As the SDK wraps it.
        (DockerException(requests.ConnectionError("Connection aborted.", of(errno.EMFILE))), "Too many open files"),
    ],
)
def test_what_ails_this_machine_is_told_as_it_is(error: Exception, told: str) -> None:
    assert engine.describe(error).message == told


@pytest.mark.parametrize(
    "error",
    [
        of(errno.ECONNREFUSED),
        of(errno.ENOENT),
        TimeoutError("timed out"),
        requests.ConnectionError("Connection aborted.", of(errno.ENOENT)),
        DockerException("Error while fetching server API version"),
    ],
)
def test_a_connection_that_fails_is_the_engines(error: Exception) -> None:
    told = engine.describe(error)
    assert isinstance(told, ToolMissing)
    assert told.message.startswith("no Docker engine answers at unix://")


def test_a_socket_that_may_not_be_used_is_told() -> None:
    assert "no permission to use the Docker engine" in engine.describe(of(errno.EACCES)).message
