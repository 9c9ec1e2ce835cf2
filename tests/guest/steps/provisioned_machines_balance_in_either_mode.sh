# systemd, as the balancer's first process.
start_systemd() {
    nsenter -t "$balancer" -n -m -u unshare -p -f -m sh -c '
        mount -t proc proc /proc
        mount -t cgroup2 cgroup /sys/fs/cgroup
        container=lab exec /lib/systemd/systemd --unit=multi-user.target --log-target=console' >/tmp/log 2>&1 &
    wait_for "systemd" has_systemd
}

has_systemd() {
    systemd=$(pidof systemd) && in_systemd systemctl is-active --quiet multi-user.target
}

in_systemd() {
    nsenter -t "$systemd" -n -m -u -p -- "$@"
}

# A machine's packages are there already.
spare_packages() {
    on "$1" sh -c 'mkdir -p /usr/local/bin /etc/systemd/system
        echo "#!/bin/sh" >/usr/local/bin/apt-get
        chmod +x /usr/local/bin/apt-get'
}

# provision MODE: every machine, as `vagrant provision` does.
provision() {
    on server1 /convey/vagrant/provision.sh server 10.77.0.11 "$1"
    on server2 /convey/vagrant/provision.sh server 10.77.0.12 "$1"
    in_systemd /convey/vagrant/provision.sh balancer 10.77.0.1 "$1"
    on client /convey/vagrant/provision.sh client 10.77.0.201 "$1"
    wait_for "convey in mode $1" runs_in "$1"
}

runs_in() {
    in_systemd systemctl is-active --quiet convey && ask balancer 127.0.0.1:7000/stats >/tmp/stats &&
        grep -q "\"mode\": *\"$1\"" /tmp/stats
}

# The guard by hand is that of the mode, and no other.
guarded_in() {
    same "the guard by hand" "$(on balancer iptables-save -t raw | sed -n 's/^:\(CONVEY[^ ]*\).*/\1/p')" "$1"
}

for machine in client balancer server1 server2; do
    spare_packages $machine
done
start_systemd
# Twice the same, then the other.
for mode in dsr dsr passthrough; do
    provision $mode
    works
    guarded_in "CONVEY-$(echo $mode | tr a-z A-Z)"
done
