//! Servers that listen on unix sockets.

use super::super::{describe, parse};
use super::modes::diagnostics;
use super::{GOOD, errors, warnings};
use convey_model::{Mode, UnixSocket};

/// [`GOOD`] with this address of the server, and additional lines of its backend.
fn with(addr: &str, backend: &str) -> String {
    format!("{}[backends.web]\n{backend}\n", GOOD.replace("10.0.0.2:80", addr))
}

fn error(backend: &str) -> String {
    let mut found = errors(&with("unix:/run/app.sock", backend));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn server_may_be_a_unix_socket_or_an_abstract_one() {
    for addr in ["unix:/run/app.sock", "unix:@app", "unix:/run/my app/1:2.sock"] {
        let text = with(addr, "health_check.kind = 'http'\nsend_proxy = 'v2'");
        let config = parse("c", &text).unwrap().config;
        let server = &config.backends[0].servers[0];
        assert_eq!(UnixSocket::of(server.addr).map(UnixSocket::text), Some(addr));
        assert!(!server.keeps_port());
        let described = describe(&config);
        assert!(described.contains(&format!("  server a  {addr}  weight 1\n")), "{described}");
        assert_eq!(warnings(&text), [""; 0]);
        assert!(diagnostics(&text, Mode::Proxy).is_ok() && diagnostics(&text, Mode::Http).is_ok());
    }
}

#[test]
fn host_that_is_named_unix_stays_a_host() {
    let config = parse("c", &with("unix:80", "")).unwrap().config;
    assert_eq!(config.backends[0].named[0].to_string(), "unix:80");
}

#[test]
fn change_from_tcp_to_a_unix_socket_is_a_new_address() {
    let running = parse("c", GOOD).unwrap().config;
    let (_, diff) = parse("c", &with("unix:/run/app.sock", "")).unwrap().reload(&running);
    assert_eq!(diff.changes, ["backend web: address of web/a 10.0.0.2:80 -> unix:/run/app.sock"]);
}

#[test]
fn socket_with_another_path_than_an_absolute_one_is_an_error() {
    let long = format!("unix:/{}", "a".repeat(107));
    for (addr, found) in [
        ("unix:app.sock", "the path of a unix socket begins with `/`; an abstract socket is unix:@NAME"),
        ("unix:", "the path of a unix socket begins with `/`; an abstract socket is unix:@NAME"),
        (&long, "the path of a unix socket has at most 107 bytes, and this one has 108"),
        ("/run/app.sock", "write a unix socket as \"unix:/run/app.sock\""),
        ("unix@/run/app.sock", "write a unix socket as \"unix:/run/app.sock\""),
        ("abns@app", "write an abstract unix socket as \"unix:@app\""),
    ] {
        let found = format!("config.toml:6:8: backends.web.servers.a.addr: {found}, found \"");
        let errors = errors(&with(addr, ""));
        assert!(errors.len() == 1 && errors[0].starts_with(&found), "{errors:?}");
        assert!(errors[0].ends_with(", or unix:/PATH"), "{errors:?}");
    }
}

#[test]
fn setting_that_needs_an_ip_address_is_an_error_with_its_line() {
    let place = "config.toml:6:8: backends.web.servers.a.addr: unix:/run/app.sock";
    for (backend, message) in [
        (
            "source = '10.0.0.1'",
            "has no IP address, so connections to it cannot come from the source 10.0.0.1 (line 8); remove source, or \
             move the server to another backend",
        ),
        (
            "health_check.port = 81",
            "has no ports, but health_check.port (line 8) is set; remove it: health checks connect to the socket",
        ),
        (
            "health_check.kind = 'udp'",
            "takes no datagrams, but the health check (line 8) is of kind udp; use tcp, http or grpc",
        ),
        (
            "tls.skip_verify = true",
            "has no address to verify its certificate by; set tls.server_name in the backend (tls is in line 8)",
        ),
        (
            "health_check.kind = 'https'",
            "has no address to verify its certificate by; set health_check.host for the https check",
        ),
    ] {
        assert_eq!(error(backend), format!("{place} {message}"));
    }
    let named = with("unix:/run/app.sock", "tls = { skip_verify = true, server_name = 'app.internal' }");
    assert!(parse("c", &named).is_ok());
}

#[test]
fn socket_in_a_packet_mode_or_for_udp_is_an_error() {
    let text = with("unix:/run/app.sock", "");
    let place = "config.toml:6:8: backends.web.servers.a.addr: unix:/run/app.sock";
    let needs = "needs mode proxy or http with protocol tcp; frontend \"web\" is in";
    for mode in [Mode::Passthrough, Mode::Dsr] {
        let found = diagnostics(&text, mode).unwrap_err();
        let mode = mode.name();
        let message = format!("{place} {needs} {mode} mode with protocol tcp; write the server's IP:port");
        assert!(found.contains(&message), "{found:?}");
    }
    let udp = text.replace("listen_addr", "protocol = \"udp\"\nlisten_addr");
    let found = diagnostics(&udp, Mode::Proxy).unwrap_err();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("\"web\" is in proxy mode with protocol udp; write the server's IP:port"));
}

#[test]
fn address_of_the_discard_prefix_is_no_server() {
    let found = errors(&GOOD.replace("10.0.0.2:80", "[100::1]:80"));
    assert!(found[0].contains("found \"[100::1]:80\"; allowed: IP:port of one server"), "{found:?}");
}
