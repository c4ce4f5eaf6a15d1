#!/bin/sh
# /shared is no mount any more. A head that is gone does not hold it up, and neither does a mount that still waits for it.
[ -d "$HVD_ETC" ] || exit 0
[ -e "$HVD_UNITS/shared.mount" ] || [ -e "$HVD_UNITS/hvdctl-share.service" ] || exit 0

# First systemd forgets that the engine needs the mount: it would stop the engine with it.
systemctl disable --quiet --no-reload shared.mount hvdctl-share.service 2>/dev/null || true
drop "$HVD_UNITS/docker.service.d/hvdctl.conf" "$HVD_UNITS/hvdctl-share.service"
rmdir "$HVD_UNITS/docker.service.d" 2>/dev/null || true
systemctl daemon-reload
systemctl stop shared.mount hvdctl-share.service 2>/dev/null || true
! mountpoint -q /shared || umount -l /shared
# Last, so that a teardown that was cut short begins here again.
drop "$HVD_UNITS/shared.mount"
rmdir /shared 2>/dev/null || true
