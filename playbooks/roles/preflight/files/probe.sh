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

gpus=0
for device in /sys/bus/pci/devices/*; do
    case $(cat "$device/vendor" "$device/class" 2>/dev/null | tr '\n' ' ') in
        "0x10de 0x03"*) gpus=$((gpus + 1)) ;;
    esac
done

printf '{"user": "%s", "sudo": "%s", "systemd": "%s", "python": "%s", "system": "%s", "release": "%s", ' \
    "$(id -un)" "$(yes sudo -n true)" "$(yes test -d /run/systemd/system)" "$(yes test -x /usr/bin/python3)" \
    "${ID:-unknown}" "${VERSION_ID:-0}"
printf '"free": %s, "interface": "%s", "network": "%s", "addresses": "%s", "port": "%s", "clusters": "%s", "gpus": %s}\n' \
    "$free" "$interface" "${network:-$HVD_ADDRESS/32}" "$addresses" "${SSH_CONNECTION##* }" "$clusters" "$gpus"
