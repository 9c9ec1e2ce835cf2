# Builds the lab and tells the steps in it, one after the other.

. /lab.sh
build_lab
for file in /steps/*.sh; do
    step=$(basename "$file" .sh)
    if timeout -k 15 120 /bin/sh -euc ". /lab.sh; begin; . $file" >/tmp/said 2>&1; then
        echo "ok $step" >&3
    else
        sed 's/^/  /' /tmp/said >&3
        echo "failed $step" >&3
    fi
    echo "$step: $(cut -d' ' -f1 /proc/uptime) s after the start"
done
