#!/bin/sh
# The engine knows the toolkit's runtime. Whether the driver answers is said in words.
if ! grep -qs nvidia-container-runtime /etc/docker/daemon.json; then
    nvidia-ctk runtime configure --runtime=docker
    changed "Docker knows the NVIDIA runtime"
    others=$(docker ps --format '{{.Names}}' | grep -vx "hvdctl-$HVD_CLUSTER" | tr '\n' ' ')
    [ -z "$others" ] || fail "Docker has to be restarted to use the GPUs, which would end the containers ${others% }:" \
        "\`systemctl restart docker\` there when it suits them, then \`hvdctl up\` goes on"
    systemctl restart docker.service
fi
modprobe nvidia 2>/dev/null || true
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "silent: the driver does not answer yet"
fi
