#!/bin/sh
# Keeps the traffic of convey's DSR mode from the balancer's own network stack, which would answer
# it with resets. convey does so itself (guard = true); use this script on kernels without support
# for it, with guard = false.
# usage: [NAME=VALUE...] dsr.sh up|down|status
#
#   VIP        where clients connect to; needed for up
#   PORTS      ports of the frontends: "80" or "21 21000-21010"; needed for up
#   PROTOCOLS  protocols of the frontends: "tcp", "udp" or both ["tcp udp"]
#
# An IPv6 VIP needs a separate up, beside the one for IPv4. Each is idempotent: up replaces the
# rules of an earlier up of the family, in one step; down removes the rules of both families if they
# exist. Packets to the balancer's other addresses, such as answers to health checks, pass.
# Needs root.
set -eu

CHAIN=CONVEY-DSR
PROTOCOLS=${PROTOCOLS:-tcp udp}
# Seconds to wait for another program that changes rules.
WAIT="-w 30"

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?ports of the frontends}"
    # Packet sockets see a packet before these rules, so convey still receives the dropped packets.
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
