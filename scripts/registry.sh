#!/usr/bin/env bash
# Unpacks Debian's docker-registry into a folder, for the tests.
set -euo pipefail

main() {
    local folder=${1:?usage: registry.sh FOLDER} said
    rm -rf "$folder"
    mkdir -p "$folder"
    cd "$folder"
    # Lists of packages may be missing or too old.
    if ! said=$(fetch 2>&1) && ! said=$({ as_root apt-get update -q && fetch; } 2>&1); then
        printf '%s\n' "$said" | tail -n 5 >&2
        echo "registry: apt can't give docker-registry" >&2
        exit 1
    fi
    dpkg-deb -x docker-registry_*.deb .
    rm docker-registry_*.deb
}

fetch() {
    apt-get download -q docker-registry
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

main "$@"
