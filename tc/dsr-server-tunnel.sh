#!/bin/sh
# Lets a server answer clients directly (DSR) with `dsr = "ipip"` or "gue", where convey sends
# packets through a tunnel: the server decapsulates packets, and has the VIP as an address on lo, by
# dsr-server-l2.sh beside this script.
#
# usage: [NAME=VALUE...] dsr-server-tunnel.sh up|down|check|status
#
#   VIP     where clients connect to: "10.0.0.100" or "10.0.0.100 2001:db8::100"; needed for all but
#           status
#   KIND    ipip or gue; needed for all but status
#   SERVER  addresses of this server, that convey sends to: "10.0.1.11" or "10.0.1.11
#           2001:db8:1::11"; needed for up
#   PORT    of gue; 6080 unless set
#   MSS     if networks drop ICMP: announce to clients an MSS that fits into a tunnel over links of
#           1,500 bytes ("clamp"), or this number of bytes; needs nft
#
# up and down are idempotent, and an up that fails reverts its changes. down reverts the changes of
# up, removes the VIP and restores rp_filter. check fails unless packets are decapsulated and lo has
# the VIP. Needs root.
set -eu

L2=$(dirname "$0")/dsr-server-l2.sh
PORT=${PORT-6080}

# Outer IPv4: inner IPv4 by ipip, inner IPv6 by sit. Outer IPv6: both by one device of ip6_tunnel.
# These are each module's fallback devices for packets that match no other device.
DEVICES="tunl0 sit0 ip6tnl0"

TABLE=convey_dsr_tunnel

