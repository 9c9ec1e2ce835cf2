#!/bin/sh
# Keeps the traffic of convey's DSR mode from the balancer's own network stack, which would answer it with
# resets. convey does so itself (guard = true); this is for kernels where it cannot, with guard = false.
# usage: [NAME=VALUE...] dsr.sh up|down|status
#
#   VIP    where clients connect to; needed for up
#   PORTS  TCP ports of the frontends: "80" or "80 443"; needed for up
#
# Each is idempotent: up replaces what an earlier up has set, in one step; down removes it if it is there.
# What goes to the balancer's other addresses, such as answers to health checks, passes. Needs root.
set -eu

CHAIN=CONVEY-DSR

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?TCP ports of the frontends}"
    # Packet sockets see a packet before any of this, so convey misses none of what is dropped here.
    rules | iptables-restore --noflush
    is_used || iptables -t raw -I PREROUTING ! -i lo -j $CHAIN
}

down() {
    if is_used; then
        iptables -t raw -D PREROUTING ! -i lo -j $CHAIN
    fi
    if status >/dev/null 2>&1; then
        iptables -t raw -F $CHAIN
        iptables -t raw -X $CHAIN
    fi
}

status() {
    iptables -t raw -vnL $CHAIN
}

rules() {
    echo "*raw"
    echo ":$CHAIN - [0:0]"
    for port in $PORTS; do
        echo "-A $CHAIN -d $VIP -p tcp --dport $port -j DROP"
    done
    echo "COMMIT"
}

is_used() {
    iptables -t raw -C PREROUTING ! -i lo -j $CHAIN 2>/dev/null
}

case "${1-}" in
    up | down | status) "$1" ;;
    *) sed -n '/^# usage/,/Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
