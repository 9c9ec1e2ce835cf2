balance passthrough
works
service=$convey
on balancer ip addr add 10.77.0.101/32 dev eth0
# The second time it clears away what is left of itself.
for _ in 1 2; do
    VIP=10.77.0.101 file=/tmp/second.toml balance passthrough 'snat_ports = "61001-61999"
[stats]
port = 7001'
    same "filters of two" "$(filters eth0)" 2
    kill_convey
done
same "filters after a kill" "$(filters eth0)" 2
works
