#!/bin/sh
# Lets a server answer clients directly (DSR): what it sends from its service's ports leaves with the VIP as
# its source. Replies to the balancer itself, which are answers to health checks, stay as they are, and so does
# all that has no such port, as ICMP.
#
# This is the variant with nftables: IPv4 and IPv6. It needs nft 0.9.2.
# usage: [NAME=VALUE...] dsr-server-nft.sh up|down|status
#
#   VIP        where clients connect to: an IPv4 address, an IPv6 address or "one of each"; needed for up
#   PORTS      ports of the service, the same on VIP and server: "80" or "21 21000-21010"; needed for up
#   SERVER     this server's address that the balancer sends to, for each VIP its own; needed for up
#   BALANCERS  addresses that health checks come from: "10.0.0.1" or "10.0.0.1 10.0.0.2"; needed for up
#   PROTOCOLS  of those ports: tcp, udp or "tcp udp" [tcp udp]
#   INTERFACE  where replies leave [eth0]
#
# Each is idempotent: up replaces what an earlier up has set, in one step; down removes it if it is there.
# Needs root.
set -eu

INTERFACE=${INTERFACE:-eth0}
PROTOCOLS=${PROTOCOLS:-tcp udp}
TABLE="convey_dsr_$INTERFACE"

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?ports of the service}"
    : "${SERVER:?address of this server}" "${BALANCERS:?addresses that health checks come from}"
    v4=$(rule ip)
    v6=$(rule ip6)
    # The rules are stateless. nft corrects the checksums of IP, TCP and UDP, unfinished ones too. Packets pass here
    # before they are cut into fragments, of which only the first would show the port.
    nft -f - <<RULES
table inet $TABLE
delete table inet $TABLE
table inet $TABLE {
    chain replies {
        type filter hook postrouting priority 300; policy accept;
        $v4
        $v6
    }
}
RULES
}

down() {
    # Adding what is there already changes nothing, and spares us the question.
    printf 'table inet %s\ndelete table inet %s\n' "$TABLE" "$TABLE" | nft -f -
}

status() {
    nft list table inet "$TABLE"
}

# The rule for a family, if there is a VIP of it.
rule() {
    vip=$(addresses "$1" "$VIP")
    server=$(addresses "$1" "$SERVER")
    balancers=$(addresses "$1" "$BALANCERS")
    [ -n "$vip" ] || return 0
    [ -n "$server" ] || { echo "SERVER has no $1 address for VIP $vip" >&2; return 1; }
    echo "oifname \"$INTERFACE\" $1 saddr $server" \
        "meta l4proto { $(list "$PROTOCOLS") } th sport { $(list "$PORTS") }" \
        "${balancers:+$1 daddr != { $(list "$balancers") }}" "$1 saddr set $vip"
}

# Those of the addresses that are of a family, ip or ip6.
addresses() {
    for address in $2; do
        case "$1 $address" in
            "ip6 "*:*) echo "$address" ;;
            *:*) ;;
            "ip "*) echo "$address" ;;
        esac
    done | xargs
}

# "a b" as "a, b"
list() {
    echo "$1" | sed 's/[[:space:]]\{1,\}/, /g'
}

case "${1-}" in
    up | down | status) "$1" ;;
    *) sed -n '/^# usage/,/^# Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
