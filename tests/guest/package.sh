# The life of the Debian package. What fails is reported, and ends it.

. /lab.sh
set -eu
trap 'echo "it ended here; the last lines of the journal:" >&3; journalctl --no-pager -n 40 -o cat >&3 2>&3 || true' EXIT
fail() {
    echo "$*" >&3
    exit 1
}

show() {
    systemctl show --value -p "$1" convey
}

is() {
    [ "$(show "$1")" = "$2" ]
}

answers() {
    [ "$(curl -sS -m 5 "http://$1/" 2>&1)" = "$2" ]
}

# The unit of a DSR server has been started by the boot.
wait_for "the unit of the DSR server" systemctl is-active -q convey-dsr-server
[ -n "$(ip addr show dev lo to 10.99.0.100)" ] || fail "a boot does not give a DSR server the VIP"
same "arp_ignore" "$(cat /proc/sys/net/ipv4/conf/all/arp_ignore)" 1
systemctl stop convey-dsr-server
[ -z "$(ip addr show dev lo to 10.99.0.100)" ] || fail "stopping the unit leaves the VIP"

# Installed: nothing runs, everything is there.
dpkg --force-confold -i /debs/first.deb || fail "cannot be installed"
grep -q '^convey:' /etc/passwd || fail "no user convey"
same "what the operator wrote" "$(head -1 /etc/convey/dsr-server.env)" SCRIPT=dsr-server-l2.sh
! systemctl is-enabled -q convey || fail "it is enabled without being asked"
! systemctl is-active -q convey || fail "it runs without being asked"
systemd-analyze verify --man=no /lib/systemd/system/convey*.service /usr/lib/systemd/system/convey*.service 2>/tmp/verify || true
! grep -i convey /tmp/verify || fail "systemd-analyze verify: $(cat /tmp/verify)"
systemd-analyze security --offline=true --threshold=30 --no-pager convey.service >/tmp/security ||
    fail "systemd-analyze security: $(tail -1 /tmp/security)"

cd /tmp
convey check >/tmp/checked 2>&1 || fail "convey check: $(cat /tmp/checked)"
grep -qx '/etc/convey/config.toml is valid; convey would run:' /tmp/checked || fail "another file: $(cat /tmp/checked)"
cd /

# Started as shipped: it serves, and says what to edit.
systemctl enable --now convey || fail "cannot be started"
same "/healthz" "$(curl -sS -m 5 http://127.0.0.1:7000/healthz)" ok
wait_for "a status that names the backend" sh -c 'systemctl show -p StatusText convey | grep -q "backend web has no usable server"'
wait_for "the log" sh -c 'journalctl -u convey -o cat | grep -q "correct their addresses in /etc/convey/config.toml"'
pid=$(show MainPID)
same "who runs it" "$(ps -o user,pid | awk -v pid="$pid" '$2 == pid { print $1 }')" convey
same "its capabilities" "$(sed -n 's/^CapEff:[^0]*0*//p' "/proc/$pid/status")" 400

# Reloaded: a port below 1024, a server that is there.
mkdir -p /www && echo hello >/www/index.html
httpd -p 127.0.0.1:8081 -h /www
cat >/etc/convey/config.toml <<CONFIG
[frontends.web]
listen_addr = "127.0.0.1:80"
backend = "web"
[backends.web.servers.a]
addr = "127.0.0.1:8081"
CONFIG
systemctl reload convey || fail "cannot be reloaded"
wait_for "an answer through port 80" answers 127.0.0.1 hello
same "the process that was reloaded" "$(show MainPID)" "$pid"

# Another process takes over, within what the unit allows, and is the main one. A stop gives it
# time.
convey upgrade >/tmp/upgraded 2>&1 || fail "convey upgrade: $(cat /tmp/upgraded)"
answers 127.0.0.1 hello || fail "after convey upgrade nobody is served"
wait_for "the old process to end" sh -c "[ ! -d /proc/$pid ]"
systemctl is-active -q convey || fail "the end of the old process is that of the service"
[ "$(show MainPID)" != "$pid" ] || fail "systemd does not follow convey upgrade"
systemctl reload convey || fail "cannot be reloaded after convey upgrade"
answers 127.0.0.1 hello || fail "after that reload nobody is served"
systemctl restart convey || fail "cannot be restarted after convey upgrade"
! journalctl -u convey -o cat | grep 'not our child\|SIGKILL' >&3 || fail "systemd does not wait for a process that took over"

# Restarted while a connection is open: who comes waits until it ends, and is not refused.
sleep 6 | nc 127.0.0.1 80 >/dev/null &
wait_for "a connection that stays" sh -c 'curl -sS http://127.0.0.1:7000/stats | grep -q "\"current_connections\": *1"'
systemctl restart --no-block convey
wait_for "the stop to begin" sh -c 'journalctl -u convey -o cat | grep -q "the service manager keeps"'
same "who comes during a restart" "$(curl -sS -m 30 http://127.0.0.1/ 2>&1)" hello
wait_for "the restart to end" systemctl is-active -q convey

# A mistake fails the reload, and what runs goes on.
cp /etc/convey/config.toml /tmp/good
echo 'weihgt = 3' >>/etc/convey/config.toml
! systemctl reload convey || fail "a reload of a mistake is no error"
journalctl -u convey -o cat | grep -q 'config.toml:6:.*did you mean `weight`?' || fail "the journal does not name the mistake"
answers 127.0.0.1 hello || fail "after a mistake nobody is served"
cp /tmp/good /etc/convey/config.toml

# Hung: systemd notices.
mkdir -p /run/systemd/system/convey.service.d
printf '[Service]\nWatchdogSec=2\n' >/run/systemd/system/convey.service.d/soon.conf
systemctl daemon-reload && systemctl restart convey
kill -STOP "$(show MainPID)"
wait_for "a new process for the one that hung" is NRestarts 1
wait_for "it to serve" answers 127.0.0.1 hello
rm -r /run/systemd/system/convey.service.d

# It announces an address while it can serve, with the file that is shipped for it. An upgrade keeps
# the address; a process that was killed leaves none.
cat >>/etc/convey/config.toml <<CONFIG
[announce]
interface = "lo"
[frontends.vip]
listen_addr = "10.88.0.1:80"
backend = "web"
CONFIG
announced() {
    ip addr show dev lo to 10.88.0.1 | grep -q 10.88.0.1
}
withdrawn() {
    ! announced
}
systemctl restart convey || fail "what it may not announce keeps it from starting"
wait_for "the journal to say what announcing needs" sh -c 'journalctl -u convey -o cat | grep -q "announce.conf"'
withdrawn || fail "it announces without the capability"
mkdir -p /etc/systemd/system/convey.service.d /run/systemd/system/convey.service.d
cp /usr/share/convey/systemd/announce.conf /etc/systemd/system/convey.service.d/
printf '[Service]\nRestart=no\n' >/run/systemd/system/convey.service.d/once.conf
systemctl daemon-reload && systemctl restart convey || fail "with an announced address it does not start"
wait_for "the address" announced
answers 10.88.0.1 hello || fail "the announced address does not serve"
ip monitor address >/tmp/addresses &
monitor=$!
convey upgrade >/tmp/upgraded 2>&1 || fail "convey upgrade with an address: $(cat /tmp/upgraded)"
answers 10.88.0.1 hello || fail "after convey upgrade the address does not serve"
kill "$monitor"
! grep 'Deleted.*10.88.0.1' /tmp/addresses || fail "convey upgrade withdraws the address"
systemctl stop convey
withdrawn || fail "a stop leaves the address"
systemctl start convey
wait_for "the address after a start" announced
kill -KILL "$(show MainPID)"
wait_for "the service to have failed" is ActiveState failed
withdrawn || fail "a killed process leaves the address"
rm -r /run/systemd/system/convey.service.d
systemctl daemon-reload && systemctl reset-failed convey && systemctl start convey
wait_for "the address after a failure" announced
cp /tmp/good /etc/convey/config.toml
systemctl reload convey
wait_for "a file without the address" withdrawn
rm -r /etc/systemd/system/convey.service.d
systemctl daemon-reload

# A packet mode, with the file that is shipped for it; the user stays.
unshare -n sleep 1000 &
wait_for "another machine" sh -c "[ \"\$(readlink /proc/$!/ns/net)\" != \"\$(readlink /proc/self/ns/net)\" ]"
other="nsenter -t $! -n"
ip link add eth0 type veth peer name eth0 netns $!
ip addr add 10.77.0.1/24 dev eth0 && ip addr add 10.77.0.100/32 dev eth0 && ip link set eth0 up
$other ip addr add 10.77.0.11/24 dev eth0 && $other ip link set eth0 up && $other ip link set lo up
$other httpd -p 10.77.0.11:80 -h /www
printf '[frontends.nat]\nmode = "passthrough"\nlisten_addr = "10.77.0.100:80"\nbackend = "nat"\n%s\n' \
    '[backends.nat.servers.a]
addr = "10.77.0.11:80"' >>/etc/convey/config.toml
! systemctl restart convey || fail "a packet mode starts without its capabilities"
journalctl -u convey -o cat | grep -q 'packet-modes.conf' || fail "the journal does not say what packet modes need"
mkdir -p /etc/systemd/system/convey.service.d
cp /usr/share/convey/systemd/packet-modes.conf /etc/systemd/system/convey.service.d/
systemctl daemon-reload && systemctl restart convey || fail "a packet mode does not start"
answers_nat() {
    [ "$($other curl -sS -m 5 http://10.77.0.100/ 2>&1)" = hello ]
}
wait_for "an answer by NAT" answers_nat
answers 127.0.0.1 hello || fail "beside NAT the proxy does not serve"
same "who runs it" "$(ps -o user,pid | awk -v pid="$(show MainPID)" '$2 == pid { print $1 }')" convey

# Upgraded: another process, the same file, still enabled.
pid=$(show MainPID) sum=$(md5sum /etc/convey/config.toml)
dpkg --force-confold -i /debs/second.deb || fail "cannot be upgraded"
same "the version" "$(dpkg-query -W -f '${Version}' convey)" 0.3.0-2
same "the configuration" "$(md5sum /etc/convey/config.toml)" "$sum"
wait_for "it to serve after the upgrade" answers 127.0.0.1 hello
wait_for "NAT after the upgrade" answers_nat
[ "$(show MainPID)" != "$pid" ] || fail "the old program runs after an upgrade"
systemctl is-enabled -q convey || fail "it is no longer enabled after an upgrade"
same "the new file, beside the operator's" "$(tail -1 /etc/convey/config.toml.dpkg-dist)" "# 0.3.0-2"

# Stopped and disabled: an upgrade leaves it so.
systemctl disable --now convey
dpkg --force-confold -i /debs/second.deb || fail "cannot be installed again"
! systemctl is-active -q convey || fail "an upgrade starts what was stopped and disabled"
systemctl enable --now convey || fail "cannot be started again"

# Purged: nothing is left but the user.
dpkg -P convey || fail "cannot be purged"
! systemctl is-active -q convey || fail "it runs without its package"
rm -r /etc/systemd/system/convey.service.d
left=$(find /etc /usr/bin /usr/lib/systemd /usr/share /var/lib/systemd -name '*convey*' | grep -v '^/usr/share/convey/tc\|^/usr/share/convey$' || true)
same "what is left" "$left" ""
trap - EXIT
echo told >&3
