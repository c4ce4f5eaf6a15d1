#!/bin/sh
# What there is to know of a machine, as one line of JSON; changes nothing and needs no privileges.
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
# shellcheck disable=SC1091 # it is on the machine
. /etc/os-release

yes() {
    if "$@" >/dev/null 2>&1; then echo yes; else echo no; fi
}

free=$(df -Pk / | awk 'NR == 2 { printf "%.0f", $4 * 1024 }')
addresses=$(ip -o -4 addr show scope global | awk '{ printf "%s%s on %s", sep, $4, $2; sep = ", " }')
interface=$(ip -o -4 addr show to "$HVD_ADDRESS/32" | awk '{ print $2; exit }')
network=$(ip -o -4 route show scope link src "$HVD_ADDRESS" ${interface:+dev "$interface"} | awk '{ print $1; exit }')
clusters=$(find /etc/hvdctl -mindepth 1 -maxdepth 1 -type d -printf '%f ' 2>/dev/null)

# What is on /shared and not of hvdctl's own making. Nothing looks at the folder while something is mounted there: a lost
# server would not answer.
taken=
if ! grep -qs "hvdctl cluster" /etc/systemd/system/shared.mount; then
    mount=$(awk '$2 == "/shared" { print $1; exit }' /proc/mounts)
    line=$(awk '$1 !~ /^#/ && $2 ~ /^[/]shared[/]?$/ { print $1; exit }' /etc/fstab 2>/dev/null)
    unit=$(find /etc/systemd/system /run/systemd/system /usr/lib/systemd/system -maxdepth 1 \
        \( -name shared.mount -o -name shared.automount \) 2>/dev/null | head -n 1)
    if [ -n "$mount" ]; then
        taken="$mount is mounted there"
    elif [ -n "$line" ]; then
        taken="/etc/fstab has $line for it"
    elif [ -n "$unit" ]; then
        taken="$unit is for it"
    elif [ -L /shared ]; then
        taken="it is a link"
    elif [ -n "$(ls -A /shared 2>/dev/null)" ]; then
        taken="it holds files"
    fi
fi
# A share within /shared, or one that /shared is within, would be mounted on itself.
within=no
case $HVD_SHARE in
    /*) case $(timeout -s KILL 10 readlink -m "$HVD_SHARE") in /shared | /shared/* | /) within=yes ;; esac ;;
esac
# The snap's engine is confined, and its daemon is not on the search path.
snap=no
if [ -e /snap/bin/docker ] && ! command -v dockerd >/dev/null; then snap=yes; fi

gpus=0
for device in /sys/bus/pci/devices/*; do
    case $(cat "$device/vendor" "$device/class" 2>/dev/null | tr '\n' ' ') in
        "0x10de 0x03"*) gpus=$((gpus + 1)) ;;
    esac
done

printf '{"user": "%s", "sudo": "%s", "systemd": "%s", "python": "%s", "system": "%s", "release": "%s", ' \
    "$(id -un)" "$(yes sudo -n true)" "$(yes test -d /run/systemd/system)" "$(yes test -x /usr/bin/python3)" \
    "${ID:-unknown}" "${VERSION_ID:-0}"
printf '"free": %s, "interface": "%s", "network": "%s", "addresses": "%s", "port": "%s", "clusters": "%s", "gpus": %s, ' \
    "$free" "$interface" "${network:-$HVD_ADDRESS/32}" "$addresses" "${SSH_CONNECTION##* }" "$clusters" "$gpus"
printf '"taken": "%s", "within": "%s", "snap": "%s"}\n' "$(printf '%s\n' "$taken" | sed 's/["\\]//g')" "$within" "$snap"
