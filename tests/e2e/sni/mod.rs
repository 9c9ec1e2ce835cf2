//! Proxy mode routes TLS connections by their hello and decrypts nothing.

mod limits;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, TestAuthority, TlsClient, TlsSettings, connect,
    connect_from, run, tests, tool, wait_for, was_reset,
};

use super::checks::{Tls, self_signed};
use super::operator::{command_output, run_command};
use super::proxy_protocol::{PROXY, line, trusting};
use super::trace::Watcher;

tests!("sni":
    connections_are_routed_by_server_name_and_alpn,
    servers_keep_their_certificates_and_clients_see_them [Need::OPENSSL],
    fragmented_hello_is_routed_like_a_whole_one,
    unrouted_hello_is_refused_with_a_reason_without_default_backend,
    unrouted_client_gets_an_alert_that_names_the_reason [Need::OPENSSL],
    proxy_headers_stand_before_hellos_on_both_sides,
    a_reload_changes_routes_for_whoever_has_not_said_its_name_yet,
    a_frontend_that_decrypts_routes_by_what_its_handshake_agrees_on,
    a_server_that_fails_is_replaced_by_another_of_the_same_route,
    operators_see_names_and_routes,
);

/// The bytes of a ClientHello for this name, if there is one, with these protocols.
pub(super) fn hello(name: &str, alpn: &[&str]) -> Vec<u8> {
    let mut extensions = Vec::new();
    if !name.is_empty() {
        let name = [&[0][..], &long(name.as_bytes())].concat();
        extensions.extend([&[0, 0][..], &long(&long(&name))].concat());
    }
    if !alpn.is_empty() {
        let names = alpn.iter().flat_map(|name| [&[name.len() as u8][..], name.as_bytes()].concat());
        extensions.extend([&[0, 16][..], &long(&long(&names.collect::<Vec<u8>>()))].concat());
    }
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 0x01], &[1, 0], &long(&extensions)].concat();
    let message = [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat();
    record(&message)
}

fn record(data: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &long(data)].concat()
}

/// Returns bytes with their length in two bytes in front.
fn long(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u16).to_be_bytes()[..], data].concat()
}

/// A server that sends its name after the first bytes that it receives, and then echoes all bytes.
fn named(name: &'static str, addr: SocketAddr) -> TcpServer {
    TcpServer::start(addr, move |mut stream| {
        let (mut buffer, mut has_heard) = (vec![0; 65_536], false);
        loop {
            let n = stream.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            if !std::mem::replace(&mut has_heard, true) {
                stream.write_all(name.as_bytes())?;
            }
            stream.write_all(&buffer[..n])?;
        }
    })
}

/// The server's name. Checks that the server got these bytes and nothing else.
fn answered(stream: &mut TcpStream, bytes: &[u8]) -> String {
    let mut said = vec![0; 4 + bytes.len()];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said[4..], bytes, "the server got something else");
    String::from_utf8_lossy(&said[..4]).into_owned()
}

/// Name of the server for a client that begins with these bytes.
fn who(lab: &Loopback, bytes: &[u8]) -> String {
    let mut stream = connect(lab.vip());
    stream.write_all(bytes).unwrap();
    answered(&mut stream, bytes)
}

/// The servers `pool`, `apis`, `http` and `glob`, which return their names. The routes are lines of
/// the frontend, whose own backend is `pool`.
fn four(lab: &Loopback, routes: &str) -> ([TcpServer; 4], Setup) {
    let servers = [("pool", 1), ("apis", 2), ("http", 3), ("glob", 4)];
    let mut setup = Setup::new(lab).frontend(routes).server("a", lab.server(1), "");
    for (name, n) in &servers[1..] {
        let addr = lab.server(*n);
        setup = setup
            .and(&format!("[backends.{name}]\nhealth_check.kind = \"none\"\nservers.a.addr = \"{addr}\"\n"));
    }
    (servers.map(|(name, n)| named(name, lab.server(n))), setup)
}

const ROUTES: &str = r#"
    [[frontends.web.routes]]
    sni = "api.example"
    backend = "apis"
    [[frontends.web.routes]]
    sni = ["api.example", "other.example"]
    alpn = "h2"
    backend = "http"
    [[frontends.web.routes]]
    sni = "*.example"
    backend = "glob"
"#;

/// This frontend without a backend of its own.
fn without_backend(setup: &Setup) -> String {
    setup.to_string().replacen("backend = \"pool\"\n", "", 1)
}

