#!/bin/sh
# No container, no keys, no local data; images only where they were brought for the cluster.
[ -d "$HVD_ETC" ] || exit 0

if command -v docker >/dev/null && systemctl is-active --quiet docker.service; then
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
