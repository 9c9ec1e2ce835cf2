let_servers_answer_with_the_vip
count_resets dsr
balance dsr
works
on client curl -sS --fail -m 60 --limit-rate 8M -o /tmp/big "http://$VIP/big" &
service=$!
got() {
    [ "$(on client stat -c %s /tmp/big 2>/dev/null || echo 0)" -gt "$1" ]
}
wait_for "a download to be under way" got 1000000
kill_convey
same "guards after a kill" "$(guards eth0)" 1
on balancer /convey/target/release/convey check -d --config /tmp/config.toml >/tmp/said 2>&1
grep -q "left the guard of its dsr frontends on eth0" /tmp/said || fail "check: $(cat /tmp/said)"
sleep 1
balance dsr
logged "removed the guard of dsr frontends that an earlier convey left on eth0"
same "guards after a new start" "$(guards eth0)" 1
download=$service service=
wait "$download" || fail "the download was cut: $?"
same "resets of the host" "$(resets)" 0

# What nobody comes back for is taken away.
kill_convey
on balancer /convey/target/release/convey clear >/tmp/said 2>&1
grep -q "removed the guard of dsr frontends" /tmp/said || fail "clear: $(cat /tmp/said)"
same "guards after a clear" "$(guards eth0)" 0
host_is_no_longer_silent
