//! Mode http: client of a request that comes through trusted proxies.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TestHttpServer, connect_from, is_refused_with_reset_from, tests,
    wait_for, whole_lines,
};

use super::access_log::{log, path};
use super::http::HTTP;
use super::http::client::{Client, Response};

tests!("trusted_proxies":
    forwarded_client_is_used_for_access_limits_hash_and_log,
    trusted_proxy_has_no_share_of_the_connections,
    trusted_proxy_connects_although_access_denies_its_address,
    proxy_header_makes_no_field_of_a_client_believed,
    client_address_names_the_client_for_access_hash_limits_and_log,
    own_header_of_strangers_does_not_reach_the_server,
    header_about_the_client_counts_in_rules_only_from_trusted_proxies,
    client_without_an_address_shares_the_limit_of_its_proxy,
    list_of_proxies_is_read_again_after_a_change,
);

/// The last octet of the proxy's address.
const PROXY: u8 = 9;

fn trusting(lab: &Loopback, lines: &str) -> String {
    format!("{HTTP}\ntrusted_proxies = \"{}\"\n{lines}", lab.ip(PROXY))
}

fn get(client: &mut Client, fields: &str) -> Response {
    client.send(&format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
}

fn forwarded_client_is_used_for_access_limits_hash_and_log() {
    let lab = Loopback::new();
    let servers = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let limits = "access.deny = \"192.0.2.66\"\nlimits = { requests_per_source = 1, request_burst = 2 }";
    let setup = Setup::new(&lab)
        .frontend(&trusting(&lab, limits))
        .backend("algorithm = \"maglev\"\nhash = \"source\"")
        .server("a", lab.server(1), "")
        .server("b", lab.server(2), "")
        .and(&log(&lab, "format = '{client_addr} by {proxy_addr} {reason}'"));
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut proxy = Client(connect_from(lab.ip(PROXY), lab.vip()).unwrap());

    // Each client has its own bucket and server.
    for client in 1..=40 {
        let forged = if client % 2 == 0 { "192.0.2.66, " } else { "" };
        let fields = format!("X-Forwarded-For: {forged}198.51.100.{client}\r\n");
        let first = get(&mut proxy, &fields);
        assert_eq!((first.status, first.body), (200, get(&mut proxy, &fields).body), "client {client}");
    }
    assert!(servers.iter().all(|server| server.seen().len() > 1), "all went to one server");
    let fields = "X-Forwarded-For: 198.51.100.99\r\n";
    let statuses = [(); 6].map(|()| get(&mut proxy, fields).status);
    assert!(statuses[..2] == [200, 200] && statuses.contains(&429), "{statuses:?}");

    let denied = get(&mut proxy, "X-Forwarded-For: 192.0.2.66:4711\r\n");
    assert_eq!(denied.status, 403);
    assert!(denied.body.contains("access denied"), "{denied:?}");
    balancer.wait_for_stat("/frontends/web/requests/local_replies/access_denied", 1);
    let expected = format!("192.0.2.66:4711 by {} access_denied", proxy.0.local_addr().unwrap());
    let text = wait_for("the line of the denied client", || {
        Some(whole_lines(&path(&lab))).filter(|text| text.contains("access_denied"))
    });
    assert!(text.lines().any(|line| line == expected), "{text}");

    // The proxy's own requests, such as its health checks, have no limit.
    assert_eq!([(); 6].map(|()| get(&mut proxy, "").status), [200; 6]);

    // Fields of an untrusted peer change nothing.
    let mut stranger = Client(connect_from(lab.ip(5), lab.vip()).unwrap());
    assert_eq!(get(&mut stranger, "X-Forwarded-For: 192.0.2.66\r\n").status, 200);
    // A reload that denies the proxy's address keeps its connections: clients are checked by their
    // own addresses.
    let denying = limits.replace("192.0.2.66", &lab.ip(PROXY).to_string());
    balancer.save(&Setup::new(&lab).frontend(&trusting(&lab, &denying)).server("a", lab.server(1), ""));
    balancer.wait_for_log("reload: frontend web: access");
    assert_eq!(get(&mut proxy, "X-Forwarded-For: 192.0.2.66\r\n").status, 200);
    assert_eq!(get(&mut proxy, "").status, 403, "the proxy itself is a client where it names none");
}

fn trusted_proxy_has_no_share_of_the_connections() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let limits = "max_connections_per_client = 2\nlimits = { connections_per_source = 2 }";
    let setup = Setup::new(&lab).frontend(&trusting(&lab, limits)).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let open = |host| Client(connect_from(lab.ip(host), lab.vip()).unwrap());
    let mut of_proxy: Vec<Client> = (0..8).map(|_| open(PROXY)).collect();
    assert!(of_proxy.iter_mut().all(|client| get(client, "").status == 200));
    let mut of_client = [(); 2].map(|()| open(5));
    assert!(of_client.iter_mut().all(|client| get(client, "").status == 200));
    assert!(is_refused_with_reset_from(lab.ip(5), lab.vip()));
}

