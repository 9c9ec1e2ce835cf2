# Without what counts packets and tells the time.
rules() {
    on balancer iptables-save -t raw | sed '/^#/d; s/\[.*\]//'
}

count_resets passthrough
# The first question makes the table.
rules >/dev/null
before=$(rules)
on balancer /convey/iptables/passthrough.sh up
once=$(rules)
on balancer /convey/iptables/passthrough.sh up
same "what a second up makes" "$(rules)" "$once"

balance passthrough "guard = false"
works
same "resets of the host" "$(resets)" 0
same "an answer to the balancer itself" "$(ask balancer 10.77.0.11)" server1

on balancer /convey/iptables/passthrough.sh down
on balancer /convey/iptables/passthrough.sh down
same "what is left" "$(rules)" "$before"
on client curl -sS -m 2 http://$VIP || true
[ "$(resets)" -gt 0 ] || fail "without the rules the host would answer"
