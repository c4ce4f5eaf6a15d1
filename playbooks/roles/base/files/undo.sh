#!/bin/sh
# Takes from the machine what apply.sh gave it; packages stay.
[ -d "$HVD_ETC" ] || exit 0

others=$(sed "/^# hvdctl $HVD_CLUSTER: begin\$/,/^# hvdctl $HVD_CLUSTER: end\$/d" /etc/hosts)
put /etc/hosts 644 "$others" || true
drop /etc/security/limits.d/hvdctl.conf /etc/cloud/cloud.cfg.d/99-hvdctl-hosts.cfg
# Last of all: while it is there, a teardown that was cut short can be repeated.
drop "$HVD_ETC"
rmdir /etc/hvdctl 2>/dev/null || true
