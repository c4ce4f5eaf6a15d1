#!/bin/sh
# Rate and delay of the interface that holds the private address, now and after every restart.
device=$(ip -o -4 addr show to "$HVD_ADDRESS/32" | awk '{ print $2; exit }')
[ -n "$device" ] || fail "none of the interfaces has the address $HVD_ADDRESS"
# A device unit has no hyphens in its name.
unit_of_device=sys-subsystem-net-devices-$(systemd-escape "$device").device
settings="DEVICE=$device
RATE=$HVD_RATE
DELAY=$HVD_DELAY"

# Whether packages are held back as they should be, but for tc's rounding.
delayed() {
    held=$(tc -json qdisc show dev "$device" | sed -n 's/.*"kind":"netem".*"delay":{"delay":\([0-9.e-]*\).*/\1/p')
    echo "${HVD_DELAY:-0s} ${held:-0}" | awk '{
        wanted = $1 / ($1 ~ /us$/ ? 1000000 : $1 ~ /ms$/ ? 1000 : 1)
        rounding = wanted / 100 + 0.000002
        exit !($2 >= wanted - rounding && $2 <= wanted + rounding)
    }'
}

put /usr/local/sbin/hvd-link 755 "$HVD_LINK" || true
# Whatever fails from here on: no limit is left that no unit would lift.
trap '[ $? = 0 ] || hvd-link "$device" none || true' EXIT
# By hand and first: the user is shown what it says, and where it fails nothing is left that would fail at every start.
if [ "$(cat "$HVD_ETC/link" 2>/dev/null)" != "$settings" ] || [ "$(hvd-link "$device" show)" != "$HVD_RATE" ] || ! delayed; then
    # shellcheck disable=SC2086 # no delay is no word
    hvd-link "$device" "$HVD_RATE" $HVD_DELAY
    changed "$device: rate $HVD_RATE${HVD_DELAY:+, delay $HVD_DELAY}"
fi
# Apart from the unit, so that another rate needs no reload of systemd.
put "$HVD_ETC/link" 644 "$settings" || true
unit hvdctl-link.service "[Unit]
Description=Link rate of the hvdctl cluster $HVD_CLUSTER
BindsTo=$unit_of_device
After=$unit_of_device
[Service]
Type=oneshot
RemainAfterExit=yes
EnvironmentFile=$HVD_ETC/link
ExecStart=/usr/local/sbin/hvd-link \$DEVICE \$RATE \$DELAY
ExecStop=/usr/local/sbin/hvd-link \$DEVICE none
[Install]
WantedBy=multi-user.target" || true
if ! systemctl is-active --quiet hvdctl-link.service; then
    systemctl start hvdctl-link.service
    changed "hvdctl-link.service started"
fi
