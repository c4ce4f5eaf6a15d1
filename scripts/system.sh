#!/usr/bin/env bash
# Makes sure that the programs hvdctl calls are there: installs Debian packages, asks for Terraform.
# With --tests, also those that only the tests call.
set -euo pipefail

# program:package
readonly needed=(ssh:openssh-client rsync:rsync setpriv:util-linux debootstrap:debootstrap)
readonly tests_need=(chromium:chromium qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils vde_switch:vde2)

main() {
    local missing=() wanted=("${needed[@]}") entry
    case ${1:-} in
        "") ;;
        --tests) wanted+=("${tests_need[@]}") ;;
        *) echo "system: $1 is not an option; there is only --tests" >&2; exit 2 ;;
    esac
    for entry in "${wanted[@]}"; do
        have "${entry%%:*}" || missing+=("${entry##*:}")
    done
    "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    ((${#missing[@]} == 0)) || install "${missing[@]}"
    have terraform || have tofu || {
        echo "system: neither terraform nor tofu is on PATH." >&2
        echo "  Terraform: https://developer.hashicorp.com/terraform/install" >&2
        echo "  OpenTofu:  https://opentofu.org/docs/intro/install" >&2
        exit 1
    }
}

install() {
    have apt-get || { echo "system: install these by hand, there is no apt-get here: $*" >&2; exit 1; }
    echo "system: installing $*"
    local said
    if ! said=$({ as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "$@"; } 2>&1); then
        printf '%s\n' "$said" | tail -n 5 >&2
        echo "system: apt can't install $*" >&2
        exit 1
    fi
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

have() {
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null
}

main "$@"
