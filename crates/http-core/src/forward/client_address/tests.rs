//! Clients that proxies name, and what strangers can forge.

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::{HeadLimits, HeadReader};

/// Client that a request with these fields names. 10.0.0.0/8 and 2001:db8:ff::/48 are trusted.
fn client(by: &str, fields: &[(&str, &str)]) -> String {
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut head = BytesMut::from(&*format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    let head = HeadReader::default().request(&mut head, &HeadLimits::default()).unwrap().unwrap();
    let is_trusted = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 10,
        IpAddr::V6(ip) => ip.segments()[..3] == [0x2001, 0xdb8, 0xff],
    };
    match by.parse::<ClientAddress>().unwrap().client_of(&head, is_trusted) {
        NamedClient::Missing => "missing".to_owned(),
        NamedClient::NotAnAddress => "no address".to_owned(),
        NamedClient::Address(addr) => addr.to_string(),
    }
}

/// Clients of requests with one field of several lines.
fn check(by: &str, name: &str, cases: &[(&[&str], &str)]) {
    for (lines, expected) in cases {
        let fields: Vec<_> = lines.iter().map(|line| (name, *line)).collect();
        assert_eq!(client(by, &fields), *expected, "{lines:?}");
    }
}

#[test]
fn x_forwarded_for_is_walked_from_its_end_over_trusted_proxies() {
    check(
        "x-forwarded-for",
        "X-Forwarded-For",
        &[
            (&[], "missing"),
            (&[""], "missing"),
            (&[" , ,,"], "missing"),
            (&["203.0.113.7"], "203.0.113.7:0"),
            (&["198.51.100.1, 203.0.113.7"], "203.0.113.7:0"),
            (&["203.0.113.7, 10.0.0.1 ,, 10.0.0.2"], "203.0.113.7:0"),
            (&["203.0.113.7,\t10.0.0.1,"], "203.0.113.7:0"),
            (&["198.51.100.1", "203.0.113.7", "10.0.0.1"], "203.0.113.7:0"),
            (&["198.51.100.1", "", "203.0.113.7, 10.0.0.1", ","], "203.0.113.7:0"),
            (&["10.0.0.1, 10.0.0.2"], "10.0.0.1:0"),
            (&["203.0.113.7:4711"], "203.0.113.7:4711"),
            (&["198.51.100.1, [2001:db8::7]"], "[2001:db8::7]:0"),
            (&["198.51.100.1, 2001:db8::7"], "[2001:db8::7]:0"),
            (&["[2001:db8::7]:4711, ::ffff:10.0.0.1"], "[2001:db8::7]:4711"),
            (&["::ffff:203.0.113.7"], "203.0.113.7:0"),
            (&["[::ffff:203.0.113.7]:80, [::ffff:10.0.0.9]:80"], "203.0.113.7:80"),
            (&["2001:db8::7, 2001:db8:ff::1"], "[2001:db8::7]:0"),
        ],
    );
}

#[test]
fn x_forwarded_for_entry_without_an_address_ends_the_walk() {
    for wrong in [
        "unknown",
        "_hidden",
        "203.0.113.7:",
        "203.0.113.7:65536",
        "203.0.113.7:_port",
        "203.0.113",
        "203.0.113.007",
        "0xcb007107",
        "3405803783",
        "203.0.113.7/32",
        "203.0.113.7 10.0.0.1",
        "\"203.0.113.7\"",
        "for=203.0.113.7",
        "[2001:db8::7",
        "[2001:db8::7]:x",
        "client.example",
        "\u{ff11}0.0.0.1",
        "{ip}",
    ] {
        let at_end = format!("203.0.113.7, {wrong}");
        assert_eq!(client("x-forwarded-for", &[("X-Forwarded-For", &at_end)]), "no address", "{wrong}");
        let between = format!("203.0.113.7, 10.0.0.1, {wrong}, 10.0.0.2");
        assert_eq!(client("x-forwarded-for", &[("X-Forwarded-For", &between)]), "10.0.0.2:0", "{wrong}");
    }
}

#[test]
fn forwarded_is_walked_from_its_end_over_trusted_proxies() {
    check(
        "forwarded",
        "Forwarded",
        &[
            (&[], "missing"),
            (&[","], "missing"),
            (&["for=203.0.113.7"], "203.0.113.7:0"),
            (&["For=198.51.100.1, proto=http;FOR=203.0.113.7;by=10.0.0.1"], "203.0.113.7:0"),
            (&["for=203.0.113.7;host=\"a,b\", for=10.0.0.1;host=\"c;for=1.2.3.4\\\"\""], "203.0.113.7:0"),
            (&["for=203.0.113.7;host=\"a,b\", for=10.0.0.1;host=\"c,d\""], "203.0.113.7:0"),
            (&["for=203.0.113.7;ext=\"\\\\\", for=10.0.0.1"], "203.0.113.7:0"),
            (&["for=203.0.113.7", "for=10.0.0.2", " , "], "203.0.113.7:0"),
            (&["for=\"[2001:db8::7]:4711\""], "[2001:db8::7]:4711"),
            (&["for=\"[2001:db8::7]\", for=\"[2001:db8:ff::1]\""], "[2001:db8::7]:0"),
            (&["for=\"203.0.113.7:4711\" ; proto=https"], "203.0.113.7:4711"),
            (&["for=\"203.0.113.7:_a1\""], "203.0.113.7:0"),
            (&["for=\"[::ffff:203.0.113.7]\", for=\"[::ffff:10.0.0.1]\""], "203.0.113.7:0"),
            (&["for=10.0.0.1, for=10.0.0.2"], "10.0.0.1:0"),
            (&["for=203.0.113.7, for=unknown"], "no address"),
            (&["for=203.0.113.7, for=_hidden, for=10.0.0.1"], "10.0.0.1:0"),
            (&["for=203.0.113.7, proto=https"], "no address"),
            (&["for=203.0.113.7;for=198.51.100.1"], "no address"),
            (&["203.0.113.7"], "no address"),
            (&["for="], "no address"),
            (&["for=\"203.0.113.7"], "no address"),
            (&["for=\"203.0.113.7, 10.0.0.1\""], "no address"),
        ],
    );
}

