# The words of the steps: a network of machines like the one of `convey demo`, and what can be asked
# of it.
# shellcheck shell=sh

VIP=10.77.0.100
VIP6=fd77::100
# What the scripts in iptables/ and tc/ are told; their comments say what it means.
export VIP PORTS=80 SERVERS="10.77.0.11:80 10.77.0.12:80" SNAT_ADDRESSES=10.77.0.1 BALANCERS=10.77.0.1

# Whatever a step leaves is gone before the next; the machines stay.
begin() {
    convey= systemd= service= file=/tmp/config.toml
    rm -f /tmp/log
    trap end EXIT
    trap 'exit 1' TERM
}

end() {
    for process in $convey $systemd $service; do
        kill -KILL "$process" 2>/dev/null || true
    done
    for machine in balancer server1 server2; do
        on $machine sh -c 'nft flush ruleset; tc qdisc del dev eth0 root; tc qdisc del dev eth0 clsact' 2>/dev/null || true
    done
    for machine in balancer client; do
        on $machine ip link del vlan7 2>/dev/null || true
    done
    on balancer sh -c 'ip link del spare; ip addr del 10.77.0.101/32 dev eth0' 2>/dev/null || true
}

# A client, the balancer and two servers, joined by a switch. Servers answer with their names.
build_lab() {
    ip link add switch up type bridge mcast_snooping 0
    machine balancer 10.77.0.1
    balancer=$!
    machine server1 10.77.0.11
    server1=$!
    machine server2 10.77.0.12
    server2=$!
    machine client 10.77.0.201
    client=$!
    export balancer server1 server2 client
    on balancer ip addr add $VIP/32 dev eth0
    on balancer ip addr add $VIP6/128 dev eth0 nodad preferred_lft 0
    for server in server1 server2; do
        on $server sh -c 'mkdir -p /var/www/html; hostname >/var/www/html/index.html; httpd -h /var/www/html
            head -c 40000000 /dev/zero >/var/www/html/big'
    done
}