up() {
    valid
    : "${SERVER:?addresses of this server}"
    for server in $SERVER; do
        case $server in */*) fail "SERVER: found $server; allowed: addresses" ;; esac
        [ -n "$(ip addr show to "$server")" ] || fail "SERVER: this host has no address $server"
    done
    # A VIP on lo without a working tunnel would steal the VIP's traffic from other servers: an up
    # that fails reverts its changes, unless everything was already up.
    (check) >/dev/null 2>&1 || trap failed EXIT
    # Reports an invalid VIP before it changes anything else.
    VIP=$VIP sh "$L2" up
    modprobe -q -a ipip sit ip6_tunnel || true
    for device in $DEVICES; do
        ip link show "$device" >/dev/null 2>&1 || fail "there is no $device: load the modules ipip, sit and ip6_tunnel"
        ip link set "$device" up
    done
    remember_filters
    for device in $DEVICES; do
        # Clients are not behind a tunnel.
        loose "$device"
    done
    loose all
    # One device decapsulates both families from IPv6.
    ip link set dev ip6tnl0 type ip6tnl mode any 2>/dev/null || true
    if [ "$KIND" = gue ]; then
        modprobe -q -a fou fou6 || true
        listens 4 || ip fou add port "$PORT" gue
        case " $SERVER " in
            *:*) listens 6 || ip -6 fou add port "$PORT" gue ;;
        esac
    fi
    if [ -n "${MSS-}" ]; then
        clamp
    else
        unclamp
    fi
    trap - EXIT
}

failed() {
    down >/dev/null 2>&1 || true
    echo "setup failed: all changes are undone" >&2
}

check() {
    valid
    for device in $DEVICES; do
        ip link show up dev "$device" 2>/dev/null | grep -q "$device" || fail "$device is not up"
    done
    [ "$(cat /proc/sys/net/ipv4/conf/all/rp_filter)" = 0 ] ||
        fail "net.ipv4.conf.all.rp_filter is not 0: packets that come out of a tunnel are dropped"
    if [ "$KIND" = gue ]; then
        listens 4 || listens 6 || fail "nothing takes gue out at port $PORT"
    fi
    [ -z "${MSS-}" ] || nft list table inet $TABLE >/dev/null 2>&1 ||
        fail "nothing tells clients the length of segments"
    VIP=$VIP sh "$L2" check
}

down() {
    valid
    if [ "$KIND" = gue ]; then
        ip fou del port "$PORT" 2>/dev/null || true
        ip -6 fou del port "$PORT" 2>/dev/null || true
    fi
    for device in $DEVICES; do
        ip link set "$device" down 2>/dev/null || true
    done
    restore_filters
    unclamp
    VIP=$VIP sh "$L2" down
}

status() {
    for device in $DEVICES; do
        ip -brief link show dev "$device" 2>/dev/null || true
    done
    ip fou show 2>/dev/null || true
    ip -6 fou show 2>/dev/null || true
    nft list table inet $TABLE 2>/dev/null || true
    sh "$L2" status
}

fail() {
    echo "$1" >&2
    exit 1
}

valid() {
    : "${VIP:?where clients connect to}"
    case ${KIND-} in
        ipip | gue) ;;
        *) fail "KIND: found ${KIND-nothing}; allowed: ipip, gue" ;;
    esac
    case $PORT in
        '' | *[!0-9]* | ??????*) fail "PORT: found $PORT; allowed: a port from 1 to 65535" ;;
    esac
    [ "$PORT" -ge 1 ] && [ "$PORT" -le 65535 ] || fail "PORT: found $PORT; allowed: a port from 1 to 65535"
    case ${MSS-} in
        '' | clamp | [1-9][0-9][0-9] | [1-9][0-9][0-9][0-9]) ;;
        *) fail "MSS: found $MSS; allowed: clamp, or bytes from 100 to 9999" ;;
    esac
}

# The server announces the MSS, because its answers do not pass through the balancer. nft only ever
# lowers the MSS.
clamp() {
    rules=
    for vip in $VIP; do
        case $vip in
            *:*) family=ip6 headers=60 ;;
            *) family=ip headers=40 ;;
        esac
        longest=$((1500 - headers - $(overhead)))
        [ "$MSS" = clamp ] || longest=$MSS
        rules="$rules $family saddr $vip tcp flags syn tcp option maxseg size set $longest;"
    done
    # Replaces the existing rules in one step.
    printf '%s\n' "table inet $TABLE" "delete table inet $TABLE" \
        "table inet $TABLE { chain answers { type filter hook output priority -150; $rules }; }" | nft -f -
}

unclamp() {
    nft delete table inet $TABLE 2>/dev/null || true
}

# Size of the outer headers, in bytes.
overhead() {
    case " $SERVER" in
        *:*) outer=40 ;;
        *) outer=20 ;;
    esac
    [ "$KIND" = ipip ] || outer=$((outer + 12))
    echo $outer
}

# Whether gue is decapsulated at the port, for this family.
listens() {
    ip "-$1" fou show 2>/dev/null | grep -q "^port $PORT gue"
}

# The previous rp_filter is in the alias of a device, which disappears with the network namespace.
remember_filters() {
    [ -z "$(remembered_filters)" ] || return 0
    filters=
    for name in all $DEVICES; do
        filters="$filters $name=$(cat "/proc/sys/net/ipv4/conf/$name/rp_filter")"
    done
    ip link set dev tunl0 alias "convey rp_filter$filters"
}

remembered_filters() {
    ip link show dev tunl0 2>/dev/null | sed -n 's/^ *alias convey rp_filter //p'
}

# A value that was changed in the meantime stays.
restore_filters() {
    for filter in $(remembered_filters); do
        file=/proc/sys/net/ipv4/conf/${filter%%=*}/rp_filter
        [ "$(cat "$file")" != 0 ] || echo "${filter#*=}" >"$file"
    done
    ip link set dev tunl0 alias "" 2>/dev/null || true
}

# No check of sources against routes. The kernel uses the higher of the settings of the interface
# and of `all`.
loose() {
    echo 0 >"/proc/sys/net/ipv4/conf/$1/rp_filter"
}

case "${1-}" in
    up | down | check | status) "$1" ;;
    *) sed -n '/^# usage/,/Needs root/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
