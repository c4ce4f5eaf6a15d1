"""The reports of all ranks, as they come to the notebook."""

from __future__ import annotations

import json
import time
from typing import Any

from hvd_cluster.calls import Call
from hvd_cluster.telling import live_file

_EVERY_S = 0.25


class Reports:
    def __init__(self, call: Call) -> None:
        self._files = [live_file(call.folder, rank) for rank in range(call.np)]
        self._read = [0] * call.np
        self._looked = 0.0

    def new(self) -> list[dict[str, Any]]:
        """What came since the last look; not more often than makes sense."""
        if time.monotonic() - self._looked < _EVERY_S:
            return []
        return self.rest()

    def rest(self) -> list[dict[str, Any]]:
        """All that is there and was not read yet."""
        self._looked = time.monotonic()
        return [record for rank in range(len(self._files)) for record in self._of(rank)]

    def _of(self, rank: int) -> list[dict[str, Any]]:
        # Opened anew each time: that is when an NFS client asks the server what is new.
        try:
            with self._files[rank].open("rb") as stream:
                stream.seek(self._read[rank])
                data = stream.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read[rank] += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