fn connections_are_routed_by_server_name_and_alpn() {
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, ROUTES);
    let balancer = BalancerProcess::start(&lab, &setup);
    for (name, alpn, server) in [
        ("api.example", &[][..], "apis"),
        ("API.Example", &["http/1.1"], "apis"),
        ("api.example.", &["http/1.1", "h2"], "http"),
        ("other.example", &["h2"], "http"),
        ("other.example", &[], "glob"),
        ("a.b.example", &["h2"], "glob"),
        ("example", &[], "pool"),
        ("10.0.0.1", &[], "pool"),
        ("", &["h2"], "pool"),
    ] {
        assert_eq!(who(&lab, &hello(name, alpn)), server, "{name} {alpn:?}");
    }
    for other in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SSH-2.0-x\r\n", b"\0"] {
        assert_eq!(who(&lab, other), "pool", "what is not TLS goes to the frontend's own backend");
    }
    balancer.wait_for_stat("/frontends/web/total_connections", 12);
}

fn servers_keep_their_certificates_and_clients_see_them() {
    let lab = Loopback::new();
    let servers = ["api", "site"].map(|name| {
        let directory = lab.directory().join(name);
        fs::create_dir(&directory).unwrap();
        self_signed(&directory, "tls", &format!("{name}.example"));
        Tls::start(&directory, lab.server(if name == "api" { 2 } else { 1 }))
    });
    let routes = "routes = [{ sni = \"api.example\", backend = \"api\" }]";
    let api =
        format!("[backends.api]\nhealth_check.kind = \"none\"\nservers.a.addr = \"{}\"\n", lab.server(2));
    let setup = Setup::new(&lab).frontend(routes).server("a", lab.server(1), "").and(&api);
    let _balancer = BalancerProcess::start(&lab, &setup);
    // A client that trusts one certificate alone: it sees that one.
    let verified = |name: &str, trusted: &str| {
        let mut openssl = Command::new(tool("openssl").unwrap());
        openssl.args([
            "s_client",
            "-connect",
            &lab.vip().to_string(),
            "-servername",
            name,
            "-verify_return_error",
        ]);
        openssl.arg("-CAfile").arg(lab.directory().join(trusted).join("tls.pem")).stdin(Stdio::null());
        run(&mut openssl).code == Some(0)
    };
    assert!(verified("api.example", "api") && verified("site.example", "site"));
    assert!(!verified("api.example", "site") && !verified("site.example", "api"));
    drop(servers);
}

fn fragmented_hello_is_routed_like_a_whole_one() {
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, ROUTES);
    let _balancer = BalancerProcess::start(&lab, &setup);
    let whole = hello("api.example", &["h2"]);
    let mut slow = connect(lab.vip());
    slow.set_nodelay(true).unwrap();
    whole.iter().for_each(|byte| slow.write_all(&[*byte]).unwrap());
    assert_eq!(answered(&mut slow, &whole), "http");
    let in_records: Vec<u8> = whole[5..].chunks(7).flat_map(record).collect();
    assert_eq!(who(&lab, &in_records), "http");
    // As large as allowed, with more behind it than convey reads.
    let alpn: Vec<&str> = vec!["a-protocol-that-nobody-speaks"; 500];
    let large = [hello("api.example", &alpn), vec![23; 20_000]].concat();
    assert!(large.len() > 35_000);
    assert_eq!(who(&lab, &large), "apis");
}

fn unrouted_hello_is_refused_with_a_reason_without_default_backend() {
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, ROUTES);
    let log = lab.directory().join("access.log");
    let setup = setup.and(&format!("[access_log]\noutput = {log:?}\n"));
    let balancer = BalancerProcess::start(&lab, &without_backend(&setup));
    // Number of the alert before the connection is closed in order.
    let alert = |bytes: &[u8]| {
        let (mut stream, mut command_output) = (connect(lab.vip()), Vec::new());
        stream.write_all(bytes).unwrap();
        stream.read_to_end(&mut command_output).unwrap();
        assert_eq!(command_output[..6], [21, 3, 3, 0, 2, 2]);
        command_output[6..].to_vec()
    };
    assert_eq!(who(&lab, &hello("api.example", &[])), "apis");
    const UNRECOGNIZED_NAME: [u8; 1] = [112];
    assert_eq!(alert(&hello("elsewhere", &[])), UNRECOGNIZED_NAME);
    assert_eq!(alert(&hello("", &[])), UNRECOGNIZED_NAME);
    let mut plain = connect(lab.vip());
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(was_reset(&mut plain), "the peer does not speak TLS");
    // A name with a NUL is an illegal parameter, an empty record unexpected; a truncated hello gets
    // no alert.
    assert_eq!(alert(&hello("api.example\0.evil", &[])), [47]);
    assert_eq!(alert(&[record(&[1, 0]), record(b"")].concat()), [10]);
    let mut cut = connect(lab.vip());
    cut.write_all(&hello("api.example", &[])[..20]).unwrap();
    cut.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(was_reset(&mut cut));
    for (reason, count) in [("no_route", 2), ("not_tls", 1), ("hello_invalid", 3)] {
        balancer.wait_for_stat(&format!("/frontends/web/ended/{reason}"), count);
    }
    // A connection that is closed at once, as a port check does, is no fault.
    drop(connect(lab.vip()));
    balancer.wait_for_stat("/current_connections", 0);
    let ended = balancer.stat("/frontends/web/ended");
    let total: u64 = ended.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(total, 6, "{ended}");
    wait_for("the log to tell whom no route is for", || {
        let text = fs::read_to_string(&log).unwrap();
        text.contains("reason=no_route sni=elsewhere route=-").then_some(())
    });
}

