#!/bin/sh
# /shared, mounted now and at every start of the machine, before the engine starts the container that needs it.
point=/shared
case $HVD_SOURCE in
    /*)
        [ -d "$HVD_SOURCE" ] || fail "$HVD_SOURCE is not there: it has to be a folder that all machines have in common"
        kind=none options=bind after=
        ;;
    *) kind=nfs options=nfsvers=4.2,proto=tcp,hard,noatime,_netdev after=hvdctl-share.service ;;
esac

if ! mountpoint -q "$point" && [ -n "$(ls -A "$point" 2>/dev/null)" ]; then
    fail "$point is there already and holds files: move them away, the cluster's share is mounted there"
fi
[ -d "$point" ] || folder "$point" 755

# It waits for the head as long as it takes, as both may have been started at the same moment. The mount itself must not:
# the time that it has is also what a machine takes to end when its head is gone.
if [ -n "$after" ]; then
    unit hvdctl-share.service "[Unit]
Description=The head of the hvdctl cluster $HVD_CLUSTER serves its share
After=network.target
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
Before=docker.service umount.target
Conflicts=umount.target
[Mount]
What=$HVD_SOURCE
Where=$point
Type=$kind
Options=$options
TimeoutSec=60
LazyUnmount=yes
[Install]
WantedBy=multi-user.target"; then
    stale=1
fi
# It is read at the next start of the machine; the engine that runs now is not touched.
put "$HVD_UNITS/docker.service.d/hvdctl.conf" 644 "[Unit]
RequiresMountsFor=$point" || true

if [ -n "$stale" ] && mountpoint -q "$point"; then
    umount -l "$point"
fi
if ! mountpoint -q "$point"; then
    if ! timeout "$HVD_WAIT" systemctl start shared.mount; then
        systemctl stop --no-block shared.mount ${after:+"$after"}
        fail "$HVD_SOURCE can't be mounted on $point within $HVD_WAIT s${after:+; does port 2049 of the head answer here?}" \
            "$(journalctl -q -u shared.mount -n 3 -o cat | tr '\n' ' ')"
    fi
    changed "$point mounted from $HVD_SOURCE"
fi
