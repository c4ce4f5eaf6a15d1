#!/bin/sh
# The engine runs, and starts with the machine.
enabled docker.service
if ! systemctl is-active --quiet docker.service; then
    systemctl start docker.service || fail "Docker does not start: see \`journalctl -u docker\` there"
    changed "docker.service started"
fi
for _ in $(seq "$HVD_WAIT"); do
    [ ! -S /run/docker.sock ] || exit 0
    sleep 1
done
fail "Docker runs, but /run/docker.sock is not there after $HVD_WAIT s: see \`journalctl -u docker\` there"
