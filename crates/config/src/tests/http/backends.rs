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
