for server in server1:10.77.0.11 server2:10.77.0.12; do
    on ${server%:*} env SERVER=${server#*:} /convey/tc/dsr-server-nft.sh up
    once=$(on ${server%:*} nft list ruleset)
    on ${server%:*} env SERVER=${server#*:} /convey/tc/dsr-server-nft.sh up
    same "what a second up makes" "$(on ${server%:*} nft list ruleset)" "$once"
done
balance dsr
works
same "an answer to the balancer itself" "$(ask balancer 10.77.0.11)" server1

on server1 /convey/tc/dsr-server-nft.sh down
on server1 /convey/tc/dsr-server-nft.sh down
same "what is left" "$(on server1 nft list ruleset)" ""
