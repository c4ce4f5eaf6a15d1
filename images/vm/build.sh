#!/bin/sh
# Makes the disk of a virtual machine, run as root in a container of the image that is to be its root file system.
#
#   hvd-build OUT SIZE [ARCHIVE]    OUT/disk.raw, OUT/vmlinuz, OUT/initrd; the container images of ARCHIVE loaded
set -eu

out=$1
size=$2
archive=${3:-}
root=/making/root

mkdir -p "$root"
tar --one-file-system --exclude=./making --exclude=./dev -C / -cf - . | tar -C "$root" -xpf -
# What the engine mounts over the container's own is not in the copy.
for folder in dev proc sys run tmp; do
    mkdir -p "$root/$folder"
done
chmod 1777 "$root/tmp"
rm -f "$root/.dockerenv" "$root/etc/hostname"
ln -sf ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"

if [ -n "$archive" ]; then
    # An engine for the moment, on the disk's own folder: loading in the guest would take minutes.
    dockerd --data-root "$root/var/lib/docker" --exec-root /run/hvd-build --pidfile /run/hvd-build.pid \
        --host unix:///run/hvd-build.sock --iptables=false --bridge=none >/run/hvd-build.log 2>&1 &
    engine=$!
    export DOCKER_HOST=unix:///run/hvd-build.sock
    for _ in $(seq 100); do
        docker info >/dev/null 2>&1 && break
        sleep 0.2
    done
    docker load --quiet --input "$archive" || { tail -n 5 /run/hvd-build.log >&2; exit 1; }
    kill "$engine"
    wait "$engine" || true
fi

# The file is full of holes, and so zero already: no guest has to write its inode tables.
rm -f "$out/disk.raw"
mke2fs -q -t ext4 -L hvdctl -E assume_storage_prezeroed=1 -d "$root" "$out/disk.raw" "$size"
cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp "$root"/boot/initrd.img-* "$out/initrd"
chmod 0644 "$out/vmlinuz" "$out/initrd" "$out/disk.raw"
