tables() {
    on balancer nft list tables
}

no_tables() {
    [ -z "$(tables)" ]
}

balance passthrough
case $(tables) in
"table netdev convey_"*) ;;
*) fail "no guard but: '$(tables)'" ;;
esac
kill -KILL "$convey"
convey=
wait_for "the table to be gone" no_tables
