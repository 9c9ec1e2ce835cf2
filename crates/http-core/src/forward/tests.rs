use bytes::BytesMut;

use super::*;
use crate::head::RequestHead;
use crate::{
    ExactPath, FieldTrust, HeadLimits, HeadReader, HttpMethod, PathPattern, PathPrefix, PathView,
    RequestFacts, Template, UrlScheme, Variable,
};

fn request(text: &str) -> RequestHead {
    HeadReader::default().request(&mut BytesMut::from(text), &HeadLimits::default()).unwrap().unwrap()
}

fn client(is_trusted: bool) -> ClientIdentity<'static> {
    ClientIdentity { ip: [192, 0, 2, 9].into(), scheme: "http", subject: None, is_trusted }
}

fn changes(fields: &FieldRules) -> RequestChanges<'_> {
    RequestChanges {
        client: client(false),
        forwarded: ForwardedFields::default(),
        server: "10.0.0.2:8080".parse().unwrap(),
        host: None,
        path: None,
        fields,
    }
}

fn written(head: &RequestHead, changes: &RequestChanges<'_>) -> String {
    let mut out = Vec::new();
    OutgoingRequest::new(head, changes).write(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_server_gets_the_request_and_who_the_client_is() {
    let head = request(
        "GET http://shop.example/a?b HTTP/1.1\r\nAccept: */*\r\nHost: shop.example\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
         Keep-Alive: timeout=5\r\nX-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\nProxy: evil\r\nTE: gzip\r\n\r\n",
    );
    assert_eq!(
        written(&head, &changes(&FieldRules::default())),
        "GET /a?b HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\nX-Forwarded-For: 192.0.2.9\r\n\
         X-Forwarded-Proto: http\r\nX-Forwarded-Host: shop.example\r\n\r\n"
    );
}

#[test]
fn a_trusted_proxy_is_believed_and_named() {
    let head = request(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7\r\nX-Forwarded-For: 10.0.0.1\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example\r\nForwarded: for=203.0.113.7\r\n\r\n",
    );
    let rules = FieldRules::default();
    let forwarded = ForwardedFields { x_forwarded: true, forwarded: true, subject: true };
    let changes = RequestChanges { client: client(true), forwarded, ..changes(&rules) };
    assert_eq!(
        written(&head, &changes),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7, 10.0.0.1, 192.0.2.9\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example\r\n\
         Forwarded: for=203.0.113.7, for=192.0.2.9;host=\"a\";proto=http\r\n\r\n"
    );
}

#[test]
fn an_operator_sets_adds_and_removes_fields() {
    let mut rules = FieldRules::default();
    rules.set("X-Env", "live").unwrap();
    rules.add("X-Tag", "b").unwrap();
    rules.remove("Cookie").unwrap();
    let head = request("GET / HTTP/1.0\r\nx-env: mine\r\nX-Tag: a\r\ncookie: c=1\r\n\r\n");
    let none = ForwardedFields { x_forwarded: false, forwarded: false, subject: false };
    let changes = RequestChanges { forwarded: none, host: Some(b"b"), ..changes(&rules) };
    assert_eq!(
        written(&head, &changes),
        "GET / HTTP/1.1\r\nHost: b\r\nX-Tag: a\r\nX-Env: live\r\nX-Tag: b\r\n\r\n"
    );
    for (name, value, fault) in [
        ("X Y", "", FieldFault::Name),
        ("", "", FieldFault::Name),
        ("X:", "", FieldFault::Name),
        ("X", "a\r\nY: b", FieldFault::Value),
        ("X", " a", FieldFault::Value),
        ("content-length", "3", FieldFault::Reserved),
        ("Transfer-Encoding", "chunked", FieldFault::Reserved),
        ("HOST", "a", FieldFault::Reserved),
    ] {
        assert_eq!(rules.set(name, value), Err(fault), "{name:?}");
    }
}

#[test]
fn a_prefix_of_the_path_is_replaced() {
    let rules = FieldRules::default();
    let cases = [
        ("/v1", "", "/v1/a?b=/v1", "/a?b=/v1"),
        ("/v1", "", "/v1", "/"),
        ("/v1", "", "/v1?b", "/?b"),
        ("/v1", "/api/v2", "/v1/a", "/api/v2/a"),
        ("/v1", "/api/", "/v1/a", "/api/a"),
        ("/v1", "/api", "/v1", "/api"),
        ("/v1", "/api", "/v1?b", "/api?b"),
        ("/v1", "/api", "/v1/", "/api/"),
        ("/v1", "/api/", "/v1", "/api/"),
        ("/v1", "/", "/v1?b", "/?b"),
        ("/", "/api", "/", "/api/"),
        ("/", "/api", "/a", "/api/a"),
        ("/v1", "", "/%761/%2F", "/%2F"),
    ];
    let in_view =
        |view| move |(prefix, replacement, path, expected)| (view, prefix, replacement, path, expected);
    let of_normalized = [
        ("/v1", "/api", "//v1//a", "/api//a"),
        ("/v1", "/api", "/v1%2Fa/b", "/api%2Fa/b"),
        ("/v1", "", "/v1%2fa", "/%2fa"),
        ("/a/b", "/api", "/a%2f%2Fb/c", "/api/c"),
    ];
    let cases =
        [PathView::AsSent, PathView::Normalized].into_iter().flat_map(|view| cases.map(in_view(view)));
    for (view, prefix, replacement, path, expected) in
        cases.chain(of_normalized.map(in_view(PathView::Normalized)))
    {
        let prefix = PathPattern::Prefix(PathPrefix::parse(prefix).unwrap());
        let rewrite = PathRewrite::new(&prefix, view, replacement).unwrap();
        let head = request(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let changes = RequestChanges { path: Some(&rewrite), ..changes(&rules) };
        let line = format!("GET {expected} HTTP/1.1\r\n");
        assert!(written(&head, &changes).starts_with(&line), "{path}: {}", written(&head, &changes));
    }
}

#[test]
fn fields_with_variables_have_the_values_of_the_request() {
    let template = |text: &str| Template::parse(text).unwrap();
    let mut rules = FieldRules::of_requests();
    rules.set_template("X-Real-IP", &template("{client_ip}")).unwrap();
    rules.set_template("X-Trace", &template("{trace_id}")).unwrap();
    rules.add_template("X-Via", &template("{scheme} {header:Cookie} {braces or not}")).unwrap();
    rules.add_template("X-Plain", &template("a")).unwrap();
    assert!(rules.depend_on_request() && rules.uses(&Variable::ClientIp) && !rules.uses(&Variable::Host));
    assert_eq!(rules.set_template("X", &template(" {host}")), Err(FieldFault::Value));
    assert_eq!(rules.set_template("Host", &template("{host}")), Err(FieldFault::Reserved));
    let head = request("GET / HTTP/1.1\r\nHost: a\r\nx_real_ip: 1\r\nX-Trace: 2\r\nCookie: b=\tc\r\n\r\n");
    let facts =
        RequestFacts::new(&head, FieldTrust::default(), UrlScheme::Https, "[2001:db8::1]:9".parse().unwrap());
    let none = ForwardedFields { x_forwarded: false, forwarded: false, subject: false };
    let expanded = rules.expanded(&facts);
    assert_eq!(
        written(&head, &RequestChanges { forwarded: none, ..changes(&expanded) }),
        "GET / HTTP/1.1\r\nHost: a\r\nCookie: b=\tc\r\nX-Real-IP: 2001:db8::1\r\nX-Via: https b=c {braces or not}\r\nX-Plain: a\r\n\r\n"
    );
}

#[test]
fn matches_of_a_path_are_replaced_with_their_groups() {
    let regex = |text: &str| PathPattern::regex(text).unwrap();
    let exact = PathPattern::Exact(ExactPath::parse("/a/").unwrap());
    let cases = [
        (exact.clone(), "/b", "/a/?c", "/b?c"),
        (exact, "/$1", "/%61/", "/$1"),
        (regex(r"^/v(\d+)/"), "/api/$1/", "/v12/a%20b?c=/v3/", "/api/12/a%20b?c=/v3/"),
        (regex(r"^/v(\d+)/"), "/api$0", "/v12/a", "/api/v12/a"),
        (regex(r"^/v(\d+)/"), "/$10/", "/v12/a", "/120/a"),
        (regex(r"^/(\w+)/(\w+)$"), "/$2/$1.php", "/%61/b", "/b/%61.php"),
        (regex(r"^/(\w+)/(\w+)$"), "/x/$2/$1.php", "/%61//b", "/x//b/%61.php"),
        (regex("^/files/(.*)$"), "/d/$1", "/files/%2F/name", "/d/%2F/name"),
        (regex("^/files/(.*)$"), "/d/$1", "/files/https:%2F%2Fx?y", "/d/https:%2F%2Fx?y"),
        (regex("^/files/(.*)$"), "/d/$1", "//files/a%5cb%40%c3", "/d/a%5cb%40%c3"),
        (regex("^/files/(.*)$"), "/d/$1", "/files//", "/d//"),
        (regex("^/(a)/(b)?"), "/$2$1", "/%61//c%2f", "/%61/c%2f"),
        (regex("/old"), "/new", "/%7b//old%2F%2Fa", "/%7b/new%2F%2Fa"),
        (regex("^/(.)"), "/$1x", "/%e9", "/%e9"),
        (regex("[.]html$"), "", "/a.html?x", "/a?x"),
        (regex("a+"), "$b$", "/xaay", "/x$b$y"),
        (regex("^/a"), "b", "/a/c", "/a/c"),
        (regex("^/(.)x(.)y"), "/$1$2/", "/.x.ya", "/.x.ya"),
        (regex("(a)|(b)"), "<$1$2>", "/b", "/<b>"),
        (PathPattern::any(), "/api", "*", "*"),
    ];
    for (from, to, target, expected) in cases {
        let rewrite = PathRewrite::new(&from, PathView::Normalized, to).unwrap();
        let found = rewrite.apply(target.as_bytes());
        assert_eq!(String::from_utf8_lossy(&found), expected, "{from} {target}");
    }
    let told = PathRewrite::new(&regex("^/(a)"), PathView::Normalized, "/$2").unwrap_err();
    assert_eq!(told.to_string(), "$2 is a group that path_regex does not have; it has 1");
    let ten = format!("^/{}", "(a)".repeat(10));
    let told = PathRewrite::new(&regex(&ten), PathView::Normalized, "/$10").unwrap_err();
    assert_eq!(
        told.to_string(),
        "$10 is $1 and the text 0, although path_regex has 10 groups or more; write the others as (?:...)"
    );
    assert!(PathRewrite::new(&regex(&ten), PathView::Normalized, "/$11$0").is_ok());
}

#[test]
fn bodies_and_upgrades_are_announced_anew() {
    let rules = FieldRules::default();
    let chunked = request("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n");
    assert!(written(&chunked, &changes(&rules)).contains("\r\nTransfer-Encoding: chunked\r\n"));
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let text = written(&request(upgrade), &changes(&rules));
    assert!(
        text.contains("\r\nConnection: upgrade\r\nUpgrade: websocket\r\n")
            && text.contains("Sec-WebSocket-Version")
    );
    // convey could not see the requests to a server that changed to HTTP/2.
    let h2c = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n";
    let text = written(&request(h2c), &changes(&rules)).to_ascii_lowercase();
    assert!(!text.contains("upgrade") && !text.contains("http2-settings"), "{text}");
}

#[test]
fn a_client_gets_the_response_without_what_was_for_us() {
    let response = |text: &str| {
        let mut received = BytesMut::from(text);
        let head = HeadReader::default().response(&mut received, HttpMethod::Get, &HeadLimits::default());
        head.unwrap().unwrap()
    };
    let written = |text: &str, connection| {
        let mut rules = FieldRules::default();
        rules.set("Server", "convey").unwrap();
        let mut out = Vec::new();
        OutgoingResponse::new(&response(text), &rules).write(connection, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        written(
            "HTTP/1.0 200 Fine\r\nServer: x\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n",
            ClientConnection::Stays
        ),
        "HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nServer: convey\r\n\r\n"
    );
    assert_eq!(
        written("HTTP/1.1 204 Nothing\r\nContent-Length: 5\r\n\r\n", ClientConnection::Stays),
        "HTTP/1.1 204 Nothing\r\nServer: convey\r\n\r\n"
    );
    assert_eq!(
        written("HTTP/1.1 500 \r\nTransfer-Encoding: chunked\r\n\r\n", ClientConnection::Closes),
        "HTTP/1.1 500 \r\nServer: convey\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        written(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            ClientConnection::Changes
        ),
        "HTTP/1.1 101 Switching Protocols\r\nServer: convey\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
}

#[test]
fn server_gets_http_1_1_and_a_host_from_every_client() {
    let rules = FieldRules::default();
    let of = |text: &str| written(&request(text), &changes(&rules));
    for (asked, host) in [
        ("GET / HTTP/1.0\r\n\r\n", "10.0.0.2:8080"),
        ("GET / HTTP/1.0\r\nHost: a:81\r\n\r\n", "a:81"),
        ("GET http://b/ HTTP/1.0\r\n\r\n", "b"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", "10.0.0.2:8080"),
    ] {
        assert!(of(asked).starts_with(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n")), "{}", of(asked));
    }
    assert!(!of("GET / HTTP/1.0\r\n\r\n").contains("X-Forwarded-Host"), "the client has named no host");
}

#[test]
fn rules_of_a_route_go_behind_those_of_its_frontend() {
    let (mut frontend, mut route) = (FieldRules::default(), FieldRules::default());
    frontend.set("X-A", "1").unwrap();
    frontend.add("X-B", "1").unwrap();
    frontend.remove("X-C").unwrap();
    route.set("x-a", "2").unwrap();
    route.add("X-C", "2").unwrap();
    route.remove("X-B").unwrap();
    assert_eq!(frontend.to_string(), "set X-A, add X-B, remove x-c");
    let both = frontend.then(&route);
    let head = request("GET / HTTP/1.1\r\nHost: a\r\nX-A: 0\r\nX-B: 0\r\nX-C: 0\r\n\r\n");
    let text = written(&head, &changes(&both));
    assert!(text.ends_with("\r\nx-a: 2\r\nX-C: 2\r\n\r\n") && !text.contains(": 0\r\n"), "{text}");
    assert!(!text.contains("X-B"), "{text}");
    assert_eq!(frontend.then(&FieldRules::default()), frontend);
    assert!(FieldRules::default().is_empty() && !both.is_empty());
}

#[test]
fn response_rules_depend_on_status_and_path() {
    let set = |name: &str, value: &str| {
        let mut rules = FieldRules::default();
        rules.set(name, value).unwrap();
        rules
    };
    let when = |statuses: &[std::ops::RangeInclusive<u16>], paths: &[&str]| ResponseCondition {
        statuses: statuses.to_vec(),
        paths: paths.iter().map(|glob| crate::PathGlob::parse(glob).unwrap()).collect(),
    };
    let mut frontend = set("X-A", "all");
    frontend.add_conditional(when(&[404..=404, 500..=599], &[]), set("X-A", "error"));
    frontend
        .add_conditional(when(&[200..=399], &["*.css", "/static/**"]), set("Cache-Control", "max-age=60"));
    let mut route = set("x-a", "route");
    let mut secret = FieldRules::default();
    secret.remove("X-B").unwrap();
    route.add_conditional(when(&[], &["/static/*"]), secret);
    let both = frontend.then(&route);
    let shown = |rules: &FieldRules, path: &str, status| {
        let head = request(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let facts =
            RequestFacts::new(&head, FieldTrust::default(), UrlScheme::Http, "192.0.2.1:9".parse().unwrap());
        rules.expanded(&facts).of_status(status).to_string()
    };
    let value = |rules: &FieldRules, status| {
        let resolved = rules.of_status(status);
        let found = resolved.added().map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        found.collect::<Vec<_>>().join(", ")
    };
    assert!(both.depend_on_request() && !route.is_empty());
    assert_eq!([200, 404, 503].map(|status| value(&frontend, status)), ["all", "error", "error"]);
    assert_eq!([200, 404].map(|status| value(&both, status)), ["route", "route"], "the route is later");
    assert_eq!(shown(&both, "/a/b.css?c", 200), "set Cache-Control, set x-a");
    assert_eq!(shown(&both, "/a/b.css", 404), "set x-a");
    assert_eq!(shown(&both, "/b.css/c", 200), "set x-a");
    assert_eq!(shown(&both, "/static/a", 304), "set Cache-Control, set x-a, remove x-b");
    assert_eq!(shown(&both, "//%73tatic%2fa", 304), "set Cache-Control, set x-a, remove x-b");
    assert_eq!(shown(&both, "/static/a/b", 200), "set Cache-Control, set x-a");
    assert_eq!(
        frontend.to_string(),
        "set X-A, set X-A for status 404, 500-599, set Cache-Control for status 200-399 and path *.css, /static/**"
    );
    // The path of a malformed request is unknown.
    assert_eq!(frontend.of_status(200).to_string(), "set X-A");
}

#[test]
fn affinity_cookie_is_not_in_a_response_for_shared_caches() {
    for (cache_control, has_cookie) in [
        ("", true),
        ("Cache-Control: max-age=60\r\n", true),
        ("Cache-Control: public, max-age=60\r\n", false),
        ("Cache-Control: max-age=0\r\ncache-control: S-MaxAge=60\r\n", false),
        ("Cache-Control: private, s-maxage=60\r\n", true),
        ("Cache-Control: public, private=\"Set-Cookie\"\r\n", false),
        ("Cache-Control: public, no-store\r\n", true),
    ] {
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{cache_control}\r\n");
        let mut bytes = BytesMut::from(&*text);
        let limits = crate::HeadLimits::default();
        let head = crate::HeadReader::default().response(&mut bytes, crate::HttpMethod::Get, &limits);
        let head = head.unwrap().unwrap();
        let mut rules = FieldRules::default();
        rules.add("X-A", "1").unwrap();
        rules.add_affinity_cookie("server=a; Path=/").unwrap();
        let response = OutgoingResponse::new(&head, &rules);
        let fields: Vec<_> = response.fields().map(|(name, _)| name.to_vec()).collect();
        assert_eq!(fields.contains(&b"Set-Cookie".to_vec()), has_cookie, "{cache_control}");
        let mut written = Vec::new();
        response.write(ClientConnection::Stays, &mut written);
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written.contains("Set-Cookie: server=a; Path=/\r\n"), has_cookie, "{written}");
        assert!(written.contains("X-A: 1\r\n"), "{written}");
    }
}

#[test]
fn underscore_for_a_hyphen_is_no_way_past_a_rule_for_requests() {
    let head = request(
        "GET / HTTP/1.1\r\nHost: a\r\nX_Auth_User: 1\r\nx_auth-USER: 2\r\nX-Group: 3\r\nX_Other: 4\r\nX_Added: 5\r\n\r\n",
    );
    let kept = |mut rules: FieldRules| {
        rules.set("X-Auth-User", "a").unwrap();
        rules.remove("X_Group").unwrap();
        rules.add("X-Added", "b").unwrap();
        let text = written(&head, &changes(&rules.then(&FieldRules::default())));
        [1, 2, 3, 4, 5].into_iter().filter(|n| text.contains(&format!(": {n}\r\n"))).collect::<Vec<_>>()
    };
    assert_eq!(kept(FieldRules::of_requests()), [4, 5]);
    assert_eq!(kept(FieldRules::default()), [1, 2, 3, 4, 5], "keep_underscores");
    // Rules that remove spellings with underscores, after rules that keep them.
    let mut later = FieldRules::of_requests();
    later.remove("x-auth-user").unwrap();
    let both = FieldRules::default().then(&later);
    assert!(!both.keeps(b"X_AUTH_USER") && both.keeps(b"X_Auth"));
}

#[test]
fn content_length_loses_leading_zeros_and_empty_expect_is_removed() {
    let rules = FieldRules::default();
    let of = |length: &str| {
        let head =
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\nExpect:\r\nX: 007\r\n\r\n");
        written(&request(&head), &changes(&rules))
    };
    for (length, expected) in [("0002", "2"), ("20", "20"), ("0", "0"), ("000", "0")] {
        let text = of(length);
        assert!(text.contains(&format!("\r\nContent-Length: {expected}\r\nX: 007\r\n")), "{text}");
    }
}

#[test]
fn response_426_names_the_protocol_that_the_client_has_to_change_to() {
    let mut received = BytesMut::from(
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 01\r\n\r\n",
    );
    let head = HeadReader::default().response(&mut received, HttpMethod::Get, &HeadLimits::default());
    let head = head.unwrap().unwrap();
    for (connection, options) in
        [(ClientConnection::Stays, "upgrade"), (ClientConnection::Closes, "close, upgrade")]
    {
        let mut out = Vec::new();
        OutgoingResponse::new(&head, &FieldRules::default()).write(connection, &mut out);
        let expected = format!(
            "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 1\r\nConnection: {options}\r\nUpgrade: h2c\r\n\r\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
