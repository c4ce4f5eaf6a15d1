#!/usr/bin/env bash
# Installs the Debian packages of the programs that hvdctl calls, as far as they are missing.
#
#   system.sh [--engine] [--tests] [--check]
#
# --engine: also a Docker engine. --tests: also what only the tests call. --check: install nothing; exit code 1 if
# something is missing.
set -euo pipefail

# program:package
readonly needed=(ssh:openssh-client rsync:rsync setpriv:util-linux debootstrap:debootstrap)
readonly for_engine=(dockerd:docker.io iptables:iptables)
readonly for_tests=(chromium:chromium qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils vde_switch:vde2)

main() {
    local missing=() wanted=("${needed[@]}") entry check=
    for entry in "$@"; do
        case $entry in
            --engine) wanted+=("${for_engine[@]}") ;;
            --tests) wanted+=("${for_tests[@]}") ;;
            --check) check=1 ;;
            *) echo "error: $entry is not an option of system.sh: --engine, --tests, --check" >&2; exit 2 ;;
        esac
    done
    for entry in "${wanted[@]}"; do
        have "${entry%%:*}" || missing+=("${entry##*:}")
    done
    # debootstrap only recommends it.
    [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || missing+=(debian-archive-keyring)
    "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    ((${#missing[@]} == 0)) && return
    [[ -z $check ]] || exit 1
    install "${missing[@]}"
}

install() {
    have apt-get || { echo "error: there is no apt-get here; install these by hand: $*" >&2; exit 1; }
    ((EUID == 0)) || have sudo || { echo "error: root or sudo is needed to install $*" >&2; exit 1; }
    echo "installing $*"
    local apt=(apt-get -q -o DPkg::Lock::Timeout=300)
    as_root dpkg --configure -a # an installation that was interrupted
    as_root "${apt[@]}" update
    as_root env DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "$@" || {
        echo "error: apt can't install $*" >&2
        exit 1
    }
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

have() {
    # Daemons are where a plain user's PATH may not look.
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null
}

main "$@"
