use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::{FieldTrust, HeadLimits, HeadReader, TextPattern};

fn table(routes: &[(&str, &str)]) -> RouteTable<usize> {
    table_in(PathView::AsSent, routes)
}

fn table_in(view: PathView, routes: &[(&str, &str)]) -> RouteTable<usize> {
    let mut table = RouteTable::new(view);
    for (to, (host, path)) in routes.iter().enumerate() {
        table.add(&host_of(host), &path_of(path), RouteConditions::default(), to);
    }
    table
}

fn host_of(text: &str) -> HostPattern {
    if text.is_empty() { HostPattern::Any } else { HostPattern::parse(text).unwrap() }
}

/// Parses a path as in names of routes: `/v1`, `= /v1` or `~ ^/v1`.
fn path_of(text: &str) -> PathPattern {
    match text.split_once(' ') {
        Some(("=", path)) => PathPattern::Exact(ExactPath::parse(path).unwrap()),
        Some((_, regex)) => PathPattern::regex(regex).unwrap(),
        None => PathPattern::Prefix(PathPrefix::parse(text).unwrap()),
    }
}

fn find(table: &RouteTable<usize>, host: &str, path: &str) -> Option<usize> {
    table.find_at(host.as_bytes(), path.as_bytes(), |_| true).copied()
}

fn head(start: &str, fields: &str) -> RequestHead {
    let mut bytes = BytesMut::from(&*format!("{start} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"));
    HeadReader::default().request(&mut bytes, &HeadLimits::default()).unwrap().unwrap()
}

fn named(name: &str, value: ValueCondition) -> NamedCondition {
    NamedCondition { name: name.into(), value }
}

#[test]
fn the_closest_host_goes_first_and_then_the_longest_path() {
    let table = table(&[
        ("api.example.com", "/v1"),
        ("api.example.com", "/v1/items"),
        ("*.example.com", "/"),
        ("*.eu.example.com", "/"),
        ("", "/static"),
        ("", "/v1"),
        ("[2001:db8::1]", "/"),
    ]);
    let cases = [
        ("api.example.com", "/v1", Some(0)),
        ("API.Example.com.:8080", "/v1/", Some(0)),
        ("api.example.com", "/v1/items/7", Some(1)),
        ("api.example.com", "/v1/itemsandmore", Some(0)),
        ("api.example.com", "/v10", Some(2)),
        ("a.b.example.com", "/v1", Some(2)),
        ("a.eu.example.com", "/x", Some(3)),
        ("eu.example.com", "/x", Some(2)),
        ("example.com", "/v1/x", Some(5)),
        ("example.com", "/other", None),
        ("", "/static/a.css", Some(4)),
        ("[2001:DB8::1]:80", "/", Some(6)),
        ("api.example.com", "/%761/%69tems", Some(1)),
        ("api.example.com", "/v1%2Fitems", Some(2)),
        (".example.com", "/x", None),
    ];
    for (host, path, expected) in cases {
        assert_eq!(find(&table, host, path), expected, "{host} {path}");
    }
}

#[test]
fn closest_path_wins_before_the_order_of_the_file() {
    let table = table(&[
        ("", "/"),
        ("", "/shop"),
        ("", "/shop/cart"),
        ("", "= /shop/cart"),
        ("", "= /shop/cart/"),
        ("", "~ ^/shop/c"),
        ("", r"~ ^/shop/(\d+)$"),
        ("", "= /"),
    ]);
    let cases = [
        ("/", 7),
        ("/a", 0),
        ("/shopping", 0),
        ("/shop", 1),
        ("/shop/", 1),
        ("/shop/cart", 3),
        ("/shop/cart/", 4),
        ("/shop/cart/7", 5),
        ("/shop/7", 6),
        ("/shop/7/", 1),
        ("/shop/c%61rt", 3),
        ("*", 0),
    ];
    for (path, expected) in cases {
        assert_eq!(find(&table, "a.example", path), Some(expected), "{path}");
    }
}

