#!/bin/sh
# Keeps the traffic of convey's DSR mode from the balancer's own network stack, which would answer it with
# resets. convey does so itself (guard = true); this is for kernels where it cannot, with guard = false.
# usage: [NAME=VALUE...] dsr.sh up|down|status
#
#   VIP        where clients connect to; needed for up
#   PORTS      ports of the frontends: "80" or "21 21000-21010"; needed for up
#   PROTOCOLS  what the frontends speak: "tcp", "udp" or both ["tcp udp"]
#
# A VIP of IPv6 takes its own up, beside that of IPv4. Each is idempotent: up replaces what an earlier up of the family
# has set, in one step; down removes that of both families if it is there.
# What goes to the balancer's other addresses, such as answers to health checks, passes. Needs root.
set -eu

CHAIN=CONVEY-DSR
PROTOCOLS=${PROTOCOLS:-tcp udp}
# Seconds for another program that changes rules meanwhile.
WAIT="-w 30"

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?ports of the frontends}"
    # Packet sockets see a packet before any of this, so convey misses none of what is dropped here.
    case $VIP in
        *:*) tables=ip6tables ;;
        *) tables=iptables ;;
    esac
    rules | $tables-restore $WAIT --noflush
    is_used $tables || $tables $WAIT -t raw -I PREROUTING ! -i lo -j $CHAIN
}

down() {
    for tables in iptables ip6tables; do
        if is_used $tables; then
            $tables $WAIT -t raw -D PREROUTING ! -i lo -j $CHAIN
        fi
        if is_there $tables; then
            $tables $WAIT -t raw -F $CHAIN
            $tables $WAIT -t raw -X $CHAIN
        fi
    done
}

# Fails if no family has rules.
status() {
    found=1
    for tables in iptables ip6tables; do
        if is_there $tables; then
            $tables $WAIT -t raw -vnL $CHAIN
            found=0
        fi
    done
    return $found
}

rules() {
    echo "*raw"
    echo ":$CHAIN - [0:0]"
    for port in $PORTS; do
        for protocol in $PROTOCOLS; do
            echo "-A $CHAIN -d $VIP -p $protocol --dport ${port%-*}:${port#*-} -j DROP"
        done
    done
    echo "COMMIT"
}

is_used() {
    "$1" $WAIT -t raw -C PREROUTING ! -i lo -j $CHAIN 2>/dev/null
}

is_there() {
    "$1" $WAIT -t raw -nL $CHAIN >/dev/null 2>&1
}

case "${1-}" in
    up | down | status) "$1" ;;
    *) sed -n '/^# usage/,/Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
