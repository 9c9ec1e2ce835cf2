//! `source` of backends, and `workers` of the file.

use super::super::{describe, parse};
use super::modes::diagnostics;
use super::{GOOD, errors, warnings};
use convey_model::Mode;

/// [`GOOD`] with additional lines of its backend.
fn with(backend: &str) -> String {
    format!("{GOOD}[backends.web]\n{backend}\n")
}

#[test]
fn source_is_one_address_of_each_family() {
    let config = parse("c", &with("source = \"10.0.0.9\"")).unwrap().config;
    let backend = &config.backends[0];
    let [v4, v6] = ["10.0.0.2", "2001:db8::2"].map(|ip| ip.parse().unwrap());
    assert_eq!(backend.source_to(v4), Some("10.0.0.9".parse().unwrap()));
    assert_eq!(backend.health_check.source_to(v4), Some("10.0.0.9".parse().unwrap()));
    assert_eq!(backend.source_to(v6), None, "the kernel chooses");
    assert!(describe(&config).contains("; source 10.0.0.9)\n"), "{}", describe(&config));
    let config = parse("c", &with("source = [\"10.0.0.9\", \"2001:db8::9\"]")).unwrap().config;
    assert_eq!(config.backends[0].source_to(v6), Some("2001:db8::9".parse().unwrap()));
    assert_eq!(
        errors(&with("source = [\"10.0.0.9\", \"10.0.0.8\"]")),
        ["config.toml:8:23: backends.web.source: 10.0.0.9 is already the IPv4 source; a backend has one"]
    );
}

#[test]
fn source_that_no_connection_can_have_is_an_error() {
    let wildcard = " (the wildcard address; without this key, the kernel chooses)";
    for (ip, kind) in [
        ("0.0.0.0", wildcard),
        ("::", wildcard),
        ("224.0.0.1", " (a multicast address)"),
        ("fe80::1", " (a link-local address)"),
        ("fe80::1%lo", " (an address with a zone)"),
        ("::ffff:10.0.0.9", " (an IPv4-mapped address; write 10.0.0.9)"),
        ("::10.0.0.9", ""),
        ("10.0.0.9:80", ""),
        ("eth0", ""),
        ("50%", ""),
    ] {
        let found = errors(&with(&format!("source = \"{ip}\"")));
        let message = format!(
            "config.toml:8:10: backends.web.source: found \"{ip}\"{kind}; allowed: an address of this host without a \
             port, such as 10.0.0.1 or 2001:db8::1"
        );
        assert_eq!(found, [message]);
    }
    assert_eq!(
        errors(&with("source = []")),
        [
            "config.toml:8:10: backends.web.source: the list is empty: remove the key, or name at least one value"
        ]
    );
    let found = errors(&with("source = \"2001:db8::9\""));
    let message =
        "is an IPv4 address, but the source 2001:db8::9 (line 8) is IPv6; add an IPv4 address to the source";
    assert!(!found.is_empty() && found.iter().all(|line| line.ends_with(message)), "{found:?}");
    assert!(found[0].contains(".addr: 10.0.0."), "{found:?}");
}

#[test]
fn source_in_packet_modes_is_an_error() {
    let text = with("source = \"10.0.0.9\"");
    for (mode, instead) in [
        (
            Mode::Passthrough,
            "passthrough mode; that mode takes its addresses from passthrough.snat_addresses",
        ),
        (Mode::Dsr, "dsr mode, in which servers see the clients' addresses"),
    ] {
        let found = diagnostics(&text, mode).unwrap_err();
        let message = format!(
            "config.toml:8:10: backends.web.source: needs mode proxy or http, but frontend \"web\" is in {instead}"
        );
        assert!(found.contains(&message), "{found:?}");
    }
    assert!(diagnostics(&text, Mode::Proxy).is_ok());
}

#[test]
fn change_of_workers_needs_a_restart() {
    let text = |workers: u16| format!("workers = {workers}\n{GOOD}");
    let running = parse("c", &text(2)).unwrap().config;
    let (loaded, diff) = parse("c", &text(4)).unwrap().reload(&running);
    assert_eq!(loaded.config.workers, Some(2));
    assert_eq!((diff.changes, diff.needs_restart), (vec![], vec!["workers 2 -> 4".to_owned()]));
    assert_eq!(warnings(&text(1024)), [""; 0]);
    assert_eq!(errors(&text(0)), ["config.toml:1:11: workers: found 0; allowed: an integer from 1 to 1024"]);
}
