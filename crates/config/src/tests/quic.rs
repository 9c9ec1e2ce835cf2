//! Servers identified by QUIC connection ids.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::diff::differences;

const KEY: &str = "8f95f09245765f80256934e50c66207f";

/// File with two servers that have these ids, and with these additional lines of their backend.
fn with(ids: [&str; 2], lines: &str) -> String {
    format!(
        "[frontends.web]\nprotocol = \"udp\"\nlisten_addr = \"10.0.0.1:443\"\nbackend = \"web\"\n\
         [backends.web]\nalgorithm = \"maglev\"\nhash = \"quic_cid\"\n{lines}\n\
         [backends.web.servers.a]\naddr = \"10.0.0.2:443\"\n{}\n[backends.web.servers.b]\naddr = \"10.0.0.3:443\"\n{}\n",
        ids[0], ids[1]
    )
}

const IDS: [&str; 2] = ["quic_server_id = \"ed793a\"", "quic_server_id = \"ED793B\""];

fn shown(text: &str) -> String {
    let backend = &parse("config.toml", text).unwrap().config.backends[0];
    backend.quic.as_ref().map_or("none".to_owned(), |quic| quic.to_string())
}

#[test]
fn ids_alone_are_plain_and_a_table_has_a_key() {
    assert_eq!(shown(&with(IDS, "")), "a ed793a, b ed793b in scheme 0 (plain)");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quic-lb.key");
    fs::write(&file, format!("{KEY}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let keyed = |number: u8| {
        format!("[backends.web.quic_lb.{number}]\nkey_file = {:?}\nnonce_length = 4", file.display())
    };
    let text = with(IDS, &format!("{}\n[backends.web.quic_lb.5]\n", keyed(0)));
    assert_eq!(shown(&text), "a ed793a, b ed793b in scheme 0 (encrypted), 5 (plain)");
    let loaded = |text: &str| parse("config.toml", text).unwrap().config;
    let quic = loaded(&text).backends[0].quic.clone().unwrap();
    let packet = [&[0x40][..], &[0x07, 0x20, 0xb1, 0xd0, 0x7b, 0x35, 0x9d, 0x3c], &[0; 30]].concat();
    assert_eq!(quic.schemes.server_of(&packet), "ed793a".parse().ok(), "the draft's, appendix B");

    let (before, after) = (loaded(&with(IDS, &keyed(0))), loaded(&with(IDS, &keyed(1))));
    assert_eq!(
        differences(&before, &after),
        [
            "backend web: quic_lb a ed793a, b ed793b in scheme 0 (encrypted) -> a ed793a, b ed793b in scheme 1 (encrypted)"
        ]
    );
    fs::write(&file, KEY.replace('8', "9")).unwrap();
    let after = loaded(&with(IDS, &keyed(0)));
    assert_eq!(differences(&before, &after), ["backend web: quic_lb: key or nonce_length changed"]);

    fs::write(&file, "secret").unwrap();
    assert_eq!(
        errors(&with(IDS, &keyed(0))),
        [format!(
            "config.toml:9:12: backends.web.quic_lb.0.key_file: {} must contain 32 hexadecimal digits, a key of 16 bytes",
            file.display()
        )]
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(errors(&with(IDS, &keyed(0)))[0].contains("chmod"), "{:?}", errors(&with(IDS, &keyed(0))));
}

#[test]
fn unusable_quic_server_ids_are_refused() {
    let long = "quic_server_id = \"00112233445566778899aabbccddee\"";
    for (ids, lines, said) in [
        (["", ""], "", "7:8: backends.web.hash: found \"quic_cid\", but no server has a quic_server_id"),
        (["", ""], "[backends.web.quic_lb.0]", "8:1: backends.web.quic_lb.0: no server has a quic_server_id"),
        ([IDS[0], IDS[0]], "", "14:18: backends.web.servers.b.quic_server_id: server \"a\" has the same id"),
        (
            [IDS[0], "quic_server_id = \"01\""],
            "",
            "14:18: backends.web.servers.b.quic_server_id: 01 has 1 bytes, but ed793a of server \"a\" has 3; all ids of a backend have the same length",
        ),
        (
            ["quic_server_id = 7", ""],
            "",
            "11:18: backends.web.servers.a.quic_server_id: found 7; allowed: 2 to 30 hexadecimal digits, such as \"01\" or \"c4605e\"",
        ),
        (
            IDS,
            "[backends.web.quic_lb.7]",
            "8:1: backends.web.quic_lb.7: found the table name \"7\"; allowed: a number from 0 to 6, the first bits of connection ids",
        ),
        (
            [long, ""],
            "[backends.web.quic_lb.0]\nnonce_length = 5",
            "9:16: backends.web.quic_lb.0.nonce_length: server id and nonce have at most 19 bytes together; server ids have 15 bytes",
        ),
    ] {
        let found = errors(&with(ids, lines));
        assert!(found.contains(&format!("config.toml:{said}")), "{found:?}");
    }
    let named = with(IDS, "").replace("10.0.0.2:443", "app.internal:443");
    let said = errors(&named);
    assert!(
        said.len() == 1
            && said[0].ends_with("a host name may have several servers, which cannot share an id: write each server with its IP address and its own id"),
        "{said:?}"
    );
}

#[test]
fn quic_settings_without_effect_are_warned_about() {
    let text = with(IDS, "");
    let diagnostics = |text: &str| warnings(text).into_iter().next().unwrap_or_default();
    assert_eq!(diagnostics(&text), "");
    assert_eq!(
        diagnostics(&text.replace("hash = \"quic_cid\"", "hash = \"tuple\"")),
        "config.toml:11:18: backends.web.servers.a.quic_server_id: has no effect without hash = \"quic_cid\""
    );
    assert_eq!(
        diagnostics(&with([IDS[0], ""], "")),
        "config.toml:7:8: backends.web.hash: some servers have no quic_server_id: \"b\"; if the address of a client changes, its connection to such a server is lost"
    );
    assert_eq!(
        diagnostics(&text.replace("protocol = \"udp\"\n", "")),
        "config.toml:6:8: backends.web.hash: has no effect: no UDP frontend uses this backend"
    );
    assert_eq!(
        diagnostics(&text.replace("maglev", "round_robin")),
        "",
        "new clients go in turns, others by their ids"
    );
}
