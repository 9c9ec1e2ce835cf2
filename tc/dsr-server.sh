#!/bin/sh
# Lets a server answer clients directly (DSR): what it sends from its service's ports leaves with the VIP as
# its source. Replies to the balancer itself, which are answers to health checks, stay as they are.
#
# This is the variant with tc: an htb qdisc to hang filters on, u32 to choose packets, `action nat` to rewrite
# them. Kernels without `action nat` (CONFIG_NET_ACT_NAT) use dsr-server-nft.sh.
# usage: [NAME=VALUE...] dsr-server.sh up|down|status
#
#   VIP        where clients connect to; needed for up
#   PORTS      TCP ports of the service, the same on VIP and server: "80" or "80 443"; needed for up
#   SERVER     this server's address that the balancer sends to; needed for up
#   BALANCERS  addresses that health checks come from: "10.0.0.1" or "10.0.0.1 10.0.0.2"; needed for up
#   INTERFACE  where replies leave [eth0]
#
# Each is idempotent: up replaces what an earlier up has set; down removes it if it is there, and the interface
# has its default qdisc again. An up that fails leaves nothing behind. Needs root.
set -eu

INTERFACE=${INTERFACE:-eth0}
# Tells our qdisc from one that somebody else has set.
HANDLE=c0e7

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?TCP ports of the service}"
    : "${SERVER:?address of this server}" "${BALANCERS:?addresses that health checks come from}"
    down
    trap down EXIT
    # Without classes, htb sends everything on at once: it shapes nothing here.
    tc qdisc replace dev "$INTERFACE" root handle $HANDLE: htb
    for balancer in $BALANCERS; do
        filter 1 match ip dst "$balancer/32" flowid $HANDLE:0
    done
    for port in $PORTS; do
        # IP protocol 6 is TCP; the port is where it is without IP options, which servers do not send.
        filter 2 match ip protocol 6 0xff match ip sport "$port" 0xffff \
            action nat egress "$SERVER/32" "$VIP"
    done
    trap - EXIT
}

down() {
    if status | grep -q "qdisc htb $HANDLE: "; then
        tc qdisc del dev "$INTERFACE" root
    fi
}

status() {
    tc qdisc show dev "$INTERFACE" root
    tc filter show dev "$INTERFACE"
}

# A filter for what this server sends; the lower priority is asked first.
filter() {
    priority=$1
    shift
    tc filter add dev "$INTERFACE" parent $HANDLE: protocol ip prio "$priority" \
        u32 match ip src "$SERVER/32" "$@"
}

case "${1-}" in
    up | down | status) "$1" ;;
    *) sed -n '/^# usage/,/^# has/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