fn unrouted_client_gets_an_alert_that_names_the_reason() {
    let lab = Loopback::new();
    let routes = r#"routes = [{ sni = "api.example", alpn = "h2", backend = "apis" }, { alpn = "acme-tls/1", backend = "glob" }]"#;
    let (_servers, setup) = four(&lab, routes);
    let balancer = BalancerProcess::start(&lab, &without_backend(&setup));
    let said = |name: &str, alpn: &str| {
        let mut openssl = Command::new(tool("openssl").unwrap());
        openssl.args(["s_client", "-connect", &lab.vip().to_string(), "-servername", name, "-alpn", alpn]);
        let ran = run(openssl.stdin(Stdio::null()));
        assert_ne!(ran.code, Some(0));
        ran.stderr
    };
    for (name, alpn, alert) in [
        ("elsewhere.example", "h2", "unrecognized name:"),
        ("api.example", "http/1.1", "no application protocol:"),
    ] {
        let said = said(name, alpn);
        assert!(said.contains(alert), "{name}: {said}");
    }
    balancer.wait_for_stat("/frontends/web/ended/no_route", 2);
    balancer.wait_for_stat("/current_connections", 0);
}

fn proxy_headers_stand_before_hellos_on_both_sides() {
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, &trusting(&lab, ROUTES));
    let setup = setup.to_string().replace("[backends.apis]\n", "[backends.apis]\nsend_proxy = \"v1\"\n");
    let _balancer = BalancerProcess::start(&lab, &setup);
    let (header, hello) = (line(7, 1000).into_bytes(), hello("api.example", &[]));
    let whole = [&header[..], &hello].concat();
    // Header and hello in one segment, with half of the hello in the next segment, and in one
    // segment each.
    for cut in [whole.len(), header.len() + 30, header.len()] {
        let mut stream = connect_from(lab.ip(PROXY), lab.vip()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        stream.write_all(&whole[cut..]).unwrap();
        assert_eq!(answered(&mut stream, &whole), "apis");
    }
    // Version 2, to a server that expects none.
    let local = [&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], &self::hello("a.example", &[])].concat();
    let mut stream = connect_from(lab.ip(PROXY), lab.vip()).unwrap();
    stream.write_all(&local).unwrap();
    assert_eq!(answered(&mut stream, &local[16..]), "glob");
}

fn a_reload_changes_routes_for_whoever_has_not_said_its_name_yet() {
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, ROUTES);
    let balancer = BalancerProcess::start(&lab, &setup);
    let bytes = hello("api.example", &[]);
    let mut open = connect(lab.vip());
    open.write_all(&bytes).unwrap();
    assert_eq!(answered(&mut open, &bytes), "apis");
    let mut begun = connect(lab.vip());
    begun.write_all(&bytes[..30]).unwrap();
    balancer.wait_for_stat("/current_connections", 2);

    let moved = setup.to_string().replacen("backend = \"apis\"", "backend = \"glob\"", 1);
    balancer.save(&moved);
    balancer.wait_for_log("route api.example backend apis -> glob");
    begun.write_all(&bytes[30..]).unwrap();
    assert_eq!(answered(&mut begun, &bytes), "glob");
    // The open connection stays with its server.
    open.write_all(b"more").unwrap();
    let mut more = [0; 4];
    open.read_exact(&mut more).unwrap();
    assert_eq!(&more, b"more");

    let mut begun = connect(lab.vip());
    begun.write_all(&bytes[..30]).unwrap();
    balancer.wait_for_stat("/current_connections", 3);
    balancer.save(&setup.clone().frontend(""));
    balancer.wait_for_log("- route api.example");
    begun.write_all(&bytes[30..]).unwrap();
    assert_eq!(answered(&mut begun, &bytes), "pool", "without routes all goes to the frontend's backend");
}

