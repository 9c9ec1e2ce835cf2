//! Backends of mode http.

use super::*;

#[test]
fn health_check_speaks_and_judges_as_requests_of_its_frontends() {
    let of = |mode: &str, other: &str| {
        let other =
            other.replace("FRONTEND", "[frontends.other]\nlisten_addr = '127.0.0.1:81'\nbackend = 'site'\n");
        format!(
            "{}[frontends.web.http]\nmax_response_head_fields = 10\n{other}[backends.site]\nprotocol = 'h2'\n\
             health_check.kind = 'http'\nservers.a.addr = '10.0.0.9:80'\n",
            FRONTEND.replace("10.0.0.1:80", "127.0.0.1:80").replace("mode = 'http'", mode)
        )
    };
    let requests = |text: &str| config(text).backends[0].health_check.requests;
    let expected = |bytes, fields| {
        Some(CheckedRequests { version: HttpVersion::H2, response_head: HeadLimits { bytes, fields } })
    };
    assert_eq!(requests(&of("mode = 'http'", "")), expected(65_535, 10));
    let other = "FRONTENDmode = 'http'\n[frontends.other.http]\nmax_response_head_size = 2000\nmax_response_head_fields = 20\n";
    assert_eq!(requests(&of("mode = 'http'", other)), expected(65_535, 20));
    let mixed = of("mode = 'http'", "FRONTENDmode = 'proxy'\n").replace("protocol = 'h2'\n", "");
    assert_eq!(requests(&mixed), None);
}

#[test]
fn backend_sets_protocol_and_request_hash_in_mode_http() {
    let of = |lines: &str| format!("{FRONTEND}[backends.site]\n{lines}\nservers.a.addr = '10.0.0.9:80'\n");
    let backend = &config(&of("protocol = 'h2'\nalgorithm = 'ring'\nhash = 'cookie:sid'")).backends[0];
    assert_eq!((backend.protocol, &*backend.hash_name()), (HttpVersion::H2, "cookie:sid"));
    let proxied = of("protocol = 'auto'\nalgorithm = 'ring'\nhash = 'header:X-User'");
    let proxied = proxied.replace("mode = 'http'\n", "").replace("10.0.0.1:80", "127.0.0.1:80");
    assert_eq!(
        diagnostics(&proxied, Mode::Proxy).unwrap_err(),
        [
            "config.toml:5:12: backends.site.protocol: needs mode = \"http\"; frontend \"web\" is in proxy mode",
            "config.toml:7:8: backends.site.hash: found \"header:X-User\", which needs mode = \"http\"; frontend \"web\" is in \
             proxy mode; allowed: source, tuple, quic_cid",
        ]
    );
    let diagnostics_of =
        |lines: &str| diagnostics(&of(lines).replace("10.0.0.1:80", "127.0.0.1:80"), Mode::Http).unwrap_err();
    assert_eq!(
        diagnostics_of("protocol = 'h2'\nsend_proxy = 'v1'"),
        [
            "config.toml:6:12: backends.site.protocol: \"h2\" shares connections among clients, but the PROXY header \
             of send_proxy (line 7) names only one client; keep one of them",
        ]
    );
    assert_eq!(
        errors(&of("hash = 'cookie:'")),
        [
            "config.toml:6:8: backends.site.hash: found \"cookie:\"; allowed: source, tuple, quic_cid, header:NAME, cookie:NAME"
        ]
    );
}

#[test]
fn grpc_check_has_a_service_an_authority_and_headers() {
    let of = |lines: &str| {
        let check = format!("[backends.site]\nprotocol = 'h2'\nhealth_check = {{ kind = 'grpc'{lines} }}\n");
        config(&format!("{FRONTEND}{check}servers.a.addr = '10.0.0.9:80'\n"))
    };
    let (plain, full) =
        (of(""), of(", service = 'shop.Cart', host = 'app.internal', headers = { X-Key = 's3cret' }"));
    assert_eq!(plain.backends[0].health_check.kind, ProbeKind::Grpc(GrpcCheck::default()));
    let expected = GrpcCheck {
        service: "shop.Cart".to_owned(),
        host: Some("app.internal".to_owned()),
        headers: vec![("X-Key".to_owned(), "s3cret".to_owned())],
    };
    assert_eq!(full.backends[0].health_check.kind, ProbeKind::Grpc(expected));
    let text = describe(&plain);
    assert!(text.contains("; grpc check every 2s, timeout 1s, rise 2, fall 3;"), "{text}");
    let text = describe(&full);
    assert!(
        text.contains("; grpc check of service shop.Cart (host app.internal, header X-Key) every 2s"),
        "{text}"
    );
}

