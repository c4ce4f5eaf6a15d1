#!/bin/sh
# Names what is missing of: a driver that answers, the container toolkit, an engine that knows it. And the distribution.
nvidia-smi -L >/dev/null 2>&1 || echo "missing: driver"
command -v nvidia-ctk >/dev/null || echo "missing: toolkit"
# Not its file, which counts only after a restart.
docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q nvidia-container-runtime || echo "missing: runtime"
# shellcheck disable=SC1091 # it is on the machine
(. /etc/os-release && echo "system: $ID")
