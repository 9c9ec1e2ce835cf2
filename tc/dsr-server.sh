#!/bin/sh
# Lets a server answer clients directly (DSR): what it sends from its service's ports leaves with the VIP as
# its source. Replies to the balancer itself, which are answers to health checks, stay as they are, and so does
# all that has no such port, as ICMP.
#
# This is the variant with tc: an htb qdisc to hang filters on, u32 to choose packets, `action nat` to rewrite
# them. It knows IPv4 alone; IPv6, and kernels without `action nat` (CONFIG_NET_ACT_NAT), want dsr-server-nft.sh.
# usage: [NAME=VALUE...] dsr-server.sh up|down|check|status
#
#   VIP        where clients connect to; needed for up and check
#   PORTS      ports of the service, the same on VIP and server: "80" or "80 443"; needed for up
#   SERVER     this server's address that the balancer sends to; needed for up
#   BALANCERS  addresses that health checks come from: "10.0.0.1" or "10.0.0.1 10.0.0.2"; needed for up
#   PROTOCOLS  of those ports: tcp, udp or "tcp udp" [tcp udp]
#   INTERFACE  where replies leave [eth0]
#
# up and down are idempotent: up replaces what an earlier up has set; down removes it if it is there, and the interface
# has its default qdisc again. An up that fails leaves nothing behind. check fails unless answers get the VIP. All of them fail
# where there is no such interface. Needs root.
set -eu

INTERFACE=${INTERFACE:-eth0}
PROTOCOLS=${PROTOCOLS:-tcp udp}
# Tells our qdisc from one that somebody else has set.
HANDLE=c0e7
# A packet that is whole, or the first of its fragments: the fragment offset is 0.
FIRST="match u16 0 0x1fff at 6"

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?ports of the service}"
    : "${SERVER:?address of this server}" "${BALANCERS:?addresses that health checks come from}"
    case "$VIP $SERVER" in
        *:*) echo "action nat knows no IPv6: use dsr-server-nft.sh" >&2; exit 1 ;;
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
    # Without classes, htb sends everything on at once: it shapes nothing here.
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
            # The port is where it is without IP options, which servers do not send.
            filter 2 match ip protocol "$number" 0xff $FIRST match ip sport "$port" 0xffff $rewrite
        done
        if [ "$protocol" = udp ]; then
            # What shows its port and got here is not the service's. The rest are later fragments, which show
            # none: all are taken for the service's.
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

# By the name of a protocol, the number in the IP header.
number() {
    case $1 in
        tcp) echo 6 ;;
        udp) echo 17 ;;
        *) echo "PROTOCOLS: found $1; allowed: tcp, udp" >&2; return 1 ;;
    esac
}

# A filter for what this server sends; the lower priority is asked first.
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
