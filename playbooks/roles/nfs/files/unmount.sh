#!/bin/sh
# /shared is no mount any more. A head that is gone does not hold it up, and neither does a mount that still waits for it.
[ -d "$HVD_ETC" ] || exit 0
# A mount of another's making is left alone.
grep -qs "hvdctl cluster $HVD_CLUSTER\$" "$HVD_UNITS/shared.mount" || [ -e "$HVD_UNITS/hvdctl-share.service" ] || exit 0

systemctl disable --quiet --no-reload shared.mount hvdctl-share.service 2>/dev/null || true
drop "$HVD_UNITS/hvdctl-share.service"
systemctl daemon-reload
systemctl stop shared.mount hvdctl-share.service 2>/dev/null || true
! mounted /shared || umount -l -c /shared
# Last, so that a teardown that was cut short begins here again.
drop "$HVD_UNITS/shared.mount"
rmdir /shared 2>/dev/null || true
