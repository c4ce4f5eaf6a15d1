#!/bin/sh
# The container runs, and is the one that was asked for. Where its keys or its image are missing, it says so
# ("needed: ...") and does nothing else; with HVD_BROUGHT they have just been brought.
node=hvdctl-node.service
scratch=/var/lib/hvdctl/$HVD_CLUSTER
brought="$HVD_ETC/images"

if other=$(getent passwd "$HVD_USER"); then
    fail "the user id $HVD_USER of the containers is that of the account ${other%%:*} here"
fi
# One call for both: on a slow machine the client alone takes seconds.
seen=$(docker inspect --format \
    '{{with index . "State"}}container {{.Running}} {{index $.Config.Labels "hvdctl.digest"}} {{.Pid}}{{else}}image {{.Id}}{{end}}' \
    "$HVD_NAME" "$HVD_IMAGE" 2>/dev/null) || true
image=$(echo "$seen" | sed -n 's/^image //p')
container=$(echo "$seen" | sed -n 's/^container //p')
needed=
if [ "$(stat -c '%a %u:%g' "$HVD_ETC/ssh" 2>/dev/null)" != "750 0:$HVD_USER" ] ||
    ! (cd "$HVD_ETC/ssh" && echo "$HVD_SUMS" | sha256sum --check --status); then
    echo "needed: keys"
    needed=1
fi
# What was just brought counts whatever its id: engines that store images in another way count them in another way.
if [ -z "$image" ] || { [ -n "$HVD_IMAGE_ID" ] && [ "$image" != "$HVD_IMAGE_ID" ] && [ -z "$HVD_BROUGHT" ]; }; then
    echo "needed: image"
    needed=1
    # Images that were here before are not ours to remove.
    if [ -z "$image" ] && ! grep -qsFx "$HVD_IMAGE" "$brought"; then
        echo "$HVD_IMAGE" >>"$brought"
    fi
fi
if [ -n "$needed" ]; then
    [ -z "$HVD_BROUGHT" ] || fail "what the container needs is still missing after it was brought (image $HVD_IMAGE)"
    exit 0
fi

# A container sees the share as it was mounted when it started: one that was lost and mounted again is not in it.
sees_share() {
    alive "/proc/$1/root/shared" && same "/proc/$1/root/shared" /shared
}

# as_own_user: the container's user `hvd` has the number that it has here, and its home.
as_own_user() {
    own=$(mktemp -d)
    mkdir "$own/home"
    docker cp "$HVD_NAME:/etc" - | tar -C "$own" -x etc/passwd etc/group || fail "$HVD_IMAGE has no accounts"
    docker cp "$HVD_NAME:/home/hvd" "$own/home/hvd" || fail "$HVD_IMAGE has no user hvd"
    sed -i "s/^\(hvd:[^:]*\):[0-9]*:[0-9]*:/\1:$HVD_USER:$HVD_USER:/" "$own/etc/passwd"
    sed -i "s/^\(hvd:[^:]*\):[0-9]*:/\1:$HVD_USER:/" "$own/etc/group"
    chown -R -h "$HVD_USER:$HVD_USER" "$own/home/hvd"
    # As an archive, which keeps owners whatever the version of the engine.
    tar -C "$own" --numeric-owner -c home/hvd etc/passwd etc/group | docker cp - "$HVD_NAME:/"
    rm -rf "$own"
}

digest=$(printf '%s\n' "$image" "$HVD_USER" "$HVD_SUMS" "$HVD_RUN" "$(cat "$HVD_UNITS/shared.mount")" | sha256sum | cut -c 1-16)
started=
if [ "${container% *}" != "true $digest" ] || ! sees_share "${container##* }"; then
    hand_over "$scratch"
    folder "$scratch" 755 "$HVD_USER:$HVD_USER"
    [ ! -e "$HVD_UNITS/$node" ] || systemctl stop "$node"
    [ -z "$container" ] || docker rm --force "$HVD_NAME" >/dev/null
    eval "set -- $HVD_RUN"
    docker create --name "$HVD_NAME" --label "hvdctl.digest=$digest" --user "$HVD_USER:$HVD_USER" "$@" "$HVD_IMAGE" >/dev/null
    as_own_user
    docker start "$HVD_NAME" >/dev/null
    changed "container $HVD_NAME started"
    started=1
fi
# The engine's own restart policies don't wait for the share, and an engine that waits keeps what else it runs waiting too.
# So the engine starts nothing, and this does: after the share, after every restart of the engine, after a crash. It is
# pulled in by the engine, as multi-user.target would wait for it.
if unit "$node" "[Unit]
Description=Horovod container of the hvdctl cluster $HVD_CLUSTER
Requires=docker.service
Wants=shared.mount
After=docker.service shared.mount
StartLimitIntervalSec=0
[Service]
ExecStartPre=mountpoint -q /shared
ExecStartPre=docker start $HVD_NAME
ExecStart=docker wait $HVD_NAME
ExecStop=-docker stop $HVD_NAME
TimeoutStopSec=30
Restart=always
RestartSec=5
[Install]
WantedBy=docker.service"; then
    # The engine's unit learns of it.
    systemctl daemon-reload
fi
if ! systemctl is-active --quiet "$node"; then
    systemctl start "$node" || fail "$node does not start: see \`journalctl -u $node\` there"
    changed "$node started"
    started=1
fi
[ -n "$started" ] || exit 0

greeted() {
    timeout 2 bash -c 'exec 3<>/dev/tcp/127.0.0.1/2222 && head -c 4 <&3' 2>/dev/null | grep -q SSH-
}
deadline=$(($(date +%s) + HVD_WAIT))
until greeted; do
    if [ "$(date +%s)" -gt "$deadline" ]; then
        fail "no SSH server greets on 127.0.0.1:2222 within $HVD_WAIT s; the container's last words:" \
            "$(docker logs --tail 3 "$HVD_NAME" 2>&1 | tr '\n' ' ')"
    fi
    sleep 0.3
done
