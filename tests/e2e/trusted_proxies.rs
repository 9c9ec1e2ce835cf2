//! Mode http: client of a request that comes through trusted proxies.

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
