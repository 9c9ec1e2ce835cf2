#!/bin/sh
# Lets a server answer clients directly (DSR) where convey changes the destination MAC alone, `dsr = "l2"`: the
# server has the VIP as an address of its own, on lo, and tells nobody. Services listen on the VIP or on every
# address, and on the server's own address too for health checks.
#
# usage: [NAME=VALUE...] dsr-server-l2.sh up|down|status
#
#   VIP  where clients connect to: "10.0.0.100" or "10.0.0.100 2001:db8::100"; needed for up and down
#
# Each is idempotent: up adds what is missing; down removes the VIP, and with the last one on lo it gives arp_ignore and
# arp_announce the kernel's default, 0. Needs root.
set -eu

CONF=/proc/sys/net/ipv4/conf/all

up() {
    : "${VIP:?where clients connect to}"
    # Before the VIP is there, so that no ARP request for it is answered in between. An interface does what its own
    # setting or that of `all` says, whichever is more. 1: answer only for addresses of the interface that was
    # asked. 2: ask with such an address too, or others learn from the question who has the VIP.
    echo 1 >$CONF/arp_ignore
    echo 2 >$CONF/arp_announce
    # IPv6 needs no setting: neighbours are told only of addresses of the interface that was asked, which lo is not,
    # and addresses on lo are not looked for elsewhere first (DAD).
    for vip in $VIP; do
        ip addr replace "$(host "$vip")" dev lo
    done
}

down() {
    : "${VIP:?where clients connect to}"
    for vip in $VIP; do
        if [ -n "$(ip addr show dev lo to "$vip")" ]; then
            ip addr del "$(host "$vip")" dev lo
        fi
    done
    # Another VIP is still to be kept from ARP. Those of lo's own, 127.0.0.0/8, have the scope host.
    if [ -z "$(ip -4 addr show dev lo scope global)" ]; then
        echo 0 >$CONF/arp_ignore
        echo 0 >$CONF/arp_announce
    fi
}

status() {
    ip -brief addr show dev lo
    grep -H . $CONF/arp_ignore $CONF/arp_announce
}

# The address as a network of one.
host() {
    case $1 in
        *:*) echo "$1/128" ;;
        *) echo "$1/32" ;;
    esac
}

case "${1-}" in
    up | down | status) "$1" ;;
    *) sed -n '/^# usage/,/Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
