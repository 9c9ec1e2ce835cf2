#!/bin/sh
# Keeps the traffic of convey's passthrough mode from the balancer's own network stack, which would
# answer it with resets. convey does so itself (guard = true); use this script on kernels without
# support for it, with guard = false.
# usage: [NAME=VALUE...] passthrough.sh up|down|status
#
#   VIP             where clients connect to; needed for up
#   PORTS           ports of the frontends: "80" or "21 21000-21010"; needed for up
#   PROTOCOLS       protocols of the frontends: "tcp", "udp" or both ["tcp udp"]
#   SERVERS         the servers: "10.0.0.11:80 10.0.0.12:80" or "[fd00::11]:80"; needed for up.
#                   Servers without a port in convey's configuration have the frontends' ports here:
#                   "10.0.0.11:21 10.0.0.11:21000-21010"
#   SNAT_ADDRESSES  the balancer's addresses that servers see: "10.0.0.1"; needed for up
#   SNAT_PORTS      as snat_ports in convey's configuration [33768-61000]
#
# An IPv6 VIP needs a separate up, beside the one for IPv4. Each is idempotent: up replaces the
# rules of an earlier up of the family, in one step; down removes the rules of both families if they
# exist. Replies to other ports of the balancer, such as answers to health checks (from
# 32768-33767), pass. Needs root.
set -eu

CHAIN=CONVEY-PASSTHROUGH
SNAT_PORTS=${SNAT_PORTS:-33768-61000}
PROTOCOLS=${PROTOCOLS:-tcp udp}
# Seconds to wait for another program that changes rules.
WAIT="-w 30"

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?ports of the frontends}"
    : "${SERVERS:?the servers, IP:port}" "${SNAT_ADDRESSES:?addresses that servers see}"
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
    for server in $SERVERS; do
        for address in $SNAT_ADDRESSES; do
            for protocol in $PROTOCOLS; do
                ports=${server##*:}
                echo "-A $CHAIN -s $(echo "${server%:*}" | tr -d '[]') -d $address -p $protocol" \
                    "--sport ${ports%-*}:${ports#*-} --dport ${SNAT_PORTS%-*}:${SNAT_PORTS#*-} -j DROP"
            done
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
