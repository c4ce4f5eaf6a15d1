#!/bin/sh
# The engine knows the toolkit's runtime. Whether the driver answers is said in words.
if ! docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q nvidia-container-runtime; then
    others=$(docker ps --format '{{.Names}}' | grep -vx "hvdctl-$HVD_CLUSTER" | tr '\n' ' ')
    [ -z "$others" ] || fail "Docker has to be restarted to use the GPUs, which would end the containers ${others% }:" \
        "\`nvidia-ctk runtime configure --runtime=docker\` and \`systemctl restart docker\` there when it suits them," \
        "then \`hvdctl up\` goes on"
    nvidia-ctk runtime configure --runtime=docker
    systemctl restart docker.service
    changed "Docker knows the NVIDIA runtime"
fi
modprobe nvidia 2>/dev/null || true
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "silent: the driver does not answer yet"
fi