#[test]
fn own_header_names_a_client_by_its_only_line() {
    let by = "header:CF-Connecting-IP";
    check(
        by,
        "cf-connecting-ip",
        &[
            (&[], "missing"),
            (&[""], "no address"),
            (&["203.0.113.7"], "203.0.113.7:0"),
            (&["2001:db8::7"], "[2001:db8::7]:0"),
            (&["::ffff:203.0.113.7"], "203.0.113.7:0"),
            (&["203.0.113.7:4711"], "203.0.113.7:4711"),
            (&["203.0.113.7", "203.0.113.7"], "no address"),
            (&["203.0.113.7, 198.51.100.1"], "no address"),
            (&["unknown"], "no address"),
        ],
    );
    let others = [("CF_Connecting_IP", "198.51.100.1"), ("X-Forwarded-For", "198.51.100.2")];
    assert_eq!(client(by, &others), "missing");
    assert_eq!(client(by, &[others[0], ("CF-Connecting-IP", "203.0.113.7")]), "203.0.113.7:0");
}

#[test]
fn list_in_another_spelling_or_field_names_no_client() {
    for name in ["X_Forwarded_For", "X-Forwarded_For", "Forwarded", "X-Real-IP", "True-Client-IP"] {
        assert_eq!(client("x-forwarded-for", &[(name, "for=203.0.113.7")]), "missing", "{name}");
    }
    assert_eq!(client("connection", &[("X-Forwarded-For", "203.0.113.7")]), "missing");
    let both = [("X-Forwarded-For", "198.51.100.1"), ("Forwarded", "for=203.0.113.7")];
    assert_eq!(client("forwarded", &both), "203.0.113.7:0");
    assert_eq!(client("x-forwarded-for", &both), "198.51.100.1:0");
}

#[test]
fn client_in_front_of_a_thousand_trusted_proxies_is_found() {
    let proxies = ", 10.0.0.1".repeat(1_000);
    let line = format!("198.51.100.1, 203.0.113.7{proxies}");
    assert_eq!(client("x-forwarded-for", &[("X-Forwarded-For", &line)]), "203.0.113.7:0");
    let line = format!("for=198.51.100.1, for=203.0.113.7{}", ", for=10.0.0.1".repeat(1_000));
    assert_eq!(client("forwarded", &[("Forwarded", &line)]), "203.0.113.7:0");
}

#[test]
fn value_of_client_address_is_written_as_it_is_read() {
    for text in ["x-forwarded-for", "forwarded", "connection", "header:X-Real-IP"] {
        assert_eq!(text.parse::<ClientAddress>().unwrap().to_string(), text);
    }
    for wrong in [
        "",
        "X-Real-IP",
        "header:",
        "header:a b",
        "header:Host",
        "header:Forwarded",
        "header:x-forwarded-FOR",
    ] {
        assert_eq!(wrong.parse::<ClientAddress>(), Err(()), "{wrong}");
    }
}

proptest! {
    #[test]
    fn entries_of_a_client_never_change_its_address(forged in "[0-9a-f.:,\\[\\] _]{0,40}") {
        for chain in ["203.0.113.7", "203.0.113.7, 10.0.0.1"] {
            let line = format!("{forged}, {chain}");
            let name = "X-Forwarded-For";
            prop_assert_eq!(client("x-forwarded-for", &[(name, &line)]), "203.0.113.7:0");
            prop_assert_eq!(client("x-forwarded-for", &[(name, &forged), (name, chain)]), "203.0.113.7:0");
        }
    }

    #[test]
    fn elements_of_a_client_never_change_its_address(forged in "[ -~]{0,40}") {
        for chain in ["for=203.0.113.7", "for=203.0.113.7;host=\"a,\\\"b\", for=\"10.0.0.1:80\";proto=http"] {
            let line = format!("{forged}, {chain}");
            let name = "Forwarded";
            prop_assert_eq!(client("forwarded", &[(name, &line)]), "203.0.113.7:0");
            prop_assert_eq!(client("forwarded", &[(name, &forged), (name, chain)]), "203.0.113.7:0");
        }
    }
}
