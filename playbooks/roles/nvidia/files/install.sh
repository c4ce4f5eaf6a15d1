#!/bin/sh
# Driver and toolkit, from package sources that are added where they are missing.
# shellcheck disable=SC1091 # it is on the machine
. /etc/os-release
case $HVD_REPOSITORY in
    https://* | http://* | file:/*) ;;
    *) fail "nvidia_toolkit_repository is '$HVD_REPOSITORY', which is no address of a package source" ;;
esac

if [ "$ID" = debian ]; then
    # The driver is in parts of the distribution that may not be switched on; from the mirror that is in use.
    mirror=$(grep -hoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
    parts="contrib non-free"
    [ "${VERSION_ID%%.*}" -lt 12 ] || parts="$parts non-free-firmware"
    put /etc/apt/sources.list.d/hvdctl-nonfree.list 644 "deb ${mirror:-http://deb.debian.org/debian} $VERSION_CODENAME $parts" || true
fi

key=/etc/apt/keyrings/hvdctl-nvidia.asc
if [ ! -s "$key" ]; then
    mkdir -p "${key%/*}"
    # Python is on every machine that preflight lets through, curl need not be.
    python3 -c 'import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=60).read())' \
        "$HVD_REPOSITORY/gpgkey" >"$key.new" || fail "$HVD_REPOSITORY/gpgkey can't be fetched"
    mv "$key.new" "$key"
    changed "$key"
fi
put /etc/apt/sources.list.d/hvdctl-nvidia.list 644 \
    "deb [signed-by=$key] $HVD_REPOSITORY/stable/deb/$(dpkg --print-architecture) /" || true

# shellcheck disable=SC2086 # a list of words
add_packages $HVD_PACKAGES
