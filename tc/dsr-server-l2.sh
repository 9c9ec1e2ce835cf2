#!/bin/sh
# Lets a server answer clients directly (DSR) where convey changes the destination MAC alone, `dsr = "l2"`: the
# server has the VIP as an address of its own, on lo, and tells nobody. Services listen on the VIP or on every
# address, and on the server's own address too for health checks.
#
# usage: [NAME=VALUE...] dsr-server-l2.sh up|down|check|status
#
#   VIP  where clients connect to: "10.0.0.100" or "10.0.0.100 2001:db8::100"; needed for all but status
#
# up and down are idempotent: up adds what is missing; down removes the VIP, and with the last one on lo arp_ignore and
# arp_announce are what they were. check fails unless lo has the VIP and nobody is told. Needs root.
set -eu

CONF=/proc/sys/net/ipv4/conf/all

up() {
    valid
    for vip in $VIP; do
        others=$(others "$vip")
        [ -z "$others" ] || fail "VIP: $vip is an address of $others, where this server tells of it; remove it there"
    done
    # Before the VIP is there, so that no ARP request for it is answered in between. An interface does what its own
    # setting or that of `all` says, whichever is more. 1: answer only for addresses of the interface that was
    # asked. 2: ask with such an address too, or others learn from the question who has the VIP.
    [ -n "$(remembered)" ] || ip link set dev lo alias "convey arp arp_ignore=$(cat $CONF/arp_ignore) arp_announce=$(cat $CONF/arp_announce)"
    echo 1 >$CONF/arp_ignore
    echo 2 >$CONF/arp_announce
    # IPv6 needs no setting: neighbours are told only of addresses of the interface that was asked, which lo is not,
    # and addresses on lo are not looked for elsewhere first (DAD).
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
    # Another VIP is still to be kept from ARP. Those of lo's own, 127.0.0.0/8, have the scope host.
    if [ -z "$(ip -4 addr show dev lo scope global)" ]; then
        for setting in $(remembered); do
            echo "${setting#*=}" >"$CONF/${setting%%=*}"
        done
        ip link set dev lo alias "" 2>/dev/null || true
    fi
}

# What both were before up: in the alias of lo, which goes with the network namespace.
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
