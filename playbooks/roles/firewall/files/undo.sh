#!/bin/sh
# Stopping the unit takes the table away.
[ -d "$HVD_ETC" ] || exit 0

retire hvdctl-firewall.service
drop "$HVD_ETC/nftables.conf"
