# tunnel KIND WHAT: by the script, on both servers.
tunnel() {
    for server in 1 2; do
        on server$server env VIP="$VIP $VIP6" KIND="$1" SERVER="10.77.0.1$server fd77::1$server" MSS="${3-}" /convey/tc/dsr-server-tunnel.sh "$2"
    done
}

# uploads: whether segments of full length arrive.
uploads() {
    long=$(printf '%0900d' 0)
    on client curl -sS --fail -m 3 -H "A: $long" -H "B: $long" -H "C: $long" -H "D: $long" -o /dev/null "http://$VIP/"
}

# doctors MACHINE CHECK: whether doctor finds this, or "nothing".
doctors() {
    on "$1" /convey/target/release/convey doctor --server $VIP:80 >/tmp/found 2>&1 || true
    grep -q "$2" /tmp/found || { cat /tmp/found; return 1; }
}

# A network that loses ICMP: until the end, or the client would remember what a later error says.
on client nft -f - <<RULES
table ip lost { chain input { type filter hook input priority 0; icmp type destination-unreachable drop; }; }
RULES

# filters: rp_filter of server1 for all interfaces.
filters() {
    on server1 cat /proc/sys/net/ipv4/conf/all/rp_filter
}

on server1 sh -c 'echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter'
for kind in ipip gue; do
    ! tunnel $kind check || fail "a check before up"
    tunnel $kind up
    tunnel $kind up
    tunnel $kind check
    balance dsr "
[backends.web]
dsr = \"$kind\"
[frontends.web6]
listen_addr = \"[$VIP6]:80\"
backend = \"web\""
    works
    same "an answer over IPv6 in IPv4" "$(on client curl -sS --fail -m 10 "http://[$VIP6]/" | cut -c1-6)" server
    doctors server1 "nothing found" || fail "a healthy server"

    # A SYN through the tunnel finds what no check of the server's own address does.
    on balancer sed -i 's/^interval = 0.5/via = "vip"\n&/; s/kind = "http"/kind = "tcp"/' $file
    works
    on server1 ip link set tunl0 down
    wait_for "the server without its device to be down" servers_are_up 1
    doctors server1 'tunnel-device.*tunl0' || fail "a device that is down"
    tunnel $kind up
    works
    on server1 sh -c 'echo 1 >/proc/sys/net/ipv4/conf/tunl0/rp_filter'
    wait_for "the server with a strict filter to be down" servers_are_up 1
    doctors server1 'rp-filter' || fail "a strict rp_filter"
    tunnel $kind up
    works

    # By the network that loses ICMP.
    ! uploads 2>/dev/null || fail "a segment of 1,500 bytes fits, whatever is around it"
    tunnel $kind up clamp
    tunnel $kind check clamp
    uploads
    stop_convey

    tunnel $kind down
    tunnel $kind down
    ! tunnel $kind check || fail "a check after down"
    same "rp_filter after down" "$(filters)" 2
    same "what is left" "$(on server1 nft list ruleset)$(on server1 ip fou show)" ""
    same "the VIP that is left" "$(on server1 ip -o addr show to $VIP)" ""
done
on client nft delete table ip lost
