#!/bin/sh
# Lets a server answer clients directly (DSR): packets from the ports of its service leave with the
# VIP as their source. Replies to the balancer itself, which are answers to health checks, do not
# change, and neither do packets without such a port, like ICMP.
#
# This is the variant with nftables: IPv4 and IPv6. It needs nft 0.9.2.
# usage: [NAME=VALUE...] dsr-server-nft.sh up|down|check|status
#
#   VIP        where clients connect to: an IPv4 address, an IPv6 address or "one of each"; needed
#              for up and check
#   PORTS      ports of the service, the same on VIP and server: "80" or "21 21000-21010"; needed
#              for up
#   SERVER     this server's address that the balancer sends to, for each VIP its own; needed for up
#   BALANCERS  addresses that health checks come from: "10.0.0.1" or "10.0.0.1 10.0.0.2"; needed for
#              up
#   PROTOCOLS  of those ports: tcp, udp or "tcp udp" [tcp udp]
#   INTERFACE  where replies leave [eth0]
#
# up and down are idempotent: up replaces the rules of an earlier up, in one step; down removes them
# if they exist. check fails unless answers get the VIP. All commands fail if the interface does not
# exist. Needs root.
set -eu

INTERFACE=${INTERFACE:-eth0}
PROTOCOLS=${PROTOCOLS:-tcp udp}
# The table has the interface's name, in hexadecimal digits if nft would misinterpret it.
case $INTERFACE in
    *[!a-zA-Z0-9._-]*) TABLE=convey_dsr_hex_$(printf %s "$INTERFACE" | od -An -tx1 | tr -d ' \n') ;;
    *) TABLE="convey_dsr_$INTERFACE" ;;
esac

up() {
    : "${VIP:?where clients connect to}" "${PORTS:?ports of the service}"
    : "${SERVER:?address of this server}" "${BALANCERS:?addresses that health checks come from}"
    case $INTERFACE in *\"*) fail "INTERFACE: found $INTERFACE; nft takes no name with a quotation mark" ;; esac
    interface_is_there
    each address_is_valid VIP $VIP && each address_is_valid SERVER $SERVER && each address_is_valid BALANCERS $BALANCERS
    each address_is_ours SERVER $SERVER && each ports_are_valid PORTS $PORTS && each protocol_is_valid PROTOCOLS $PROTOCOLS
    v4=$(rule ip)
    v6=$(rule ip6)
    # The rules are stateless. nft corrects the checksums of IP, TCP and UDP, including partial
    # ones. Packets pass here before the kernel fragments them; only the first fragment would
    # contain the port.
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
    # A table of a renamed or missing interface may still exist.
    nft list table inet "$TABLE" >/dev/null 2>&1 || interface_is_there
    # Adding an existing table changes nothing, so there is no need to check first.
    printf 'table inet %s\ndelete table inet %s\n' "$TABLE" "$TABLE" | nft -f -
}

check() {
    : "${VIP:?where clients connect to}"
    interface_is_there
    for vip in $VIP; do
        nft list table inet "$TABLE" 2>/dev/null | grep -qE " saddr set $vip( |\$)" ||
            fail "answers that leave by $INTERFACE do not get the source $vip"
    done
}

status() {
    nft list table inet "$TABLE"
}

# The rule for a family, if it has a VIP.
rule() {
    vip=$(addresses "$1" "$VIP")
    server=$(addresses "$1" "$SERVER")
    balancers=$(addresses "$1" "$BALANCERS")
    [ -n "$vip" ] || return 0
    [ -n "$server" ] || { echo "SERVER has no $1 address for VIP $vip" >&2; return 1; }
    echo "oifname \"$(quoted "$INTERFACE")\" $1 saddr $server" \
        "meta l4proto { $(list "$PROTOCOLS") } th sport { $(list "$PORTS") }" \
        "${balancers:+$1 daddr != { $(list "$balancers") }}" "$1 saddr set $vip"
}

fail() {
    echo "$1" >&2
    exit 1
}

# A quoted name for nft: an asterisk at its end is literal.
quoted() {
    case $1 in
        *\*) printf '%s\\*' "${1%\*}" ;;
        *) printf %s "$1" ;;
    esac
}

interface_is_there() {
    ip link show dev "$INTERFACE" >/dev/null 2>&1 || fail "INTERFACE: there is no $INTERFACE; found:$(ip -brief link | while read -r name _; do printf ' %s' "${name%@*}"; done)"
}

# A check, the name of a variable, and its values.
each() {
    check=$1 variable=$2
    shift 2
    for word in "$@"; do
        "$check" "$variable" "$word"
    done
}

address_is_valid() {
    case $2 in
        *:*) case $2 in *[!0-9a-fA-F:.]*) fail "$1: found $2; allowed: IP addresses" ;; esac ;;
        *.*.*.*) case $2 in *[!0-9.]*) fail "$1: found $2; allowed: IP addresses" ;; esac ;;
        *) fail "$1: found $2; allowed: IP addresses" ;;
    esac
}

# Without such an address the rules would rewrite no answer.
address_is_ours() {
    case $2 in *:*) [ -e /proc/net/if_inet6 ] || return 0 ;; esac
    [ -n "$(ip addr show to "$2")" ] || fail "$1: this host has no address $2"
}

ports_are_valid() {
    for port in $(echo "$2" | tr - ' '); do
        case $port in *[!0-9]*) fail "$1: found $2; allowed: ports and ranges, such as 80 or 21000-21010" ;; esac
        [ "$port" -ge 1 ] && [ "$port" -le 65535 ] || fail "$1: found $2; allowed: 1 to 65535"
    done
}

protocol_is_valid() {
    case $2 in tcp | udp) ;; *) fail "$1: found $2; allowed: tcp, udp" ;; esac
}

# Prints the addresses of a family, ip or ip6.
addresses() {
    for address in $2; do
        case "$1 $address" in
            "ip6 "*:*) echo "$address" ;;
            *:*) ;;
            "ip "*) echo "$address" ;;
        esac
    done | xargs
}

# Prints "a b" as "a, b".
list() {
    echo "$1" | sed 's/[[:space:]]\{1,\}/, /g'
}

case "${1-}" in
    up | down | check | status) "$1" ;;
    *) sed -n '/^# usage/,/Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
