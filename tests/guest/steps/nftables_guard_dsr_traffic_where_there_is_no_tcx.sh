let_servers_answer_with_the_vip
count_resets dsr
balance dsr
logged "nftables, table netdev convey_" || fail "another guard than that of nftables"
works
same "resets of the host" "$(resets)" 0
same "an answer to the balancer itself" "$(ask balancer 10.77.0.11)" server1
stop_convey
same "the tables that are left" "$(on balancer nft list tables)" "table inet resets"
on client curl -sS -m 2 http://$VIP || true
[ "$(resets)" -gt 0 ] || fail "without the guard the host would answer"