fn trusted_proxy_connects_although_access_denies_its_address() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let lines = trusting(&lab, "access.allow = \"198.51.100.0/24\"");
    let setup = Setup::new(&lab).frontend(&lines).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut proxy = Client(connect_from(lab.ip(PROXY), lab.vip()).unwrap());
    let clients = ["198.51.100.1", "192.0.2.66"];
    let statuses = clients.map(|client| get(&mut proxy, &format!("X-Forwarded-For: {client}\r\n")).status);
    assert_eq!(statuses, [200, 403]);
}

fn proxy_header_makes_no_field_of_a_client_believed() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let lines = trusting(&lab, "accept_proxy = true");
    let setup = Setup::new(&lab).frontend(&lines).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let proxy = lab.ip(PROXY).to_string();
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for (header, seen) in [
        (&b"PROXY UNKNOWN\r\n"[..], &*proxy),
        (local, &*proxy),
        (b"PROXY TCP4 198.51.100.7 203.0.113.1 4711 80\r\n", "198.51.100.7"),
    ] {
        let mut client = Client(connect_from(lab.ip(PROXY), lab.vip()).unwrap());
        client.0.write_all(header).unwrap();
        let fields =
            "X-Forwarded-For: 192.0.2.66\r\nX-Forwarded-Proto: https\r\nX-SSL-Client-DN: CN=admin\r\n";
        assert_eq!(get(&mut client, fields).status, 200);
        let request = server.seen().pop().unwrap();
        assert_eq!(request.field("x-forwarded-for"), Some(seen));
        assert_eq!(request.field("x-forwarded-proto"), Some("http"));
        assert_eq!(request.field("x-ssl-client-dn"), None);
    }
    // The peer in the header may be a trusted proxy itself.
    let mut client = Client(connect_from(lab.ip(PROXY), lab.vip()).unwrap());
    client.0.write_all(format!("PROXY TCP4 {proxy} 203.0.113.1 4711 80\r\n").as_bytes()).unwrap();
    assert_eq!(get(&mut client, "X-Forwarded-For: 192.0.2.66\r\n").status, 200);
    let request = server.seen().pop().unwrap();
    assert_eq!(request.field("x-forwarded-for"), Some(&*format!("192.0.2.66, {proxy}")));
}

