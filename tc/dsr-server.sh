#!/bin/sh
# Lets a server answer clients directly (DSR): packets from the ports of its service leave with the
# VIP as their source. Replies to the balancer itself, which are answers to health checks, do not
# change, and neither do packets without such a port, like ICMP.
#
# This is the variant with tc: an htb qdisc to attach filters to, u32 to select packets,
# `action nat` to rewrite them. It supports only IPv4. For IPv6, and kernels without `action nat`
# (CONFIG_NET_ACT_NAT), use dsr-server-nft.sh.
# usage: [NAME=VALUE...] dsr-server.sh up|down|check|status
#
#   VIP        where clients connect to; needed for up and check
#   PORTS      ports of the service, the same on VIP and server: "80" or "80 443"; needed for up
#   SERVER     this server's address that the balancer sends to; needed for up
#   BALANCERS  addresses that health checks come from: "10.0.0.1" or "10.0.0.1 10.0.0.2"; needed for
#              up
#   PROTOCOLS  of those ports: tcp, udp or "tcp udp" [tcp udp]
#   INTERFACE  where replies leave [eth0]
#
# up and down are idempotent: up replaces the settings of an earlier up; down removes them if they
# exist, and the interface gets its default qdisc again. An up that fails leaves nothing behind.
# check fails unless answers get the VIP. All commands fail if the interface does not exist.
# Needs root.
set -eu

INTERFACE=${INTERFACE:-eth0}
PROTOCOLS=${PROTOCOLS:-tcp udp}
# Distinguishes this script's qdisc from others.
HANDLE=c0e7
# An unfragmented packet or a first fragment: the fragment offset is 0.
FIRST="match u16 0 0x1fff at 6"

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?ports of the service}"
    : "${SERVER:?address of this server}" "${BALANCERS:?addresses that health checks come from}"
    case "$VIP $SERVER" in
        *:*) echo "action nat does not support IPv6: use dsr-server-nft.sh" >&2; exit 1 ;;
    esac
    interface_is_there
    for address in $VIP $SERVER; do
        case $address in *[!0-9.]* | *.*.*.*.*) fail "found $address; allowed: an IPv4 address" ;; *.*.*.*) ;; *) fail "found $address; allowed: an IPv4 address" ;; esac
    done
    [ -n "$(ip addr show to "$SERVER")" ] || fail "SERVER: this host has no address $SERVER"
    for port in $PORTS; do
        case $port in *[!0-9]*) fail "PORTS: found $port; allowed: single ports, such as 80" ;; esac
        [ "$port" -ge 1 ] && [ "$port" -le 65535 ] || fail "PORTS: found $port; allowed: 1 to 65535"
    done
    for protocol in $PROTOCOLS; do
        number "$protocol" >/dev/null
    done
    rewrite="action nat egress $SERVER/32 $VIP"
    down
    trap failed EXIT
    # Without classes, htb sends everything at once and does not shape.
    tc qdisc replace dev "$INTERFACE" root handle $HANDLE: htb
    for balancer in $BALANCERS; do
        case $balancer in
            *:*) ;;
            *) filter 1 match ip dst "$balancer/32" flowid $HANDLE:0 ;;
        esac
    done
    for protocol in $PROTOCOLS; do
        number=$(number "$protocol")
        for port in $PORTS; do
            # The offset of the port without IP options, which servers do not send.
            filter 2 match ip protocol "$number" 0xff $FIRST match ip sport "$port" 0xffff $rewrite
        done
        if [ "$protocol" = udp ]; then
            # Packets with a port that get here do not belong to the service. The rest are later
            # fragments without ports: all of them count as packets of the service.
            filter 3 match ip protocol "$number" 0xff $FIRST flowid $HANDLE:0
            filter 4 match ip protocol "$number" 0xff $rewrite
        fi
    done
    trap - EXIT
}

failed() {
    down
    echo "not set up; where tc has no \`action nat\`, dsr-server-nft.sh does the same with nftables" >&2
}

fail() {
    echo "$1" >&2
    exit 1
}

interface_is_there() {
    ip link show dev "$INTERFACE" >/dev/null 2>&1 || fail "INTERFACE: there is no $INTERFACE; found:$(ip -brief link | while read -r name _; do printf ' %s' "${name%@*}"; done)"
}

check() {
    : "${VIP:?where clients connect to}"
    interface_is_there
    tc filter show dev "$INTERFACE" | grep -qE "nat egress [0-9./]+ $VIP " ||
        fail "answers that leave by $INTERFACE do not get the source $VIP"
}

down() {
    interface_is_there
    if status | grep -q "qdisc htb $HANDLE: "; then
        tc qdisc del dev "$INTERFACE" root
    fi
}

status() {
    tc qdisc show dev "$INTERFACE" root
    tc filter show dev "$INTERFACE"
}

# Prints the number of a protocol in the IP header.
number() {
    case $1 in
        tcp) echo 6 ;;
        udp) echo 17 ;;
        *) echo "PROTOCOLS: found $1; allowed: tcp, udp" >&2; return 1 ;;
    esac
}

# A filter for packets that this server sends; filters run in ascending order of priority.
filter() {
    priority=$1
    shift
    tc filter add dev "$INTERFACE" parent $HANDLE: protocol ip prio "$priority" \
        u32 match ip src "$SERVER/32" "$@"
}

case "${1-}" in
    up | down | check | status) "$1" ;;
    *) sed -n '/^# usage/,/Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