#[test]
fn grpc_check_of_servers_with_http1_requests_is_a_warning() {
    let of = |lines: &str| {
        let text = format!("{FRONTEND}[backends.site]\n{lines}\nservers.a.addr = '10.0.0.9:80'\n");
        diagnostics(&text.replace("10.0.0.1:80", "127.0.0.1:80"), Mode::Http).unwrap()
    };
    let expected = "config.toml:6:21: backends.site.health_check.kind: gRPC needs HTTP/2, but requests go to the servers over \
                    HTTP/1.1; set protocol = \"h2\" in the backend";
    assert_eq!(of("health_check.kind = 'grpc'"), [expected]);
    for right in ["protocol = 'h2'", "protocol = 'auto'", "health_check.port = 9000"] {
        assert_eq!(of(&format!("health_check.kind = 'grpc'\n{right}")), [""; 0], "{right}");
    }
}

#[test]
fn backends_of_one_site_use_different_affinity_cookies() {
    let of = |routes: &str, [api, site]: [&str; 2]| {
        let affinity = |keys: &str| format!("affinity = {{ cookie = 'server'{keys} }}");
        let text = format!(
            "[frontends.web]\nlisten_addr = '127.0.0.1:80'\nmode = 'http'\nroutes = [{routes}]\n\
             [backends.api]\n{}\nservers.a.addr = '10.0.0.2:80'\n\
             [backends.site]\n{}\nservers.a.addr = '10.0.0.3:80'\n",
            affinity(api),
            affinity(site)
        );
        warnings(&text)
    };
    let expected = "config.toml:9:12: backends.site.affinity: backend \"api\" also sets the cookie server (line 6): a client \
                    that uses both backends loses its server; use another name";
    let one_host = "{ path = '/api', backend = 'api' }, { host = 'a.example', backend = 'site' }";
    let hosts =
        "{ host = 'a.example', backend = 'api' }, { host = ['b.example', '*.c.example'], backend = 'site' }";
    let below = "{ host = '*.b.example', backend = 'api' }, { host = 'a.b.example', backend = 'site' }";
    let split = "{ path = '/', backends = { api = 1, site = 9 } }";
    for (routes, keys, is_warning) in [
        (one_host, ["", ""], true),
        (split, ["", ""], true),
        (below, ["", ""], true),
        (hosts, ["", ""], false),
        (hosts, [", domain = 'example'", ", domain = 'example'"], true),
        (one_host, [", path = '/api'", ""], false),
        (one_host, ["", ", domain = 'a.example'"], false),
    ] {
        let warnings = of(routes, keys);
        let expected: &[&str] = if is_warning { &[expected] } else { &[] };
        assert_eq!(warnings, expected, "{routes} {keys:?}");
    }
}

#[test]
fn prefix_of_an_affinity_cookie_restricts_its_attributes() {
    let text = |affinity: &str| {
        let backend =
            format!("[backends.site]\naffinity = {{ {affinity} }}\nservers.a.addr = '10.0.0.3:80'\n");
        format!("{FRONTEND}{backend}")
    };
    let of = |affinity: &str| errors(&text(affinity));
    let at = |column: u32, key: &str, message: &str| {
        format!("config.toml:6:{column}: backends.site.affinity.{key}: {message}")
    };
    let host = "browsers refuse a cookie that begins with __Host- and";
    let other = "remove this key, or use __Secure-";
    for right in [
        "cookie = '__Host-s', path = '/', secure = true",
        "cookie = '__Secure-s', path = '/a', domain = 'a.example'",
    ] {
        assert_eq!(warnings(&text(right)), [""; 0], "{right}");
    }
    assert_eq!(
        of("cookie = '__Host-s', path = '/a', domain = 'a.example', secure = false"),
        [
            at(42, "path", &format!("{host} has a path other than /; {other}")),
            at(57, "domain", &format!("{host} has a domain; {other}")),
            at(79, "secure", &format!("{host} is not secure; remove this key")),
        ]
    );
    assert_eq!(
        of("cookie = '__Secure-s', secure = false"),
        [at(
            46,
            "secure",
            "browsers refuse a cookie that begins with __Secure- and is not secure; remove this key"
        )]
    );
    let none = "browsers refuse a cookie with same_site = \"none\" that is not secure; remove this key, or use same_site = \"lax\"";
    assert_eq!(of("cookie = 's', same_site = 'none', secure = false"), [at(57, "secure", none)]);
    let allowed = "allowed: the name of a cookie: letters, digits and !#$%&'*+-.^_`|~, such as server";
    for (name, begin) in [
        ("a b", "has the character ' ', found \"a b\""),
        ("a;", "has the character ';', found \"a;\""),
        ("é", "has the character 'é', found \"é\""),
        ("", "found \"\""),
    ] {
        let found = of(&format!("cookie = '{name}'"));
        assert_eq!(found, [at(23, "cookie", &format!("{begin}; {allowed}"))], "{name}");
    }
}
