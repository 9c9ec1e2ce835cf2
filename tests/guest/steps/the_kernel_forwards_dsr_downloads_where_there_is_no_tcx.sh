for server in 11 12; do
    on server${server#1} env VIP="$VIP $VIP6" SERVER="10.77.0.$server fd77::$server" BALANCERS="10.77.0.1 fd77::1" \
        /convey/tc/dsr-server-nft.sh up
done
count_resets dsr
balance dsr "$IPV6"
logged "by tc (a clsact filter) on eth0" || fail "the kernel forwards nothing"
logged "nftables, table netdev convey_" || fail "another guard than that of nftables"
wait_for "healthy servers" servers_are_up 4
in_stats '"eth0": *"tc"' || fail "/stats do not say who forwards"
is_forwarded_by_tc $VIP tx
is_forwarded_by_tc "[$VIP6]" tx
same "resets of the host" "$(resets)" 0
same "filters" "$(filters eth0)" 1
stop_convey
same "filters that are left" "$(filters eth0)" 0