#[test]
fn request_without_a_wanted_condition_takes_the_next_route() {
    let header = |value| vec![named("X-Canary", value)];
    let mut table = RouteTable::new(PathView::Normalized);
    let mut add = |path: &str, conditions: RouteConditions, to: &'static str| {
        table.add(&HostPattern::Any, &path_of(path), conditions, to);
    };
    let none = RouteConditions::default;
    add("/", none(), "rest");
    add("/a", RouteConditions { headers: header(ValueCondition::Is("always".into())), ..none() }, "canary");
    add("/a", RouteConditions { methods: vec!["GET".into(), "HEAD".into()], ..none() }, "reads");
    let puts = RouteConditions { methods: vec!["PUT".into()], ..none() };
    add("/p", puts.clone(), "puts");
    add("/p", RouteConditions { takes_preflight: true, ..puts }, "puts with preflight");
    let two = [header(ValueCondition::Present), vec![named("x-debug", ValueCondition::Absent)]].concat();
    add("/a", RouteConditions { headers: two, ..none() }, "two headers");
    let v2 = vec![named("v", ValueCondition::Is("2 b".into()))];
    add("/q", RouteConditions { query: v2, ..none() }, "query");
    let beta = vec![named("beta", ValueCondition::Matches(TextPattern::parse("^[1-9]$").unwrap()))];
    add("/q", RouteConditions { cookies: beta, ..none() }, "cookie");
    let cases = [
        ("GET /a", "", "reads"),
        ("GET /a", "X-Canary: always\r\n", "reads"),
        ("POST /a", "X-Canary: always\r\nX-Debug: 1\r\n", "canary"),
        ("POST /a", "x-canary: no\r\nX-CANARY: always\r\nx-debug:\r\n", "canary"),
        ("POST /a", "X-Canary: always\r\n", "two headers"),
        ("POST /a", "X-Canary: Always\r\nX-Debug: 1\r\n", "rest"),
        ("get /a", "", "rest"),
        ("GET /q?v=2+b", "Cookie: beta=7\r\n", "query"),
        ("GET /q?a&%76=2%20b", "", "query"),
        ("GET /q?v=2&v=2+b", "", "query"),
        ("GET /q?v=2&w=2+b", "", "rest"),
        ("GET /q", "Cookie: a=b; beta=7\r\n", "cookie"),
        ("GET /q", "Cookie: beta=77; Beta=7\r\nCookie: beta\r\n", "rest"),
    ];
    for (start, fields, expected) in cases {
        let found = table.find(&head(start, fields), FieldTrust::default(), |_| true);
        assert_eq!(found, Some(&expected), "{start} {fields:?}");
    }
    let preflight = "Origin: https://b\r\nAccess-Control-Request-Method: PUT\r\n";
    let untrusted = FieldTrust::default();
    let found = table.find(&head("OPTIONS /p", preflight), untrusted, |_| true);
    assert_eq!(found, Some(&"puts with preflight"));
    assert_eq!(
        table.find(&head("OPTIONS /p", "Access-Control-Request-Method: PUT\r\n"), untrusted, |_| true),
        Some(&"rest")
    );
    let found = table.find(&head("GET /a", ""), untrusted, |to| *to != "reads");
    assert_eq!(found, Some(&"rest"), "the caller has a condition, too");
}

#[test]
fn route_behind_one_that_takes_all_its_requests_is_unreachable() {
    let none = RouteConditions::default;
    let is = |text: &str| vec![named("X-A", ValueCondition::Is(text.into()))];
    let methods = |methods: &[&str]| methods.iter().map(|method| (*method).into()).collect::<Vec<Box<str>>>();
    let conditions = [
        none(),
        none(),
        RouteConditions { methods: methods(&["GET", "HEAD"]), ..none() },
        RouteConditions { methods: methods(&["GET"]), ..none() },
        RouteConditions { headers: is("1"), ..none() },
        RouteConditions { headers: vec![named("x-a", ValueCondition::Present)], ..none() },
        RouteConditions { headers: is("2"), ..none() },
        RouteConditions { headers: is("1"), source_len: Some(8), ..none() },
    ];
    let mut table = RouteTable::new(PathView::Normalized);
    for (to, conditions) in conditions.into_iter().enumerate() {
        table.add(&HostPattern::Any, &path_of("/a/"), conditions, to);
    }
    let same = |a: &usize, b: &usize| (*a == 7) <= (*b == 7);
    assert_eq!(table.unreachable(same), [(&2, &3), (&5, &6), (&0, &1)]);
    let host = HostPattern::parse("a.EXAMPLE.").unwrap();
    table.add(&host, &path_of("/%61"), none(), 8);
    assert_eq!(table.unreachable(same).len(), 3, "a closer host is another place");
    table.add(&HostPattern::parse("a.example").unwrap(), &path_of("/a"), none(), 9);
    assert!(table.unreachable(same).contains(&(&8, &9)));
}

#[test]
fn a_pattern_that_is_none_says_why() {
    let hosts = [
        ("", PatternFault::Host),
        ("*", PatternFault::Star),
        ("a.*.b", PatternFault::Star),
        ("*a.b", PatternFault::Star),
        ("a:80", PatternFault::Port),
        ("a b", PatternFault::Host),
        ("*.", PatternFault::Host),
        ("*.[::1]", PatternFault::Port),
    ];
    for (text, expected) in hosts {
        assert_eq!(HostPattern::parse(text), Err(expected), "{text}");
    }
    let paths = [
        ("", PatternFault::Path),
        ("v1", PatternFault::Path),
        ("/a?b", PatternFault::PathCharacter),
        ("/a b", PatternFault::PathCharacter),
        ("/a/../b", PatternFault::PathCharacter),
        ("/%g0", PatternFault::PathCharacter),
        ("/é", PatternFault::PathCharacter),
    ];
    for (text, expected) in paths {
        assert_eq!(PathPrefix::parse(text), Err(expected), "{text}");
    }
}

