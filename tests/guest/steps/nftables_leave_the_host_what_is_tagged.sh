balance passthrough
works
count_resets passthrough
for machine in balancer:10.78.0.1 client:10.78.0.201; do
    on ${machine%:*} ip link add link eth0 name vlan7 up type vlan id 7
    on ${machine%:*} ip addr add ${machine#*:}/24 dev vlan7
done
# The frontend's address, by the VLAN: convey does not forward there.
on client ip route add $VIP via 10.78.0.1
on client curl -sS -m 2 http://$VIP || true
[ "$(resets)" -gt 0 ] || fail "the guard keeps from the host what convey does not forward"
on client ip route del $VIP
works
