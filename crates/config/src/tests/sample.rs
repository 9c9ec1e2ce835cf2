//! The annotated `config.toml`, and random edits of it.

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::diff::differences;
use super::super::parse;
use super::{errors, tls, warnings};
use convey_model::OutlierDetection;

const SAMPLE: &str = include_str!("../../../../config.toml");

/// Line of the sample for gRPC checks.
const OF_GRPC: &str = "\nservice = \"shop.Cart\"";

/// The annotated sample with every `#key = value` and `#[table]` uncommented. Its health check uses
/// HTTPS, because some keys have an effect only with HTTPS. The key of gRPC stays a comment.
fn sample_in_full() -> String {
    let in_force = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[') => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    let full: String = SAMPLE.lines().map(in_force).collect();
    assert!(full.contains("\nkind = \"tcp\""), "the default");
    full.replace("\nkind = \"tcp\"", "\nkind = \"https\"").replace(OF_GRPC, "\n#service = \"shop.Cart\"")
}

/// The uncommented sample, with the token and the certificates that it names. The files exist as
/// long as the returned folder.
fn sample_with_files() -> (String, TempDir) {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    tls::save_secret(&folder.path().join("token"), "correct-horse-battery");
    tls::save_secret(&folder.path().join("eab.key"), "c2VjcmV0");
    tls::save_secret(&folder.path().join("quic-lb.key"), &"00".repeat(16));
    tls::save_secret(&folder.path().join("affinity.key"), &"00".repeat(32));
    tls::save(folder.path(), "site", "site.example");
    std::fs::create_dir(at("certificates")).unwrap();
    tls::save(&folder.path().join("certificates"), "other", "other.example");
    let mut text = sample_in_full().replace("/etc/convey/token", &at("token"));
    for name in ["site.pem", "site.key", "certificates"] {
        text = text.replace(&format!("= \"{name}\""), &format!("= {:?}", at(name)));
    }
    let others = [
        ("clients.pem", "site.pem"),
        ("ca.pem", "site.pem"),
        ("convey.pem", "site.pem"),
        ("convey.key", "site.key"),
        ("eab.key", "eab.key"),
        ("quic-lb.key", "quic-lb.key"),
        ("affinity.key", "affinity.key"),
    ];
    for (name, file) in others {
        text = text.replace(&format!("= \"{name}\""), &format!("= {:?}", at(file)));
    }
    (text, folder)
}

#[test]
fn the_annotated_sample_is_right_once_its_two_addresses_are() {
    let lines = ["addr = \"192.0.2.10:8080\"", "addr = \"192.0.2.11:8080\""];
    let place = |addr: &str| {
        let before = SAMPLE.lines().position(|line| line.starts_with(addr)).expect("there");
        format!("config.toml:{}:8: backends.web.servers.", before + 1)
    };
    let diagnostics = warnings(SAMPLE);
    assert_eq!(diagnostics.len(), 2, "{diagnostics:?}");
    for ((addr, diagnostics), name) in lines.into_iter().zip(&diagnostics).zip(["a", "b"]) {
        assert!(diagnostics.starts_with(&(place(addr) + name + ".addr: 192.0.2.1")), "{diagnostics}");
        assert!(
            diagnostics.ends_with("is a documentation address: replace it with your server's"),
            "{diagnostics}"
        );
    }
    assert_eq!(warnings(&SAMPLE.replace("\"192.0.2.1", "\"10.0.0.1")), [""; 0]);
}

#[test]
fn sample_defaults_are_the_real_defaults() {
    let bare = parse("config.toml", SAMPLE).expect("valid").config;
    let (full, folder) = sample_with_files();
    let full = parse("config.toml", &full).expect("valid").config;
    let token = format!("stats.token_file none -> {}", folder.path().join("token").display());
    assert_eq!(full.backends[0].outlier_detection, Some(OutlierDetection::default()));
    assert_eq!(
        differences(&bare, &full),
        [
            "frontend web: ready_needs none -> web, max_connections none -> 10000, max_connections_per_client automatic -> 1000, \
             trusted_clients none -> 10.0.0.0/8, accept_proxy false -> true, trusted_proxies none -> 10.0.0.5/32, \
             timeouts.connect unset -> 2s, timeouts.idle unset -> 60s, timeouts.response unset -> 120s, timeouts.request unset -> 300s, timeouts.send unset -> 20s, timeouts.tcp_user_timeout unset -> 20s, \
             timeouts.udp_idle unset -> 30s, access networks: 2 added and 0 removed, limits.connections_per_source none -> 100, \
             limits.rate_per_source none -> 20, limits.burst automatic -> 40, limits.first_byte_timeout none -> 10s",
            "frontend https: added (proxy, 0.0.0.0:8443 -> backend web)",
            "frontend site: added (http, 0.0.0.0:8081 -> backends web, www)",
            "backend web: max_connections of web/a (192.0.2.10:8080) none -> 1000, affinity none -> cookie server, \
             health check tcp -> https / (200-399), host app.internal, header X-Check, \
             body matching \"^OK\", health check port the server's -> 9000, outlier detection off -> on, \
             on_down automatic -> reset, tunnel_source automatic -> 172.16.0.0/16, send_proxy none -> v2, source automatic -> 10.0.0.1, tls off -> on, \
             + servers of kubernetes default/web:http, timeouts.connect unset -> 0.5s, \
             timeouts.idle unset -> 300s, timeouts.response unset -> 120s, timeouts.request unset -> 300s, timeouts.send unset -> 20s, timeouts.tcp_user_timeout unset -> 20s, timeouts.udp_idle unset -> 30s",
            "backend www: added (files /srv/www)",
            "timeouts: request none -> 300s",
            "workers automatic -> 4",
            "dns.nameservers the system's -> 10.0.0.53:53, 10.0.0.54:5353",
            "access_log.output none -> /var/log/convey/access.log",
            "privileges.user none -> convey",
            "acme: added",
            "announce: addresses of frontends are now on lo",
            &token,
            "passthrough.workers automatic -> 4",
            "passthrough.interfaces automatic -> eth0, eth1",
            "passthrough.snat_addresses automatic -> 10.0.0.1",
            "passthrough.min_path_mtu none -> 1400",
        ]
    );
}

#[test]
fn the_annotated_sample_shows_every_key() {
    // The test adds an unknown key to every table; each error then lists the allowed keys.
    let mut text = String::from("q = 1\n");
    let (full, _folder) = sample_with_files();
    for line in full.lines() {
        text += &format!("{line}\n{}", if line.starts_with('[') { "q = 1\n" } else { "" });
    }
    let errors = errors(&text);
    let text = text.replace("\n#service = \"shop.Cart\"", OF_GRPC);
    assert_eq!(errors.len(), 48, "one for each table: {errors:#?}");
    for error in &errors {
        let (before, allowed) = error.split_once(": unknown key (allowed here: ").expect("a list of keys");
        let (_, place) = before.rsplit_once(' ').expect("the place and the key");
        // The table of the first server shows the keys that both servers may have.
        let table = place.trim_end_matches('q').trim_end_matches('.').replace("servers.b", "servers.a");
        for key in allowed.trim_end_matches(')').split(", ") {
            // Each frontend shows only the keys of its mode and protocol.
            let frontends = ["frontends.web", "frontends.site", "frontends.https"];
            let own = frontends.into_iter().find(|frontend| table.starts_with(frontend)).unwrap_or(&table);
            let is_shown = shows(&text, &table, key)
                || frontends.iter().any(|other| shows(&text, &table.replacen(own, other, 1), key))
                // Some keys are for backends with servers, others for a backend that serves files.
                || shows(&text, &table.replacen("backends.www", "backends.web", 1), key)
                || shows(&text, &table.replacen("backends.web", "backends.www", 1), key);
            assert!(is_shown, "{key} of {error}");
        }
    }
}

/// Whether the text has this key or subtable in this table.
fn shows(text: &str, table: &str, key: &str) -> bool {
    let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
    let mut header = "";
    text.lines().any(|line| {
        if let Some(rest) = line.strip_prefix('[') {
            header = rest.trim_start_matches('[').split(']').next().unwrap_or_default();
            return header == path || header.starts_with(&format!("{path}."));
        }
        header == table && line.starts_with(&format!("{key} = "))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn parser_does_not_panic_on_any_text(text in "(?s)[\\[\\]{}=.\"'#,\n a-z0-9:é-]{0,80}|.{0,200}") {
        one_line_each(&text);
    }
}

proptest! {
    // A debug build reads the whole sample in ten milliseconds; `fuzz/` tries many more edits.
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn parser_does_not_panic_on_any_edit_of_the_sample(
        at in 0..SAMPLE.len(),
        cut in 0..40usize,
        paste in "(?s)[\\[\\]{}=.\"'#,\n0-9a-z-]{0,8}|.{0,4}",
        again in 0..SAMPLE.len(),
    ) {
        let full = sample_in_full();
        let mut text: Vec<char> = full.chars().collect();
        let at = at.min(text.len());
        text.splice(at..(at + cut).min(text.len()), paste.chars());
        let again = again.min(text.len());
        text.splice(again..again, paste.chars());
        one_line_each(&text.into_iter().collect::<String>());
    }
}

/// Checks that every message about a text is one line and points into the text.
fn one_line_each(text: &str) {
    let problems = match parse("x", text) {
        Ok(loaded) => loaded.warnings,
        Err(problems) => problems,
    };
    for problem in problems {
        assert!(!problem.to_string().contains(['\n', '\r']), "{problem:?}");
        assert!(problem.line <= text.split('\n').count(), "{problem:?}");
    }
}
