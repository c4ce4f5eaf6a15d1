#!/bin/sh
# The head exports nothing for the cluster any more, and the data is gone unless it is to be kept.
[ -d "$HVD_ETC" ] || exit 0

file=/etc/exports.d/hvdctl-$HVD_CLUSTER.exports
if [ -e "$file" ]; then
    drop "$file"
    exportfs -ra
fi
if mountpoint -q /shared; then
    fail "/shared is still mounted: the data in /srv/hvdctl/$HVD_CLUSTER is left as it is"
fi
if [ -z "$HVD_KEEP" ]; then
    drop "/srv/hvdctl/$HVD_CLUSTER"
    rmdir /srv/hvdctl 2>/dev/null || true
fi
