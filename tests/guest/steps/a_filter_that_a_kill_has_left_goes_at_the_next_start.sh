on balancer ip link add spare up type veth peer name spare-peer
everywhere='interfaces = ["eth0", "spare"]'

balance passthrough "$everywhere"
works
same "filters" "$(filters eth0) $(filters spare)" "1 1"
kill_convey
same "filters after a kill" "$(filters eth0) $(filters spare)" "1 1"
on balancer /convey/target/release/convey check -p --config /tmp/config.toml >/tmp/said 2>&1
grep -q "a killed convey has left a filter on spare" /tmp/said || fail "check: $(cat /tmp/said)"

# On fewer interfaces.
balance passthrough
works
same "filters after a restart" "$(filters eth0) $(filters spare)" "1 0"
kill_convey

# Without the cache.
balance passthrough 'offload = "off"'
works
same "filters without a cache" "$(filters eth0)" 0
