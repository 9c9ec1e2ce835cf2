//! Matches and their precedence.

use convey_http_core::{
    ExactPath, FieldTrust, HostPattern, NamedCondition, PathPattern, PathPrefix, PathView, RequestHead,
    RouteConditions, RouteTable, ValueCondition,
};

/// Match of a route, in words: `/v2` (prefix), `=/v2` (exact), `GET`, `version:two` (header),
/// `animal=whale` (parameter). A rule with several matches is several routes with one target.
type Match = (&'static str, &'static str, &'static str);

/// Start line and headers of a request for a host, and the target that takes it; `404`: none.
type Case = (&'static str, &'static str, &'static str);

/// Host of cases that do not depend on it.
const HOST: &str = "a.example";

fn table(matches: &[Match]) -> RouteTable<&'static str> {
    let mut table = RouteTable::new(PathView::default());
    for (host, words, target) in matches {
        let host = if host.is_empty() { HostPattern::Any } else { HostPattern::parse(host).unwrap() };
        let (mut path, mut conditions) = (PathPattern::any(), RouteConditions::default());
        let named = |(name, value): (&str, &str)| NamedCondition {
            name: name.into(),
            value: ValueCondition::Is(value.into()),
        };
        for word in words.split_whitespace() {
            match (word.as_bytes()[0], word.split_once(':'), word.split_once('=')) {
                (b'/', ..) => path = PathPattern::Prefix(PathPrefix::parse(word).unwrap()),
                (b'=', ..) => path = PathPattern::Exact(ExactPath::parse(&word[1..]).unwrap()),
                (_, Some(header), _) => conditions.headers.push(named(header)),
                (_, _, Some(parameter)) => conditions.query.push(named(parameter)),
                _ => conditions.methods.push(word.into()),
            }
        }
        table.add(&host, &path, conditions, *target);
    }
    table
}

fn check(matches: &[Match], cases: &[Case]) {
    let table = table(matches);
    for (host, request, expected) in cases {
        let mut words = request.split_whitespace();
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let fields: String = words.map(|field| format!("{field}\r\n")).collect();
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        let head = RequestHead::of_text(&head).unwrap();
        let found = table.find(&head, FieldTrust::default(), |_| true);
        assert_eq!(found.unwrap_or(&"404"), expected, "{request} at {host}");
    }
}

#[test]
fn more_specific_path_or_header_wins_over_the_route_of_all() {
    let matches = [("", "/", "v1"), ("", "version:one", "v1"), ("", "/v2", "v2"), ("", "version:two", "v2")];
    let cases = [
        (HOST, "GET /", "v1"),
        (HOST, "GET /example", "v1"),
        (HOST, "GET / Version:one", "v1"),
        (HOST, "GET /v2", "v2"),
        (HOST, "GET /v2/example", "v2"),
        (HOST, "GET / Version:two", "v2"),
        (HOST, "GET /v2/", "v2"),
        (HOST, "GET /v2example", "v1"),
        (HOST, "GET /foo/v2/example", "v1"),
    ];
    check(&matches, &cases);
}

#[test]
fn routes_of_one_host_are_matched_together() {
    let matches = [
        ("example.com", "/", "v1"),
        ("example.net", "/", "v1"),
        ("example.com", "version:one", "v1"),
        ("example.net", "version:one", "v1"),
        ("example.com", "/v2", "v2"),
        ("example.com", "version:two", "v2"),
    ];
    let cases = [
        ("example.com", "GET /", "v1"),
        ("example.com", "GET /example", "v1"),
        ("example.net", "GET /example", "v1"),
        ("example.com", "GET /example Version:one", "v1"),
        ("example.com", "GET /v2", "v2"),
        ("example.net", "GET /v2", "v1"),
        ("example.com", "GET /v2/example", "v2"),
        ("example.com", "GET / Version:two", "v2"),
    ];
    check(&matches, &cases);
}

#[test]
fn route_with_more_headers_wins_and_then_the_first() {
    let matches = [
        ("", "version:one", "v1"),
        ("", "version:two", "v2"),
        ("", "version:two color:orange", "v1"),
        ("", "color:blue", "v1"),
        ("", "color:green", "v1"),
        ("", "color:red", "v2"),
        ("", "color:yellow", "v2"),
    ];
    let cases = [
        (HOST, "GET / Version:one", "v1"),
        (HOST, "GET / Version:two", "v2"),
        (HOST, "GET / Version:two Color:orange", "v1"),
        (HOST, "GET / Version:two Color:blue", "v2"),
        (HOST, "GET / Color:orange", "404"),
        (HOST, "GET / Some-Other-Header:one", "404"),
        (HOST, "GET / Color:blue", "v1"),
        (HOST, "GET / Color:green", "v1"),
        (HOST, "GET / Color:red", "v2"),
        (HOST, "GET / Color:yellow", "v2"),
        (HOST, "GET / Color:purple", "404"),
    ];
    check(&matches, &cases);
}

#[test]
fn parameters_count_after_path_and_headers() {
    let matches = [
        ("", "animal=whale", "v1"),
        ("", "animal=dolphin", "v2"),
        ("", "animal=dolphin color=blue", "v3"),
        ("", "ANIMAL=Whale", "v3"),
        ("", "/path1 animal=whale", "v1"),
        ("", "version:one animal=whale", "v2"),
        ("", "/path2 version:two animal=whale", "v3"),
        ("", "/path3 animal=shark", "v1"),
        ("", "/path4 version:three animal=kraken", "v1"),
        ("", "/path5", "v1"),
        ("", "animal=hydra", "v2"),
        ("", "version:four", "v3"),
    ];
    let cases = [
        (HOST, "GET /?animal=whale", "v1"),
        (HOST, "GET /?animal=dolphin", "v2"),
        (HOST, "GET /?animal=dolphin&color=blue", "v3"),
        (HOST, "GET /?ANIMAL=Whale", "v3"),
        (HOST, "GET /?animal=whale&otherparam=irrelevant", "v1"),
        (HOST, "GET /?animal=dolphin&color=yellow", "v2"),
        (HOST, "GET /?color=blue", "404"),
        (HOST, "GET /?animal=dog", "404"),
        (HOST, "GET /?animal=whaledolphin", "404"),
        (HOST, "GET /", "404"),
        (HOST, "GET /path1?animal=whale", "v1"),
        (HOST, "GET /?animal=whale version:one", "v2"),
        (HOST, "GET /path2?animal=whale version:two", "v3"),
        (HOST, "GET /path3?animal=shark", "v1"),
        (HOST, "GET /path4?animal=kraken version:three", "v1"),
        (HOST, "GET /?animal=shark", "404"),
        (HOST, "GET /path4?animal=kraken", "404"),
        (HOST, "GET /path5?animal=hydra", "v1"),
        (HOST, "GET /?animal=hydra version:four", "v3"),
    ];
    check(&matches, &cases);
}

#[test]
fn method_counts_after_path_and_before_headers() {
    let matches = [
        ("", "POST", "v1"),
        ("", "GET", "v2"),
        ("", "/path1 GET", "v1"),
        ("", "version:one PUT", "v2"),
        ("", "/path2 version:two POST", "v3"),
        ("", "/path3 PATCH", "v1"),
        ("", "/path4 version:three DELETE", "v1"),
        ("", "/path5", "v1"),
        ("", "PATCH", "v2"),
        ("", "version:four", "v3"),
    ];
    let cases = [
        (HOST, "POST /", "v1"),
        (HOST, "GET /", "v2"),
        (HOST, "HEAD /", "404"),
        (HOST, "GET /path1", "v1"),
        (HOST, "PUT / version:one", "v2"),
        (HOST, "POST /path2 version:two", "v3"),
        (HOST, "PATCH /path3", "v1"),
        (HOST, "DELETE /path4 version:three", "v1"),
        (HOST, "PUT /", "404"),
        (HOST, "DELETE /path4", "404"),
        (HOST, "PATCH /path5", "v1"),
        (HOST, "PATCH / version:four", "v2"),
    ];
    check(&matches, &cases);
}

#[test]
fn exact_path_wins_before_the_longest_prefix() {
    let matches = [
        ("", "=/match", "v1"),
        ("", "=/match/exact", "v2"),
        ("", "=/match/exact/one", "v3"),
        ("", "/match/", "v3"),
        ("", "/match/prefix/", "v1"),
        ("", "/match/prefix/one", "v2"),
    ];
    let cases = [
        (HOST, "GET /match/exact/one", "v3"),
        (HOST, "GET /match/exact", "v2"),
        (HOST, "GET /match", "v1"),
        (HOST, "GET /match/prefix/one/any", "v2"),
        (HOST, "GET /match/prefix/any", "v1"),
        (HOST, "GET /match/any", "v3"),
    ];
    check(&matches, &cases);
}

#[test]
fn exact_path_takes_no_other_spelling() {
    let matches = [("", "=/one", "v1"), ("", "=/two", "v2")];
    let cases = [
        (HOST, "GET /one", "v1"),
        (HOST, "GET /two", "v2"),
        (HOST, "GET /", "404"),
        (HOST, "GET /one/example", "404"),
        (HOST, "GET /two/", "404"),
        (HOST, "GET /Two", "404"),
    ];
    check(&matches, &cases);
}

/// Hosts of listeners and routes together, as an implementation gives them to a router: the closer
/// one of each pair that intersects.
#[test]
fn hosts_that_listener_and_route_share_take_the_request() {
    let matches = [
        ("very.specific.com", "/s1", "v1"),
        ("foo.wildcard.io", "/s2", "v2"),
        ("bar.wildcard.io", "/s2", "v2"),
        ("foo.bar.wildcard.io", "/s2", "v2"),
        ("very.specific.com", "/s3", "v3"),
        ("*.anotherwildcard.io", "/s4", "v1"),
    ];
    let cases = [
        ("very.specific.com", "GET /s1", "v1"),
        ("non.matching.com", "GET /s1", "404"),
        ("foo.nonmatchingwildcard.io", "GET /s1", "404"),
        ("very.specific.com", "GET /non-matching-prefix", "404"),
        ("bar.wildcard.io", "GET /s2", "v2"),
        ("foo.bar.wildcard.io", "GET /s2", "v2"),
        ("foo.wildcard.io", "GET /s2", "v2"),
        ("wildcard.io", "GET /s2", "404"),
        ("foo.wildcard.io", "GET /non-matching-prefix", "404"),
        ("very.specific.com", "GET /s3", "v3"),
        ("foo.specific.com", "GET /s3", "404"),
        ("foo.anotherwildcard.io", "GET /s4", "v1"),
        ("bar.anotherwildcard.io", "GET /s4", "v1"),
        ("foo.bar.anotherwildcard.io", "GET /s4", "v1"),
        ("anotherwildcard.io", "GET /s4", "404"),
        ("foo.wildcard.io", "GET /s4", "404"),
        ("specific.but.wrong.com", "GET /s5", "404"),
        ("wildcard.io", "GET /s5", "404"),
    ];
    check(&matches, &cases);
}

#[test]
fn exact_host_wins_before_the_glob_that_includes_it() {
    let matches = [
        ("bar.com", "/", "v1"),
        ("foo.bar.com", "/", "v2"),
        ("*.bar.com", "/", "v3"),
        ("*.foo.com", "/", "v3"),
    ];
    let cases = [
        ("bar.com", "GET /", "v1"),
        ("foo.bar.com", "GET /", "v2"),
        ("baz.bar.com", "GET /", "v3"),
        ("boo.bar.com", "GET /", "v3"),
        ("multiple.prefixes.bar.com", "GET /", "v3"),
        ("multiple.prefixes.foo.com", "GET /", "v3"),
        ("foo.com", "GET /", "404"),
        ("no.matching.host", "GET /", "404"),
    ];
    check(&matches, &cases);
}
