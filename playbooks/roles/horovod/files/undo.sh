#!/bin/sh
# No container, no keys, no local data; images only where they were brought for the cluster.
[ -d "$HVD_ETC" ] || exit 0

if [ -e "$HVD_UNITS/hvdctl-node.service" ]; then
    retire hvdctl-node.service
    # The engine's unit forgets it.
    systemctl daemon-reload
fi
# Without keys there never was a container, and without an engine there is none.
if { [ -e "$HVD_ETC/ssh" ] || [ -e "$HVD_ETC/images" ]; } && command -v dockerd >/dev/null; then
    if ! systemctl is-active --quiet docker.service; then
        systemctl start docker.service ||
            fail "Docker does not start, so the container $HVD_NAME can't be removed: see \`journalctl -u docker\` there"
    fi
    if docker container inspect "$HVD_NAME" >/dev/null 2>&1; then
        docker rm --force "$HVD_NAME" >/dev/null
        changed "container $HVD_NAME removed"
    fi
    if [ -z "$HVD_KEEP" ] && [ -e "$HVD_ETC/images" ]; then
        while read -r image; do
            if docker image rm "$image" >/dev/null 2>&1; then
                changed "image $image removed"
            elif docker image inspect "$image" >/dev/null 2>&1; then
                echo "image $image stays: something else uses it"
            fi
        done <"$HVD_ETC/images"
    fi
fi
drop "$HVD_ETC/images" "$HVD_ETC/ssh" "/var/lib/hvdctl/$HVD_CLUSTER"
rmdir /var/lib/hvdctl 2>/dev/null || true
