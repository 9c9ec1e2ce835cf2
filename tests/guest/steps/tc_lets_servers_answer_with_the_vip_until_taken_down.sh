# Without counters, and handles, of which tc takes new ones.
qdiscs() {
    on "$1" tc qdisc show | sed 's/direct_packets_stat [0-9]*//'
    on "$1" tc filter show dev eth0 | grep -E 'match|action' || true
}

before=$(qdiscs server1)
# Twice each: the second time changes nothing.
for server in server1:10.77.0.11 server2:10.77.0.12; do
    for _ in 1 2; do
        on ${server%:*} env SERVER=${server#*:} /convey/tc/dsr-server.sh up
        rules=$(qdiscs ${server%:*})
        same "what a second up makes" "$rules" "${first:=$rules}"
    done
    first=
done
balance dsr
works
same "an answer to the balancer itself" "$(ask balancer 10.77.0.11)" server1

on server1 /convey/tc/dsr-server.sh down
on server1 /convey/tc/dsr-server.sh down
same "what is left" "$(qdiscs server1)" "$before"
