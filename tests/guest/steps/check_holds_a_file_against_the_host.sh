check() {
    on balancer /convey/target/release/convey check --config /tmp/config.toml "$1" >/tmp/said 2>&1
}

configure
for mode in -p -d; do
    check $mode || fail "check $mode: $(cat /tmp/said)"
    grep -q "is valid; convey would run" /tmp/said || fail "check $mode: $(cat /tmp/said)"
done
on balancer sed -i "s/$VIP:80/0.0.0.0:80/" /tmp/config.toml
for mode in -p -d; do
    ! check $mode || fail "a wildcard is no VIP: $(cat /tmp/said)"
    grep -q "this host has: 10.77.0.1 (eth0), $VIP (eth0)" /tmp/said || fail "check $mode: $(cat /tmp/said)"
done
