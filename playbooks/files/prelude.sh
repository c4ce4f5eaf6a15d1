#!/bin/sh
# Goes before every script that a role runs on a machine, after a line for each of its settings (HVD_CLUSTER=demo).
# A line "changed: ..." on stdout is a change; what a failed script wrote to stderr is what the user is shown.
set -eu
umask 022
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck disable=SC2034 # the scripts after it use it
HVD_ETC=/etc/hvdctl/$HVD_CLUSTER
HVD_UNITS=/etc/systemd/system
# The containers' user here. The first account of a machine is 1000, the user in the image, and may look into every process
# of its own number. This one is in no range that accounts, subordinate ids or systemd take numbers from.
# shellcheck disable=SC2034
HVD_USER=74830

fail() {
    echo "$*" >&2
    exit 1
}

changed() {
    echo "changed: $*"
}

# put FILE MODE TEXT: the file holds the text; true where it did not before. Written in place, as a container may have
# it mounted.
put() {
    if [ "$(cat "$1" 2>/dev/null)" = "$3" ] && [ "$(stat -c %a "$1")" = "$2" ]; then
        return 1
    fi
    # -e does not count in the conditions that this function is called in.
    if ! mkdir -p "${1%/*}" || ! printf '%s\n' "$3" >"$1" || ! chmod "$2" "$1"; then
        fail "can't write $1"
    fi
    changed "$1"
}

# folder PATH MODE [OWNER]
folder() {
    if [ "$(stat -c '%a %u:%g' "$1" 2>/dev/null)" != "$2 ${3:-0:0}" ]; then
        mkdir -p "$1"
        chown "${3:-0:0}" "$1"
        chmod "$2" "$1"
        changed "$1"
    fi
}

# hand_over FOLDER: what versions before gave to user 1000 is the containers' user's.
hand_over() {
    if [ "$(stat -c %u "$1" 2>/dev/null)" = 1000 ]; then
        chown -R -h --from=1000:1000 "$HVD_USER:$HVD_USER" "$1"
        changed "$1 given to user $HVD_USER"
    fi
}

# drop PATH...: none of these is there any more. What someone mounted below it is not theirs to lose.
drop() {
    for path in "$@"; do
        if [ -e "$path" ] || [ -L "$path" ]; then
            rm -rf --one-file-system "$path" || fail "can't remove $path"
            changed "$path removed"
        fi
    done
}

# unit NAME TEXT: the unit is there and starts with the machine; true where it was another one. Reloading takes seconds
# on a slow machine, so it is done only where systemd holds another state of the unit.
unit() {
    same=0
    put "$HVD_UNITS/$1" 644 "$2" || same=1
    if [ "$same" = 0 ] && [ "$(systemctl show --property NeedDaemonReload --value "$1")" != no ]; then
        systemctl daemon-reload
    fi
    enabled "$1"
    return "$same"
}

# enabled UNIT: it starts with the machine.
enabled() {
    if ! systemctl is-enabled --quiet "$1" 2>/dev/null; then
        systemctl enable --quiet --no-reload "$1" || fail "can't enable $1"
        changed "$1 enabled"
    fi
}

# retire NAME...: these units are stopped and gone.
retire() {
    for name in "$@"; do
        if [ -e "$HVD_UNITS/$name" ]; then
            systemctl disable --quiet --no-reload --now "$name" || fail "can't stop $name: see \`systemctl status $name\` there"
            drop "$HVD_UNITS/$name"
        fi
    done
}

# mounted PATH: something is mounted there. From the kernel's list: a look at the path itself waits for a lost server.
mounted() {
    awk -v path="$1" '$2 == path { found = 1 } END { exit !found }' /proc/mounts
}

# alive FOLDER: it answers within 10 s, and is still on its server. A name of this moment is asked for, as the kernel
# remembers what it saw before.
alive() {
    code=0
    said=$(timeout -s KILL 10 stat "$1/.hvdctl-$(date +%s%N)" 2>&1) || code=$?
    case $code$said in
        137* | *"Stale file handle"* | *"Input/output error"*) return 1 ;;
    esac
}

# same FOLDER FOLDER: the two are one, seen at two places.
same() {
    [ "$(timeout -s KILL 10 stat -c %d:%i "$1" "$2" 2>/dev/null | uniq -d | wc -l)" = 1 ]
}

# add_packages NAME...: they are installed, and none that was there is gone.
add_packages() {
    patient apt-get -q update
    patient apt-get -q --simulate --no-install-recommends install "$@"
    gone=$(echo "$said" | sed -n 's/^Remv \([^ ]*\).*/\1/p' | tr '\n' ' ')
    [ -z "$gone" ] || fail "installing $* would remove ${gone% }, which is left as it is: see \`apt-get --simulate install $*\`" \
        "there, and install or remove by hand what you can spare"
    patient apt-get -q -y --no-remove --no-install-recommends \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold install "$@"
    changed "packages installed: $*"
}

# patient COMMAND...: runs it, with what it says in $said. While another process holds the lock of apt or dpkg it is tried
# again, for five minutes.
patient() {
    deadline=$(($(date +%s) + 300))
    until said=$("$@" 2>&1); do
        case $said in
            *" locked by "* | *"not get lock "*) ;;
            *) fail "\`$*\` failed: $(echo "$said" | tail -n 4)" ;;
        esac
        [ "$(date +%s)" -lt "$deadline" ] || fail "another process installs packages for more than 300 s: $said"
        sleep 2
    done
}
