#!/bin/sh
# Stopping the unit lifts rate and delay. A machine without the unit is left as it is: its shaping is not ours.
[ -d "$HVD_ETC" ] || exit 0

retire hvdctl-link.service
drop "$HVD_ETC/link" /usr/local/sbin/hvd-link
