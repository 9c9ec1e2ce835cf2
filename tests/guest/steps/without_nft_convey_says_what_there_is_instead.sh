configure
said=$(on balancer env PATH=/nowhere /convey/target/release/convey --passthrough --config /tmp/config.toml 2>&1) &&
    fail "it started: $said"
for part in "nft is not installed (Debian package nftables)" "passthrough.guard = false" "iptables/"; do
    case $said in
    *"$part"*) ;;
    *) fail "nothing of '$part' in: $said" ;;
    esac
done
