#!/bin/sh
# The head's folder, exported to the other machines of the cluster and to nobody else.
share=/srv/hvdctl/$HVD_CLUSTER
file=/etc/exports.d/hvdctl-$HVD_CLUSTER.exports

# Its own user is that of the containers; what is inside is the users' business. A server that was started without the folder
# does not export it.
stale=
if [ ! -d "$share" ]; then
    folder "$share" 755 "$HVD_USER:$HVD_USER"
    stale=1
fi
hand_over "$share"
exports="# hvdctl"
for client in $HVD_CLIENTS; do
    exports="$exports
$share $client(rw,sync,no_subtree_check,root_squash,sec=sys)"
done
if put "$file" 644 "$exports"; then stale=1; fi
enabled nfs-server.service
if ! systemctl is-active --quiet nfs-server.service; then
    systemctl start nfs-server.service || fail "the NFS server does not start: see \`journalctl -u nfs-server\` there"
    changed "nfs-server.service started"
elif [ -n "$stale" ]; then
    exportfs -ra
fi
