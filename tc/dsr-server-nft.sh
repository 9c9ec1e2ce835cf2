#!/bin/sh
# Lets a server answer clients directly (DSR): what it sends from its service's ports leaves with the VIP as
# its source. Replies to the balancer itself, which are answers to health checks, stay as they are.
#
# This is the variant with nftables, for kernels whose tc has no `action nat`; it needs Linux 5.16 and nft 1.0.1.
# usage: [NAME=VALUE...] dsr-server-nft.sh up|down|status
#
#   VIP        where clients connect to; needed for up
#   PORTS      TCP ports of the service, the same on VIP and server: "80" or "80 443"; needed for up
#   SERVER     this server's address that the balancer sends to; needed for up
#   BALANCERS  addresses that health checks come from: "10.0.0.1" or "10.0.0.1 10.0.0.2"; needed for up
#   INTERFACE  where replies leave [eth0]
#
# Each is idempotent: up replaces what an earlier up has set, in one step; down removes it if it is there.
# Needs root.
set -eu

INTERFACE=${INTERFACE:-eth0}
TABLE="convey_dsr_$INTERFACE"

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?TCP ports of the service}"
    : "${SERVER:?address of this server}" "${BALANCERS:?addresses that health checks come from}"
    # The rule is stateless. nft corrects the checksums of IP and TCP, unfinished ones too.
    nft -f - <<RULES
table netdev $TABLE
delete table netdev $TABLE
table netdev $TABLE {
    chain replies {
        type filter hook egress device "$INTERFACE" priority 0; policy accept;
        ip saddr $SERVER tcp sport { $(list "$PORTS") } ip daddr != { $(list "$BALANCERS") } ip saddr set $VIP
    }
}
RULES
}

down() {
    # Adding what is there already changes nothing, and spares us the question.
    printf 'table netdev %s\ndelete table netdev %s\n' "$TABLE" "$TABLE" | nft -f -
}

status() {
    nft list table netdev "$TABLE"
}

# "a b" as "a, b"
list() {
    echo "$1" | sed 's/[[:space:]]\{1,\}/, /g'
}

case "${1-}" in
    up | down | status) "$1" ;;
    *) sed -n '/^# usage/,/^# Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
