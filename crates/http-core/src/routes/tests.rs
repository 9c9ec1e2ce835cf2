use proptest::prelude::*;

use super::*;

fn table(routes: &[(&str, &str)]) -> RouteTable<usize> {
    table_in(PathView::AsSent, routes)
}

fn table_in(view: PathView, routes: &[(&str, &str)]) -> RouteTable<usize> {
    let mut table = RouteTable::new(view);
    for (to, (host, path)) in routes.iter().enumerate() {
        let host = if host.is_empty() { HostPattern::Any } else { HostPattern::parse(host).unwrap() };
        table.add(&host, PathPrefix::parse(path).unwrap(), to).unwrap();
    }
    table
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
        let found = table.find(host.as_bytes(), path.as_bytes()).map(|found| *found.to);
        assert_eq!(found, expected, "{host} {path}");
    }
}

#[test]
fn a_route_that_nobody_could_take_is_refused() {
    let mut table = table(&[("A.example", "/v1/"), ("", "/")]);
    let host = HostPattern::parse("a.EXAMPLE.").unwrap();
    assert_eq!(table.add(&host, PathPrefix::parse("/%761").unwrap(), 7), Err(&0));
    assert_eq!(table.add(&HostPattern::Any, PathPrefix::parse("/").unwrap(), 7), Err(&1));
    assert_eq!(table.add(&host, PathPrefix::parse("/v2").unwrap(), 7), Ok(()));
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
        path in "(/[a-z0-9~_-]{1,6}){1,4}/?",
        spellings in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let routes = [("", "/login"), ("", "/a"), ("", "/a/b"), ("", "/"), ("", &*path)];
        let (all, first) = (table_in(PathView::Normalized, &routes[..4]), respelled(&path, &spellings));
        let find = |path: &str| all.find(b"a", path.as_bytes()).map(|found| *found.to);
        prop_assert_eq!(find(&first), find(&path), "{}", first);
        // A route whose prefix is the path itself: at most a slash follows the prefix.
        let mut own = RouteTable::new(PathView::Normalized);
        own.add(&HostPattern::Any, PathPrefix::parse(&path).unwrap(), ()).unwrap();
        let found = own.find(b"a", first.as_bytes());
        prop_assert!(found.is_some_and(|found| PathView::Normalized.of(found.prefix.rest_of(first.as_bytes())).len() <= 1));
    }
}
