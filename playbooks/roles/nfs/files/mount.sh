#!/bin/sh
# /shared, mounted now and at every start of the machine, before the engine starts the container that needs it.
point=/shared
case $HVD_SOURCE in
    /*)
        [ -d "$HVD_SOURCE" ] || fail "$HVD_SOURCE is not there: it has to be a folder that all machines have in common"
        kind=none options=bind
        ;;
    *)
        # It waits for the head as long as it takes: both may have been started at the same moment.
        kind=nfs options=nfsvers=4.2,proto=tcp,hard,noatime,_netdev,retry=100000
        ;;
esac

if ! mountpoint -q "$point" && [ -n "$(ls -A "$point" 2>/dev/null)" ]; then
    fail "$point is there already and holds files: move them away, the cluster's share is mounted there"
fi
[ -d "$point" ] || folder "$point" 755

# Without it the mount of a machine whose address comes late fails for good: the network is not reachable.
unit hvdctl-address.service "[Unit]
Description=Address $HVD_ADDRESS of the hvdctl cluster $HVD_CLUSTER
After=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=infinity
ExecStart=/bin/sh -c 'until ip -o addr show to $HVD_ADDRESS/32 | grep -q .; do sleep 0.2; done'
[Install]
WantedBy=multi-user.target" || true
# Not before remote-fs.target, as such mounts are: logging in waits for that one, and so would wait for the head. A head
# that is gone must not hold up the end of a machine either: hence a lazy unmount, after all files were closed.
stale=
if unit shared.mount "[Unit]
Description=Share of the hvdctl cluster $HVD_CLUSTER
DefaultDependencies=no
Requires=hvdctl-address.service
After=local-fs.target network.target network-online.target hvdctl-address.service
Wants=network-online.target
Before=docker.service umount.target
Conflicts=umount.target
[Mount]
What=$HVD_SOURCE
Where=$point
Type=$kind
Options=$options
TimeoutSec=infinity
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
        systemctl stop --no-block shared.mount
        fail "$HVD_SOURCE can't be mounted on $point after $HVD_WAIT s: $(journalctl -q -u shared.mount -n 3 -o cat | tr '\n' ' ')"
    fi
    changed "$point mounted from $HVD_SOURCE"
fi
