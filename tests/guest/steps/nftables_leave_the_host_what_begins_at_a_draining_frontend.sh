# It drains for longer than this waits.
balance passthrough "[timeouts]
drain = 600"
works
on balancer sh -c 'mkdir -p /var/www/html; hostname >/var/www/html/index.html'
nsenter -t "$balancer" -n -m -u httpd -f -h /var/www/html &
service=$!
works

answered_by_host() {
    [ "$(on client curl -sS -m 1 http://$VIP)" = balancer ]
}

# The frontend moves to another port.
on balancer sed -i "s/$VIP:80/$VIP:81/" /tmp/config.toml
wait_for "the host to answer" answered_by_host
