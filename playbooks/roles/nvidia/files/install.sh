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

# One that was fetched earlier counts only if it is the expected one.
key=/etc/apt/keyrings/hvdctl-nvidia.asc
if ! python3 -c "$HVD_KEY" "file://$key" "$HVD_FINGERPRINT" >/dev/null 2>&1; then
    mkdir -p "${key%/*}"
    # Python is on every machine that preflight lets through, curl and gpg need not be.
    python3 -c "$HVD_KEY" "$HVD_REPOSITORY/gpgkey" "$HVD_FINGERPRINT" >"$key.new" || {
        rm -f "$key.new"
        fail "the key of $HVD_REPOSITORY can't be used: see nvidia_toolkit_fingerprint if you have a repository of your own"
    }
    mv "$key.new" "$key"
    changed "$key"
fi
put /etc/apt/sources.list.d/hvdctl-nvidia.list 644 \
    "deb [signed-by=$key] $HVD_REPOSITORY/stable/deb/$(dpkg --print-architecture) /" || true

# shellcheck disable=SC2086 # a list of words
add_packages $HVD_PACKAGES
