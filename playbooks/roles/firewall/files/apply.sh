#!/bin/sh
# A table of our own, loaded by a unit of our own: what else the machine has of nftables is not touched.
rules="$HVD_ETC/nftables.conf"
stale=

# Without the port that we are logged in through, nobody would log in again.
case $HVD_SSH_PORT in
    "" | 0* | *[!0-9]*) [ -z "$HVD_GUARD" ] || fail "'$HVD_SSH_PORT' is no port of SSH: the firewall is not loaded" ;;
esac

# What a cloud tells a machine about itself includes the machine's private host key. Jobs have no business there.
closed=
[ -z "$HVD_CLOSED" ] || closed="
        ip daddr { $HVD_CLOSED } meta l4proto { tcp, udp } th dport 53 accept
        ip daddr { $HVD_CLOSED } reject"
jobs="
    chain jobs {
        type filter hook output priority filter; policy accept;
        meta skuid != $HVD_USER accept
        ip daddr 169.254.169.254 reject
        ip6 daddr { fd00:ec2::254, fe80::a9fe:a9fe } reject$closed
    }"
input="
    chain input {
        type filter hook input priority filter; policy drop;
        ct state established,related accept
        iif lo accept
        iifname docker0 accept
        meta l4proto { icmp, ipv6-icmp } accept
        udp dport { 68, 546 } accept
        tcp dport { $HVD_SSH_PORT${HVD_PORTS:+, $HVD_PORTS} } accept
        ip saddr { $HVD_MACHINES } accept
    }"
[ -n "$HVD_GUARD" ] || input=

# The first two lines make loading it again a replacement, in one transaction. Only the machine's own ports are guarded;
# forwarding belongs to Docker. Leases of its addresses have to reach the machine too.
if put "$rules" 644 "table inet hvdctl
delete table inet hvdctl
table inet hvdctl {$input$jobs
}"; then
    nft -c -f "$rules" || fail "nft does not take $rules"
    stale=1
fi
if unit hvdctl-firewall.service "[Unit]
Description=Firewall of the hvdctl cluster $HVD_CLUSTER
DefaultDependencies=no
Wants=network-pre.target
Before=network-pre.target shutdown.target
After=local-fs.target nftables.service
Conflicts=shutdown.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f $rules
ExecReload=/usr/sbin/nft -f $rules
ExecStop=-/usr/sbin/nft delete table inet hvdctl
[Install]
WantedBy=multi-user.target"; then
    stale=1
fi
if [ -n "$stale" ] || ! nft list table inet hvdctl >/dev/null 2>&1; then
    systemctl reload-or-restart hvdctl-firewall.service
    changed "firewall loaded"
fi
