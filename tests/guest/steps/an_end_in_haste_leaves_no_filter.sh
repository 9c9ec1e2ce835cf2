balance passthrough
works
on client nc $VIP 80 </dev/zero >/dev/null &
service=$!
wait_for "a connection" in_stats '"established": *1'
kill "$convey"
wait_for "convey to drain" logged "stopping: 1 open"
kill "$convey"
ended=$convey convey=
! wait "$ended" || fail "a second signal goes unnoticed"
same "filters that are left" "$(filters eth0)" 0