fn a_frontend_that_decrypts_routes_by_what_its_handshake_agrees_on() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("The authority");
    authority.issue(&["api.example", "b.example", "site"]).save(lab.directory(), "site");
    let at = lab.directory().display();
    let tls = format!(
        "[frontends.web.tls]\ncertificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\"\nalpn = [\"h2\"]\n"
    );
    let (_servers, setup) = four(&lab, &format!("{ROUTES}{tls}"));
    let _balancer = BalancerProcess::start(&lab, &setup);
    for (name, alpn, server) in [
        ("api.example", "", "apis"),
        ("api.example", "h2", "http"),
        ("b.example", "h2", "glob"),
        ("site", "", "pool"),
    ] {
        let offered: &[&str] = if alpn.is_empty() { &[] } else { &[alpn] };
        let config = TlsSettings::trusting(&authority).offering(offered).client();
        let mut client = TlsClient::connect(lab.vip(), name, &config).unwrap();
        client.write_all(b"hello").unwrap();
        let mut said = [0; 9];
        client.read_exact(&mut said).unwrap();
        assert_eq!(String::from_utf8_lossy(&said), format!("{server}hello"), "{name} {alpn}");
    }
}

fn a_server_that_fails_is_replaced_by_another_of_the_same_route() {
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, ROUTES);
    let (dead, also_dead) = (lab.server(7), lab.server(8));
    let text = setup.to_string();
    let apis = format!("servers.a.addr = \"{}\"", lab.server(2));
    let with_dead = format!("servers.d.addr = \"{dead}\"\n{apis}");
    let balancer = BalancerProcess::start(&lab, &text.replace(&apis, &with_dead));
    for _ in 0..6 {
        assert_eq!(who(&lab, &hello("api.example", &[])), "apis");
    }
    assert!(balancer.stat("/backends/apis/retries").as_u64().unwrap() >= 3);

    let all_dead = format!("servers.d.addr = \"{dead}\"\nservers.e.addr = \"{also_dead}\"");
    balancer.save(&text.replace(&apis, &all_dead));
    balancer.wait_for_log("e (");
    let mut stream = connect(lab.vip());
    stream.write_all(&hello("api.example", &[])).unwrap();
    assert!(was_reset(&mut stream), "no other backend takes its clients");
    balancer.wait_for_stat("/frontends/web/ended/connect_failed", 1);
}

fn operators_see_names_and_routes() {
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, ROUTES);
    let log = lab.directory().join("access.log");
    let setup = setup.and(&format!("[access_log]\noutput = {log:?}\nformat = \"json\"\n"));
    let balancer = BalancerProcess::start(&lab, &setup);
    let watcher = Watcher::start(&balancer, "");
    assert_eq!(who(&lab, &hello("API.example", &["h2"])), "http");
    assert_eq!(who(&lab, b"GET /"), "pool");
    watcher.wait_for(&["SNI api.example: route api.example+h2"]);
    watcher.wait_for(&["no SNI: route default"]);
    let lines = wait_for("both lines", || {
        let text = fs::read_to_string(&log).unwrap();
        (text.lines().count() == 2).then_some(text)
    });
    assert!(lines.contains("\"sni\":\"api.example\",\"route\":\"api.example+h2\""), "{lines}");
    assert!(lines.contains("\"sni\":null,\"route\":\"default\""), "{lines}");
    let (_, metrics) = balancer.page("/metrics");
    for (route, count) in [("api.example+h2", 1), ("default", 1), ("*.example", 0)] {
        let of = format!("convey_route_connections_total{{frontend=\"web\",route=\"{route}\"}} {count}\n");
        assert!(metrics.contains(&of), "no {of} in\n{metrics}");
    }
    assert!(command_output(&balancer, "status").contains("pool glob apis http"));

    let all = command_output(&balancer, "explain 127.0.0.1 web");
    let named = "(*.example to backend glob, api.example to backend apis, api.example+h2 to backend http, \
                 other.example+h2 to backend http); a connection without a route goes to backend pool, as follows";
    assert!(all.contains(named), "{all}");
    let one = command_output(&balancer, "explain 127.0.0.1 web https://api.example/");
    let says = "a TLS client with the server name api.example takes route api.example to backend apis; a client that \
                offers the protocol h2 takes route api.example+h2 to backend http";
    assert!(one.contains(says) && one.contains("gets apis/a at"), "{one}");
    balancer.save(&without_backend(&setup));
    balancer.wait_for_log("backend pool -> none");
    let refused = run_command(&balancer, "explain 127.0.0.1 web https://elsewhere");
    assert!(refused.code == Some(3) && refused.stdout.contains("is refused: no_route"), "{refused:?}");
}

/// Tests of clients that never finish.
pub(crate) fn limits() -> Vec<libtest_mimic::Trial> {
    limits::tests()
}
