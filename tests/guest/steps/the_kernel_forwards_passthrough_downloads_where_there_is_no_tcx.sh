count_resets passthrough
balance passthrough "$IPV6"
logged "by tc (a clsact filter) on eth0" || fail "the kernel forwards nothing"
logged "nftables, table netdev convey_" || fail "another guard than that of nftables"
wait_for "healthy servers" servers_are_up 4
in_stats '"eth0": *"tc"' || fail "/stats do not say who forwards"
is_forwarded_by_tc $VIP "tx rx"
is_forwarded_by_tc "[$VIP6]" "tx rx"
same "resets of the host" "$(resets)" 0
same "filters" "$(filters eth0)" 1
stop_convey
same "filters that are left" "$(filters eth0)" 0
