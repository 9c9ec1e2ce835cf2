#!/bin/sh
# Keeps the traffic of convey's passthrough mode from the balancer's own network stack, which would answer it
# with resets. convey does so itself (guard = true); this is for kernels where it cannot, with guard = false.
# usage: [NAME=VALUE...] passthrough.sh up|down|status
#
#   VIP             where clients connect to; needed for up
#   PORTS           TCP ports of the frontends: "80" or "80 443"; needed for up
#   SERVERS         the servers: "10.0.0.11:80 10.0.0.12:80"; needed for up
#   SNAT_ADDRESSES  the balancer's addresses that servers see: "10.0.0.1"; needed for up
#   SNAT_PORTS      as snat_ports in convey's configuration [33768-61000]
#
# Each is idempotent: up replaces what an earlier up has set, in one step; down removes it if it is there.
# Replies to other ports of the balancer, such as answers to health checks (from 32768-33767), pass. Needs root.
set -eu

CHAIN=CONVEY-PASSTHROUGH
SNAT_PORTS=${SNAT_PORTS:-33768-61000}

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?TCP ports of the frontends}"
    : "${SERVERS:?the servers, IP:port}" "${SNAT_ADDRESSES:?addresses that servers see}"
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
    for server in $SERVERS; do
        for address in $SNAT_ADDRESSES; do
            echo "-A $CHAIN -s ${server%:*} -d $address -p tcp --sport ${server##*:}" \
                "--dport ${SNAT_PORTS%-*}:${SNAT_PORTS#*-} -j DROP"
        done
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
