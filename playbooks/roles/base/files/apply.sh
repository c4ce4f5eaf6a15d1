#!/bin/sh
# Time, limits, names, the cluster's folder, and the packages that are missing.

# First of all: what lies in it says whose machine this is, to preflight and to teardown.
folder "$HVD_ETC" 755
if [ -n "$HVD_OWNER" ]; then
    # hvdctl looked minutes ago: another owner may have taken the machine since. Only one of two creates the file.
    [ -e "$HVD_ETC/owner" ] || (set -C; printf '%s\n' "$HVD_OWNER" >"$HVD_ETC/owner") 2>/dev/null || true
    for mark in "$HVD_ETC/owner" "/srv/hvdctl/.$HVD_CLUSTER.owner"; do
        [ -s "$mark" ] || continue
        found=$(head -n 1 "$mark")
        # shellcheck disable=SC2153 # main.yml sets both
        case " $HVD_OWNERS ${HVD_OWNER%% *} " in
            *" ${found%% *} "*) ;;
            *) fail "it is part of another cluster $HVD_CLUSTER by now, of ${found#* }: choose another --name" ;;
        esac
    done
    put "$HVD_ETC/owner" 644 "$HVD_OWNER" || true
fi

# Where root itself can't raise them, as in many system containers, PAM would refuse every login.
limits=/etc/security/limits.d/hvdctl.conf
if prlimit --memlock=unlimited --nofile=1048576 true 2>/dev/null; then
    put "$limits" 644 "# hvdctl: registered memory for RDMA, a file for every connection of a large job
* - memlock unlimited
* - nofile 1048576
root - memlock unlimited
root - nofile 1048576" || true
else
    echo "limits stay as they are: root can't raise them here"
    drop "$limits"
fi

# First in the file: a line such as "127.0.1.1 node0" would send ranks on this machine to the loopback.
begin="# hvdctl $HVD_CLUSTER: begin"
end="# hvdctl $HVD_CLUSTER: end"
others=$(sed "/^$begin\$/,/^$end\$/d" /etc/hosts)
put /etc/hosts 644 "$begin
$HVD_HOSTS
$end
$others" || true
# Where cloud-init writes that file anew at every boot, it is told not to.
if [ -d /etc/cloud/cloud.cfg.d ]; then
    put /etc/cloud/cloud.cfg.d/99-hvdctl-hosts.cfg 644 "manage_etc_hosts: false" || true
fi

# An installation that was cut short leaves commands that don't work yet.
if grep -qE '^Status: .*(half-installed|half-configured|unpacked|triggers-pending)' /var/lib/dpkg/status; then
    patient dpkg --configure -a
    changed "interrupted installation of packages completed"
fi
missing=
for pair in $HVD_PACKAGES; do
    command -v "${pair%%=*}" >/dev/null || missing="${missing:+$missing }${pair#*=}"
done

if ! systemctl is-active --quiet systemd-timesyncd chrony chronyd ntp ntpd ntpsec openntpd; then
    if systemctl cat systemd-timesyncd >/dev/null 2>&1; then
        systemctl enable --quiet --now systemd-timesyncd
        changed "time synchronisation started"
    else
        missing="${missing:+$missing }systemd-timesyncd"
    fi
fi
# shellcheck disable=SC2086 # a list of words
[ -z "$missing" ] || add_packages $missing