# machine NAME ADDRESS: network, host name and folders are its own.
machine() {
    unshare -n -m -u sleep 1000 &
    wait_for "the machine $1" has_own_network $!
    ip link add "$1" up master switch type veth peer name eth0 netns $!
    nsenter -t $! -n -m -u sh -eu -s <<SETUP
hostname $1
mount -t sysfs sys /sys
for folder in /run /tmp /var /usr/local /etc; do mkdir -p \$folder; mount -t tmpfs tmpfs \$folder; done
ip -batch - <<IP
link set lo up
addr add $2/24 dev eth0
addr add fd77::${2##*.}/64 dev eth0 nodad
link set eth0 up
IP
SETUP
}

has_own_network() {
    [ "$(readlink "/proc/$1/ns/uts")" != "$(readlink /proc/self/ns/uts)" ]
}

# on MACHINE COMMAND...
on() {
    eval "process=\$$1"
    shift
    nsenter -t "$process" -n -m -u -- "$@"
}

# Has servers answer clients directly, as mode dsr needs it.
let_servers_answer_with_the_vip() {
    on server1 env SERVER=10.77.0.11 /convey/tc/dsr-server.sh up
    on server2 env SERVER=10.77.0.12 /convey/tc/dsr-server.sh up
}

# configure [LINES]: writes the file of convey, with further lines for the section passthrough, or
# sections behind it.
configure() {
    on balancer sh -c "cat >$file" <<CONFIG
[frontends.web]
listen_addr = "$VIP:80"
backend = "web"
[backends.web.health_check]
kind = "http"
interval = 0.5
[backends.web.servers.server1]
addr = "10.77.0.11:80"
[backends.web.servers.server2]
addr = "10.77.0.12:80"
[passthrough]
max_flows = 1000
${1-}
CONFIG
}

# balance MODE [LINES]: starts convey, with further lines as for configure.
balance() {
    configure "${2-}"
    : >/tmp/log
    # Not by `on`: that would be a shell of its own, which the signals would go to.
    nsenter -t "$balancer" -n -m -u /convey/target/release/convey "--$1" --config $file >>/tmp/log 2>&1 &
    convey=$!
    wait_for "convey to be ready" is_ready
}

stop_convey() {
    kill "$convey"
    ended=$convey convey=
    wait "$ended" || fail "convey ended with $?"
}

kill_convey() {
    kill -KILL "$convey"
    ended=$convey convey=
    wait "$ended" || true
}

# Whether convey serves: by the line that `READY` in crates/testkit names.
is_ready() {
    logged "statistics on http://"
}

# Whether convey has logged it.
logged() {
    kill -0 $convey || fail "convey has ended"
    grep -qF "$1" /tmp/log
}

# Both servers answer the client through the VIP, and convey finds them healthy.
works() {
    wait_for "healthy servers" servers_are_up
    # Each server's answer ends its connection.
    ask client "$VIP/?[1-20]" >/tmp/answers || fail "no answer of $VIP"
    same "how many answers there are" "$(wc -l </tmp/answers)" 20
    same "who answers" "$(sort -u /tmp/answers | tr '\n' ' ')" "server1 server2 "
    # By now each has been asked many times.
    servers_are_up || fail "a health check failed"
}

servers_are_up() {
    ask balancer 127.0.0.1:7000/metrics >/tmp/metrics
    [ "$(grep -c '^convey_server_up{.*} 1$' /tmp/metrics)" -eq "${1-2}" ]
}

# ask MACHINE ADDRESS: what is answered there.
ask() {
    on "$1" curl -sS --fail -m 10 "http://$2"
}

# count_resets MODE: counts those that the balancer's own stack sends for what convey forwards in
# this mode.
# (Health checks may end with a reset; theirs are other ports.)
count_resets() {
    forwarded=80
    [ "$1" = dsr ] || forwarded="{ 80, 33768-61000 }"
    on balancer nft -f - <<RULES
table inet resets { chain output { type filter hook output priority 0
    tcp sport $forwarded tcp flags & rst == rst counter; }; }
RULES
}

resets() {
    on balancer nft list table inet resets | sed -n 's/.*counter packets \([0-9]*\).*/\1/p'
}

# Traffic goes through convey, none of it through the host's stack, and what the host
# asks for itself is answered.
keeps_the_host_silent() {
    works
    same "resets of the host" "$(resets)" 0
    same "an answer to the balancer itself" "$(ask balancer 10.77.0.11)" server1
}

# The host answers by itself what nobody keeps from it.
host_is_no_longer_silent() {
    on client curl -sS -m 2 http://$VIP || true
    [ "$(resets)" -gt 0 ] || fail "without a guard the host would answer"
}

# is_guarded_by_nftables MODE: until convey ends.
is_guarded_by_nftables() {
    count_resets "$1"
    balance "$1"
    logged "nftables, table netdev convey_" || fail "another guard than that of nftables"
    keeps_the_host_silent
    stop_convey
    same "the tables that are left" "$(on balancer nft list tables)" "table inet resets"
    host_is_no_longer_silent
}

# guards INTERFACE: how many guards stay there when their process ends.
guards() {
    on balancer tc filter show dev "$1" ingress | grep -c 'handle.*dsr_guard' || true
}

# A frontend and servers of their own for clients with IPv6, further lines for configure.
IPV6="[frontends.web6]
listen_addr = \"[$VIP6]:80\"
backend = \"web6\"
[backends.web6.servers]
server1.addr = \"[fd77::11]:80\"
server2.addr = \"[fd77::12]:80\""

# is_forwarded_by_tc ADDRESS DIRECTIONS: a download of it, but for its first and last frames.
# Directions are those that pass the balancer, as the client has them: "tx", or "tx rx".
is_forwarded_by_tc() {
    first_hits=$(hits) first_frames=$(frames "$2")
    same "the download's length" "$(ask client "$1/big" | wc -c)" 40000000
    frames=$(($(frames "$2") - first_frames))
    [ "$frames" -gt 200 ] || fail "only $frames frames"
    wait_for "the kernel to have forwarded nearly all of $frames frames" are_nearly_all_hits
}

are_nearly_all_hits() {
    hits=$(($(hits) - first_hits))
    [ "$hits" -gt $((frames - 30)) ] && [ "$hits" -le "$frames" ]
}

# in_stats PATTERN: whether /stats has such a line.
in_stats() {
    ask balancer 127.0.0.1:7000/stats | grep -q "$1"
}

# What /stats has of the packets that the kernel has forwarded.
hits() {
    ask balancer 127.0.0.1:7000/stats | sed -n 's/.*"forwarded": *\([0-9]*\).*/\1/p'
}

# frames DIRECTIONS: how many the client has received (rx) and sent (tx).
frames() {
    sum=0
    for direction in $1; do
        sum=$((sum + $(on client cat "/sys/class/net/eth0/statistics/${direction}_packets")))
    done
    echo $sum
}

# filters INTERFACE: how many flow caches there are on one of the balancer's.
filters() {
    on balancer tc filter show dev "$1" ingress | grep -c cache_tc || true
}

# is_guarded_by_iptables MODE: as long as the rules of the mode's script are there.
is_guarded_by_iptables() {
    count_resets "$1"
    # The first question makes the table.
    rules >/dev/null
    before=$(rules)
    on balancer "/convey/iptables/$1.sh" up
    once=$(rules)
    on balancer "/convey/iptables/$1.sh" up
    same "what a second up makes" "$(rules)" "$once"

    # Without the flow cache, which leaves the host little to answer.
    balance "$1" 'guard = false
offload = "off"'
    keeps_the_host_silent

    on balancer "/convey/iptables/$1.sh" down
    on balancer "/convey/iptables/$1.sh" down
    same "what is left" "$(rules)" "$before"
    host_is_no_longer_silent
}

# The balancer's, without what counts packets and tells the time.
rules() {
    on balancer iptables-save -t raw | sed '/^#/d; s/\[.*\]//'
}

# wait_for WHAT COMMAND...: until the command succeeds.
wait_for() {
    waited=$1
    shift
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "waited in vain for $waited"
        usleep 100000
    done
}

# same WHAT A B
same() {
    [ "$2" = "$3" ] || fail "$1: '$2' is not '$3'"
}

fail() {
    echo "$*"
    [ ! -s /tmp/log ] || { echo "--- convey's log"; tail -20 /tmp/log; }
    exit 1
}