#[test]
fn encoded_character_of_a_path_takes_the_route_of_the_plain_one() {
    let patterns = ["/@admin", "/a+b", "= /v1:admin", "~ ^/@fs(/|$)", "/%40home", "/a[b]", "= /a;b"];
    let cases = [
        ("/%40admin/x", Some(0)),
        ("/a%2bb", Some(1)),
        ("/a%2Bb/", Some(1)),
        ("/v1%3aadmin", Some(2)),
        ("/%40fs/x", Some(3)),
        ("/@home", Some(4)),
        ("/%40hom%65", Some(4)),
        ("/a%5bb%5d", Some(5)),
        ("/a%3Bb", Some(6)),
        ("/%2540admin", None),
        ("/a%20b", None),
    ];
    for view in [PathView::Normalized, PathView::AsSent] {
        let table = table_in(view, &patterns.map(|pattern| ("", pattern)));
        for (path, expected) in cases {
            assert_eq!(find(&table, "a", path), expected, "{path} in {view:?}");
        }
    }
}

#[test]
fn odd_byte_in_a_value_does_not_avoid_an_expression() {
    let matches = |name: &str, regex: &str| {
        vec![named(name, ValueCondition::Matches(TextPattern::parse(regex).unwrap()))]
    };
    let conditions = [
        RouteConditions { headers: matches("User-Agent", "^BadBot.*$"), ..RouteConditions::default() },
        RouteConditions { query: matches("role", "^admin.*$"), ..RouteConditions::default() },
        RouteConditions { cookies: matches("role", "^admin[^;]*$"), ..RouteConditions::default() },
    ];
    let cases: [(usize, &str, &[u8]); 5] = [
        (0, "GET /", b"User-Agent: BadBot/1\xff"),
        (1, "GET /?role=admin%ff", b"X: 1"),
        (1, "GET /?role=admin%0a", b"X: 1"),
        (1, "GET /?role=admin%0D%0A%00", b"X: 1"),
        (2, "GET /", b"Cookie: role=admin\xff"),
    ];
    for (at, start, field) in cases {
        let bytes = [start.as_bytes(), b" HTTP/1.1\r\nHost: a\r\n", field, b"\r\n\r\n"].concat();
        let mut bytes = BytesMut::from(&bytes[..]);
        let head = HeadReader::default().request(&mut bytes, &HeadLimits::default()).unwrap().unwrap();
        assert!(
            conditions[at].hold_for(&head, FieldTrust::default()),
            "{start} {:?}",
            field.escape_ascii().to_string()
        );
    }
}

/// Returns another spelling of a path, which servers interpret like the path itself.
fn respelled(path: &str, spellings: &[u8]) -> String {
    let mut out = String::new();
    for (byte, spelling) in path.bytes().zip(spellings.iter().cycle()) {
        match (byte, spelling % 4) {
            (b'/', 0) => out += "/",
            (b'/', 1) if !out.is_empty() => out += "%2f",
            (b'/', 2) => out += "///",
            (b'/', _) => out += "/%5C",
            (byte, 0) => out += &format!("%{byte:02x}"),
            (byte, _) => out.push(byte as char),
        }
    }
    out
}

proptest! {
    #[test]
    fn spelling_of_a_path_never_leads_past_its_route(
        path in "(/[a-z0-9~_@:+!$&'()*,;=-]{1,6}){1,4}/?",
        spellings in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let routes = [("", "/login"), ("", "/a"), ("", "/a/b"), ("", "/"), ("", &*path)];
        let (all, first) = (table_in(PathView::Normalized, &routes[..4]), respelled(&path, &spellings));
        let find = |path: &str| find(&all, "a", path);
        prop_assert_eq!(find(&first), find(&path), "{}", first);
        // A route whose prefix is the path itself: at most a slash follows the prefix.
        let prefix = PathPrefix::parse(&path).unwrap().in_view(PathView::Normalized);
        let mut own = RouteTable::new(PathView::Normalized);
        own.add(&HostPattern::Any, &prefix.clone().into(), RouteConditions::default(), ());
        prop_assert!(own.find_at(b"a", first.as_bytes(), |_| true).is_some());
        prop_assert!(PathView::Normalized.of(prefix.rest_of(first.as_bytes())).len() <= 1);
    }
}
