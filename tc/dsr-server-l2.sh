#!/bin/sh
# Lets a server answer clients directly (DSR) with `dsr = "l2"`, where convey changes only the
# destination MAC: the server has the VIP as an address on lo, and does not announce it. Services
# listen on the VIP or on every address, and for health checks also on the server's own address.
#
# usage: [NAME=VALUE...] dsr-server-l2.sh up|down|check|status
#
#   VIP  where clients connect to: "10.0.0.100" or "10.0.0.100 2001:db8::100"; needed for all but
#        status
#
# up and down are idempotent: up adds missing settings; down removes the VIP, and with the last VIP
# on lo it restores arp_ignore and arp_announce. check fails unless lo has the VIP and the server
# does not announce it. Needs root.
set -eu

CONF=/proc/sys/net/ipv4/conf/all

up() {
    valid
    for vip in $VIP; do
        others=$(others "$vip")
        [ -z "$others" ] || fail "VIP: $vip is an address of $others, where this server tells of it; remove it there"
    done
    # Set before the VIP is added, so that the server answers no ARP request for it in between. The
    # kernel uses the higher of the settings of the interface and of `all`. arp_ignore 1: answer
    # only for addresses of the receiving interface. arp_announce 2: use such an address in requests
    # too, or other hosts learn the VIP from the request.
    [ -n "$(remembered)" ] || ip link set dev lo alias "convey arp arp_ignore=$(cat $CONF/arp_ignore) arp_announce=$(cat $CONF/arp_announce)"
    echo 1 >$CONF/arp_ignore
    echo 2 >$CONF/arp_announce
    # IPv6 needs no setting: the kernel answers only for addresses of the receiving interface, which
    # is never lo, and there is no duplicate address detection (DAD) for addresses on lo.
    for vip in $VIP; do
        ip addr replace "$(host "$vip")" dev lo
    done
}

check() {
    valid
    for vip in $VIP; do
        [ -n "$(ip addr show dev lo to "$vip")" ] || fail "lo does not have $vip"
        others=$(others "$vip")
        [ -z "$others" ] || fail "$vip is an address of $others, where this server tells of it"
    done
    if [ "$(cat $CONF/arp_ignore)" -lt 1 ] || [ "$(cat $CONF/arp_announce)" -lt 2 ]; then
        fail "arp_ignore is $(cat $CONF/arp_ignore), arp_announce is $(cat $CONF/arp_announce); wanted: 1 and 2"
    fi
}

down() {
    valid
    for vip in $VIP; do
        if [ -n "$(ip addr show dev lo to "$vip")" ]; then
            ip addr del "$(host "$vip")" dev lo
        fi
    done
    # ARP for another VIP must still be suppressed. The addresses of lo itself, 127.0.0.0/8, have
    # the scope host.
    if [ -z "$(ip -4 addr show dev lo scope global)" ]; then
        for setting in $(remembered); do
            echo "${setting#*=}" >"$CONF/${setting%%=*}"
        done
        ip link set dev lo alias "" 2>/dev/null || true
    fi
}

# The previous values of both are in the alias of lo, which disappears with the network namespace.
remembered() {
    ip link show dev lo | sed -n 's/^ *alias convey arp //p'
}

status() {
    ip -brief addr show dev lo
    grep -H . $CONF/arp_ignore $CONF/arp_announce
}

fail() {
    echo "$1" >&2
    exit 1
}

# Whether VIP has addresses.
valid() {
    : "${VIP:?where clients connect to}"
    for vip in $VIP; do
        case $vip in
            *:*) case $vip in *[!0-9a-fA-F:.]*) fail "VIP: found $vip; allowed: IP addresses" ;; esac ;;
            *.*.*.*) case $vip in *[!0-9.]*) fail "VIP: found $vip; allowed: IP addresses" ;; esac ;;
            *) fail "VIP: found $vip; allowed: IP addresses" ;;
        esac
    done
}

# Interfaces other than lo that have an address.
others() {
    ip -oneline addr show to "$1" | while read -r _ name _; do
        [ "$name" = lo ] || echo "$name"
    done
}

# The address as a network of one.
host() {
    case $1 in
        *:*) echo "$1/128" ;;
        *) echo "$1/32" ;;
    esac
}

case "${1-}" in
    up | down | check | status) "$1" ;;
    *) sed -n '/^# usage/,/Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
