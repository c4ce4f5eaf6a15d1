#!/bin/sh
# The machine exports nothing for the cluster any more, and the data is gone unless it is to be kept. Driven by what is
# there: the head may have been another machine, and the share another one.
[ -d "$HVD_ETC" ] || exit 0

file=/etc/exports.d/hvdctl-$HVD_CLUSTER.exports
share=/srv/hvdctl/$HVD_CLUSTER
if [ -e "$file" ]; then
    drop "$file"
    ! command -v exportfs >/dev/null || exportfs -ra
fi
[ -z "$HVD_KEEP" ] || rmdir "$share" 2>/dev/null || true # there is nothing to keep
# Whose the data is that stays when the folder with the mark goes.
whose=/srv/hvdctl/.$HVD_CLUSTER.owner
if [ -n "$HVD_KEEP" ] && [ -e "$share" ] && [ -s "$HVD_ETC/owner" ]; then
    put "$whose" 644 "$(cat "$HVD_ETC/owner")" || true
fi
if [ -z "$HVD_KEEP" ] && [ -e "$share" ]; then
    ! mounted /shared || fail "/shared is still mounted: the data in $share is left as it is"
    drop "$share" "$whose"
    rmdir /srv/hvdctl 2>/dev/null || true
fi
