configure
# Wherever PATH leads: convey looks in the system's directories.
nft=$(command -v nft)
mv "$nft" "$nft.away"
said=$(on balancer /convey/target/release/convey --passthrough --config /tmp/config.toml 2>&1) && failed= || failed=1
mv "$nft.away" "$nft"
[ "$failed" ] || fail "it started: $said"
for part in "nft is not installed (Debian package nftables)" "passthrough.guard = false" "iptables/"; do
    case $said in
    *"$part"*) ;;
    *) fail "nothing of '$part' in: $said" ;;
    esac
done
