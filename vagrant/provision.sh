#!/bin/sh
# Makes a machine of the lab what it is to be; may be run again, with the same mode or the other.
# usage: provision.sh client|balancer|server ADDRESS passthrough|dsr
#
# Needs root, Debian, and the interface that has ADDRESS.
set -eu

[ $# -eq 3 ] || { sed -n '/^# usage/,/^# Needs/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
role=$1 address=$2 mode=$3
here=$(cd "$(dirname "$0")" && pwd)
convey=$(dirname "$here")
interface=$(ip -o addr show to "$address" | awk '{ print $2; exit }')

# What the scripts in iptables/ and tc/ are told; their comments say what it means.
export VIP=10.77.0.100 PORTS=80 SERVERS="10.77.0.11:80 10.77.0.12:80" SNAT_ADDRESSES=10.77.0.1
export BALANCERS=10.77.0.1 SERVER="$address" INTERFACE="$interface"

packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

client() {
    packages curl iperf3 wrk
}

server() {
    packages nginx-light
    hostname >/var/www/html/index.html
    "$convey/tc/dsr-server.sh" down
    if [ "$mode" = dsr ]; then
        "$convey/tc/dsr-server.sh" up
    fi
}

balancer() {
    packages curl iptables
    ip addr replace "$VIP/32" dev "$interface"
    for other in passthrough dsr; do
        "$convey/iptables/$other.sh" down
    done
    "$convey/iptables/$mode.sh" up
    cat >/etc/systemd/system/convey.service <<UNIT
[Unit]
Description=convey, a load balancer for TCP, UDP and HTTP
After=network-online.target

[Service]
ExecStart=/usr/local/bin/convey --$mode --config $here/config.toml
Restart=on-failure

[Install]
WantedBy=multi-user.target
UNIT
    install -m 755 "$convey/target/release/convey" /usr/local/bin/convey
    systemctl daemon-reload
    systemctl enable --quiet convey
    systemctl restart convey
}

case "$role/$mode" in
    client/* | server/passthrough | server/dsr | balancer/passthrough | balancer/dsr) "$role" ;;
    *) echo "provision.sh: no such role and mode: $role $mode" >&2; exit 2 ;;
esac