fn header_about_the_client_counts_in_rules_only_from_trusted_proxies() {
    let lab = Loopback::new();
    let servers = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let lines = trusting(
        &lab,
        r#"
        client_address = "header:X-Real-IP"
        headers.request.set = { X-Seen = "{header:X-Forwarded-Proto}{header:X-Real-IP}" }
        [[frontends.web.routes]]
        path = "/condition"
        headers_match = { X-Forwarded-Proto = "https" }
        respond = { status = 201 }
        [[frontends.web.routes]]
        path = "/condition"
        headers_match = { X-Real-IP = { present = false } }
        respond = { status = 202 }
        [[frontends.web.routes]]
        path = "/redirect"
        redirect = { path = "/{header:X-Forwarded-Host}", status = 302 }
        "#,
    );
    let setup = Setup::new(&lab)
        .frontend(&lines)
        .backend("algorithm = \"maglev\"\nhash = \"header:X-Forwarded-For\"")
        .server("a", lab.server(1), "")
        .server("b", lab.server(2), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let open = |host| Client(connect_from(lab.ip(host), lab.vip()).unwrap());
    let (mut proxy, mut stranger) = (open(PROXY), open(5));
    let send = |client: &mut Client, path: &str, fields: &str| {
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    };
    let https = "X-Forwarded-Proto: https\r\nX-Real-IP: 192.0.2.66\r\nX-Forwarded-Host: evil\r\n";
    assert_eq!(send(&mut proxy, "/condition", https).status, 201);
    assert_eq!(send(&mut stranger, "/condition", https).status, 202);
    assert!(send(&mut proxy, "/redirect", https).head.contains("Location: https://a/evil\r\n"));
    assert!(send(&mut stranger, "/redirect", https).head.contains("Location: http://a/\r\n"));

    send(&mut proxy, "/proxy", https);
    send(&mut stranger, "/stranger", https);
    let seen: Vec<_> = servers.iter().flat_map(TestHttpServer::seen).collect();
    let seen_at = |path: &str| {
        let request = seen.iter().find(|request| request.line.contains(path)).unwrap();
        request.field("x-seen")
    };
    assert_eq!((seen_at("/proxy"), seen_at("/stranger")), (Some("https192.0.2.66"), None));
    let reached = |client: &mut Client| {
        let fields = (1..=20).map(|n| format!("X-Forwarded-For: 198.51.100.{n}\r\n"));
        fields.map(|fields| send(client, "/", &fields).body).collect::<BTreeSet<String>>().len()
    };
    assert_eq!((reached(&mut proxy), reached(&mut stranger)), (2, 1));
}

/// A value of `client_address`, and the fields by which a proxy names a client.
type Naming = (&'static str, fn(&str) -> String);

const NAMINGS: [Naming; 3] = [
    ("x-forwarded-for", |client| format!("X-Forwarded-For: 192.0.2.1, {client}\r\n")),
    ("forwarded", |client| format!("Forwarded: for=192.0.2.1, for={client};proto=https\r\n")),
    ("header:CF-Connecting-IP", |client| {
        format!("X-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\ncf-connecting-ip: {client}\r\n")
    }),
];

fn client_address_names_the_client_for_access_hash_limits_and_log() {
    for (name, fields) in NAMINGS {
        let lab = Loopback::new();
        let servers = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
        let lines = format!(
            "client_address = \"{name}\"\naccess.deny = \"203.0.113.66\"\n\
             limits = {{ requests_per_source = 1, request_burst = 2 }}"
        );
        let setup = Setup::new(&lab)
            .frontend(&trusting(&lab, &lines))
            .backend("algorithm = \"maglev\"\nhash = \"source\"")
            .server("a", lab.server(1), "")
            .server("b", lab.server(2), "")
            .and(&log(&lab, "format = '{client_ip} {reason}'"));
        let balancer = BalancerProcess::start(&lab, &setup);
        let mut proxy = Client(connect_from(lab.ip(PROXY), lab.vip()).unwrap());
        for client in 1..=20 {
            let fields = fields(&format!("203.0.113.{client}"));
            let first = get(&mut proxy, &fields);
            assert_eq!((first.status, first.body), (200, get(&mut proxy, &fields).body), "{name} {client}");
        }
        assert!(servers.iter().all(|server| !server.seen().is_empty()), "{name}: all went to one server");
        let statuses = [(); 6].map(|()| get(&mut proxy, &fields("203.0.113.99")).status);
        assert!(statuses[..2] == [200, 200] && statuses.contains(&429), "{name}: {statuses:?}");
        assert_eq!(get(&mut proxy, &fields("203.0.113.66")).status, 403, "{name}");
        balancer.wait_for_stat("/frontends/web/requests/local_replies/access_denied", 1);
        wait_for("the line of the denied client", || {
            Some(whole_lines(&path(&lab))).filter(|text| text.contains("203.0.113.66 access_denied\n"))
        });
        // An untrusted peer names nobody.
        let mut stranger = Client(connect_from(lab.ip(5), lab.vip()).unwrap());
        assert_eq!(get(&mut stranger, &fields("203.0.113.66")).status, 200, "{name}");
        // Once the connection counts, access checks the proxy itself.
        let lines = lines.replace(name, "connection").replace("203.0.113.66", &lab.ip(PROXY).to_string());
        balancer.save(&Setup::new(&lab).frontend(&trusting(&lab, &lines)).server("a", lab.server(1), ""));
        balancer.wait_for_log(&format!("client_address {name} -> connection"));
        wait_for("the proxy to be refused", || {
            is_refused_with_reset_from(lab.ip(PROXY), lab.vip()).then_some(())
        });
    }
}

fn own_header_of_strangers_does_not_reach_the_server() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let lines = trusting(&lab, "client_address = \"header:X-Real-IP\"");
    let _balancer =
        BalancerProcess::start(&lab, &Setup::new(&lab).frontend(&lines).server("a", lab.server(1), ""));
    let [mut proxy, mut stranger] =
        [PROXY, 5].map(|host| Client(connect_from(lab.ip(host), lab.vip()).unwrap()));
    let seen = |client: &mut Client, fields: &str| {
        assert_eq!(get(client, fields).status, 200);
        let request = server.seen().pop().unwrap();
        let is_name =
            |field: &&String| field.to_ascii_lowercase().replace('_', "-").starts_with("x-real-ip:");
        request.fields.iter().filter(is_name).cloned().collect::<Vec<_>>()
    };
    let own = "X-Real-IP: 203.0.113.7\r\n";
    assert_eq!(seen(&mut proxy, own), ["X-Real-IP: 203.0.113.7"]);
    let disguised = format!("X_Real_IP: 203.0.113.66\r\n{own}x-real_ip: 203.0.113.67\r\n");
    assert_eq!(seen(&mut proxy, &disguised), ["X-Real-IP: 203.0.113.7"]);
    assert_eq!(seen(&mut stranger, &disguised), [""; 0]);
    assert_eq!(seen(&mut stranger, "x-real-ip: 203.0.113.66\r\n"), [""; 0]);
}

fn client_without_an_address_shares_the_limit_of_its_proxy() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let lines = trusting(&lab, "limits = { requests_per_source = 1, request_burst = 2 }");
    let _balancer =
        BalancerProcess::start(&lab, &Setup::new(&lab).frontend(&lines).server("a", lab.server(1), ""));
    let mut proxy = Client(connect_from(lab.ip(PROXY), lab.vip()).unwrap());
    let names = ["unknown", "_a", "203.0.113.7, unknown", "203.0.113.8 garbage", "203.0.113.9:99999", "_b"];
    let statuses = names.map(|name| get(&mut proxy, &format!("X-Forwarded-For: {name}\r\n")).status);
    assert!(statuses[..2] == [200, 200] && statuses.contains(&429), "{statuses:?}");
    assert_eq!([(); 6].map(|()| get(&mut proxy, "").status), [200; 6], "the proxy's own requests");
}

fn list_of_proxies_is_read_again_after_a_change() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let list = lab.directory().join("cdn.txt");
    fs::write(&list, "# nobody here\n192.0.2.1\n").unwrap();
    let lines = format!("{HTTP}\ntrusted_proxies = \"@cdn.txt\"\naccess.deny = \"203.0.113.66\"");
    let setup = Setup::new(&lab).frontend(&lines).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut proxy = Client(connect_from(lab.ip(PROXY), lab.vip()).unwrap());
    let denied = "X-Forwarded-For: 203.0.113.66\r\n";
    assert_eq!(get(&mut proxy, denied).status, 200, "it is no proxy yet");
    fs::write(&list, format!("192.0.2.1\n{} ; ours\n", lab.ip(PROXY))).unwrap();
    balancer.wait_for_log("reload: frontend web: trusted_proxies 192.0.2.1/32 -> ");
    assert_eq!(get(&mut proxy, denied).status, 403);
    // A list without a network changes nothing.
    fs::write(&list, "\n").unwrap();
    balancer.wait_for_log("trusted_proxies: has no network");
    assert_eq!(get(&mut proxy, denied).status, 403);
}
