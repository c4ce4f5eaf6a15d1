#!/usr/bin/env bash
# Makes sure that a Docker engine answers: installs and starts one if none does. Can be run again at any time.
# With --check it changes nothing; exit code 1 if none answers.
set -euo pipefail

readonly socket=/var/run/docker.sock
readonly log=/var/log/hvdctl-dockerd.log
readonly patience=60

main() {
    if [[ ${1:-} == --check ]]; then
        [[ -n ${DOCKER_HOST:-} && $DOCKER_HOST != "unix://$socket" ]] || answers
        return
    fi
    if [[ -n ${DOCKER_HOST:-} && $DOCKER_HOST != "unix://$socket" ]]; then
        say "DOCKER_HOST is set to $DOCKER_HOST: that engine is used, none is started here"
        return
    fi
    if answers; then
        say "a Docker engine ($(version)) already answers at $socket"
        return
    fi

    become_root
    local did=started
    if ! have dockerd; then
        install_engine
        did="installed and started"
    fi
    # Installing the package may have started it, and so may someone else in the meantime.
    answers || start
    wait_for_answer
    say "$did Docker $(version), reached at $socket"
    hint_group
}

# Whether the engine behind the socket answers. Whatever docker command stands on PATH plays no part.
answers() {
    [[ $(ask /_ping) == OK ]]
}

version() {
    ask /version | sed -n 's/.*"Version":"\([^"]*\)","ApiVersion".*/\1/p'
}

# What the engine says to a GET of the path; nothing where there is none.
ask() {
    local sudo=()
    [[ -w $socket || ! -e $socket ]] || ! have sudo || sudo=(sudo)
    if have curl; then
        "${sudo[@]}" curl -sS --max-time 5 --unix-socket "$socket" "http://engine$1" 2>/dev/null || true
    else
        "${sudo[@]}" python3 - "$socket" "$1" 2>/dev/null <<'PYTHON' || true
import http.client, socket, sys
connection = http.client.HTTPConnection("engine", timeout=5)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.settimeout(5)
connection.sock.connect(sys.argv[1])
connection.request("GET", sys.argv[2])
print(connection.getresponse().read().decode())
PYTHON
    fi
}

install_engine() {
    have apt-get || die "no dockerd and no apt-get here: install Docker by hand, see https://docs.docker.com/engine/install/"
    say "installing docker.io with apt"
    local said
    if ! said=$("$(dirname "$0")/system.sh" --engine 2>&1); then
        printf '%s\n' "$said" | tail -n 5 >&2
        die "apt can't install docker.io"
    fi
}

start() {
    if [[ -d /run/systemd/system ]]; then
        as_root systemctl start docker || die "systemd can't start docker: see journalctl -u docker"
        return
    fi
    # The service script may be missing, or refuse (ulimits in a container): then the daemon itself is started.
    if [[ -x /etc/init.d/docker ]] && as_root service docker start >/dev/null 2>&1 && soon; then
        return
    fi
    # No TCP port, whatever the host's defaults are: the socket is enough. Its own session outlives this script.
    as_root setsid --fork sh -c "exec dockerd --host unix://$socket >>$log 2>&1 </dev/null"
}

# Whether a daemon that was just started answers within a few seconds.
soon() {
    local _
    for _ in {1..20}; do
        answers && return 0
        sleep 0.5
    done
    return 1
}

wait_for_answer() {
    local end=$((SECONDS + patience))
    until answers; do
        if ((SECONDS >= end)); then
            as_root tail -n 5 "$log" /var/log/docker.log 2>/dev/null >&2 || true
            die "the Docker engine does not answer at $socket after $patience s"
        fi
        sleep 0.5
    done
}

hint_group() {
    if [[ ! -w $socket ]]; then
        say "to use it without sudo: sudo usermod -aG docker $(id -un), then log in again"
    fi
}

become_root() {
    ((EUID == 0)) || have sudo || die "root is needed to start a Docker engine, and there is no sudo"
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        sudo "$@"
    fi
}

have() {
    # Daemons live where a plain user's PATH may not look.
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null
}

say() {
    printf 'engine: %s\n' "$*"
}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

main "$@"
