#!/bin/sh
# /shared, mounted now and at every start of the machine. Nothing but the cluster's own container waits for it.
point=/shared
case $HVD_SOURCE in
    /*)
        timeout -s KILL 10 test -d "$HVD_SOURCE" ||
            fail "$HVD_SOURCE is not there, or does not answer: it has to be a folder that all machines have in common"
        kind=none options=bind after=
        ;;
    *) kind=nfs options=nfsvers=4.2,proto=tcp,hard,noatime,_netdev after=hvdctl-share.service ;;
esac

if ! mounted "$point" && [ -n "$(ls -A "$point" 2>/dev/null)" ]; then
    fail "$point is there already and holds files: move them away, the cluster's share is mounted there"
fi

# It waits for the head as long as it takes, as both may have been started at the same moment. The mount itself must not:
# the time that it has is also what a machine takes to end when its head is gone. Without default dependencies, as
# multi-user.target would wait for it.
if [ -n "$after" ]; then
    unit hvdctl-share.service "[Unit]
Description=The head of the hvdctl cluster $HVD_CLUSTER serves its share
DefaultDependencies=no
After=sysinit.target network.target
Before=shutdown.target
Conflicts=shutdown.target
[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=infinity
ExecStart=/bin/bash -c 'until timeout 3 bash -c \"exec 3<>/dev/tcp/${HVD_SOURCE%%:*}/2049\" 2>/dev/null; do sleep 1; done'
[Install]
WantedBy=multi-user.target" || true
fi
# Not before remote-fs.target, as such mounts are: logging in waits for that one, and so would wait for the head.
stale=
if unit shared.mount "[Unit]
Description=Share of the hvdctl cluster $HVD_CLUSTER
DefaultDependencies=no
${after:+Requires=$after
}After=local-fs.target network.target${after:+ $after}
Before=umount.target
Conflicts=umount.target
[Mount]
What=$(printf %s "$HVD_SOURCE" | sed 's/%/%%/g')
Where=$point
Type=$kind
Options=$options
TimeoutSec=60
LazyUnmount=yes
[Install]
WantedBy=multi-user.target"; then
    stale=1
fi

# A head that was made anew leaves a mount of what is gone, and so does a folder in the place of the one that was bound.
if mounted "$point"; then
    if ! alive "$point" || { [ "$kind" = none ] && ! same "$point" "$HVD_SOURCE"; }; then
        stale=1
    fi
    if [ -n "$stale" ]; then
        timeout 90 systemctl stop shared.mount || true
        ! mounted "$point" || umount -l -c "$point"
    fi
fi
if ! mounted "$point"; then
    [ -d "$point" ] || folder "$point" 755
    if ! timeout "$HVD_WAIT" systemctl start shared.mount 2>/dev/null; then
        systemctl stop --no-block shared.mount ${after:+"$after"}
        fail "$HVD_SOURCE can't be mounted on $point within $HVD_WAIT s${after:+; does port 2049 of the head answer here?}" \
            "$(journalctl -q -b -u shared.mount -n 8 -o cat | grep -v shared.mount | tail -n 2 | tr '\n' ' ')"
    fi
    changed "$point mounted from $HVD_SOURCE"
fi
if [ -z "$after" ] && ! timeout -s KILL 10 setpriv --reuid "$HVD_USER" --regid "$HVD_USER" --clear-groups test -w "$point"; then
    fail "the containers' user $HVD_USER can't write to $HVD_SOURCE: \`setfacl -m u:$HVD_USER:rwx $HVD_SOURCE\`, or chown it"
fi
