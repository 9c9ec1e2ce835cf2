//! Services within TLS.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Need, SlowReader, TcpServer, TestHttpServer, TlsClient, TlsSettings,
    check_to_end, connect, send, tests, wait_for,
};

use super::{authority, https, within_tls};
use crate::curl::curl;
use crate::http::client::Client;

tests!("tls_termination":
    a_site_is_served_by_https_over_both_versions_of_http [Need::CURL],
    tls_session_resumes_on_any_core_and_after_a_reload,
    bytes_of_any_protocol_are_relayed_within_tls,
    large_bodies_take_no_memory_and_wait_for_who_reads_slowly,
    a_proxy_header_comes_before_the_handshake,
    a_client_that_only_looks_whether_somebody_listens_is_no_failure,
);

fn a_site_is_served_by_https_over_both_versions_of_http() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let log = "[access_log]\noutput = \"access.log\"\nformat = \"json\"\n"
        .replace("access.log", &lab.directory().join("access.log").display().to_string());
    let balancer = BalancerProcess::start(&lab, &https(&lab, "").and(&log));
    let (ca, vip) = (authority.save(lab.directory()), lab.vip());
    let (resolve, url) = (
        format!("site.example:{}:{}", vip.port(), vip.ip()),
        format!("https://site.example:{}/x", vip.port()),
    );
    for (version, shown) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let ca = ca.display().to_string();
        let output = curl(&[version, "--cacert", &ca, "--resolve", &resolve, "-w", " %{http_version}", &url]);
        assert_eq!(output, format!("a GET /x 0 {shown}"));
        let seen = server.seen().pop().unwrap();
        assert_eq!(seen.field("x-forwarded-proto"), Some("https"));
    }
    balancer.wait_for_stat("/frontends/web/tls/handshakes", 2);
    assert_eq!(balancer.stat("/frontends/web/tls/certificates/0/names"), serde_json::json!(["site.example"]));
    let line = wait_for("a line of the access log", || {
        let log = std::fs::read_to_string(lab.directory().join("access.log")).ok()?;
        Some(log.lines().nth(1)?.to_owned())
    });
    for field in [
        r#""tls_version":"TLSv1.3""#,
        r#""sni":"site.example""#,
        r#""tls_client":null"#,
        r#""http_version":"2""#,
    ] {
        assert!(line.contains(field), "{line}");
    }
    let metrics = balancer.page("/metrics").1;
    assert!(
        metrics.contains("convey_frontend_tls_handshakes_total{frontend=\"web\",kind=\"full\"} 2"),
        "{metrics}"
    );
    assert!(
        metrics.contains("convey_certificate_not_after_timestamp_seconds{frontend=\"web\",certificate="),
        "{metrics}"
    );
}

fn tls_session_resumes_on_any_core_and_after_a_reload() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    for settings in [TlsSettings::trusting(&authority), TlsSettings::trusting(&authority).tls12()] {
        let config = settings.client();
        // The kernel spreads connections over the cores.
        for n in 0..20 {
            let mut client = Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap());
            assert_eq!(client.0.is_resumed(), n > 0, "connection {n}");
            assert_eq!(client.get("site.example", "/").status, 200);
        }
    }
    balancer.wait_for_stat("/frontends/web/tls/handshakes", 2);
    balancer.wait_for_stat("/frontends/web/tls/resumed", 38);
    let config = TlsSettings::trusting(&authority).client();
    let is_resumed = || {
        let mut client = Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap());
        client.get("site.example", "/");
        client.0.is_resumed()
    };
    assert_eq!([is_resumed(), is_resumed()], [false, true]);
    balancer.save(&https(&lab, "handshake_timeout = 7"));
    balancer.wait_for_log("tls.handshake_timeout 10s -> 7s");
    assert!(is_resumed(), "its ticket is of before the reload");
    balancer.save(&https(&lab, "session_tickets = false"));
    balancer.wait_for_log("tls.session_tickets true -> false");
    assert!(!is_resumed());
}

fn bytes_of_any_protocol_are_relayed_within_tls() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    // The server sends "hello" first, echoes all bytes, and sends their number once the client has
    // ended.
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        stream.write_all(b"hello ")?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard)?;
        write!(stream, "{} bytes", heard.len())?;
        stream.shutdown(Shutdown::Write)
    });
    let _balancer = BalancerProcess::start(&lab, &within_tls(&lab, ""));
    let config = TlsSettings::trusting(&authority).client();
    for size in [0, 1, 100_000, 3_000_000] {
        let mut client = TlsClient::connect(lab.vip(), "site.example", &config).unwrap();
        let mut hello = [0; 6];
        client.read_exact(&mut hello).unwrap();
        client.write_all(&vec![7; size]).unwrap();
        client.shutdown();
        let mut answer = String::new();
        // An end without `close_notify` would be an error.
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((&hello, answer), (b"hello ", format!("{size} bytes")));
    }
}

fn large_bodies_take_no_memory_and_wait_for_who_reads_slowly() {
    const SIZE: u64 = 64 << 20;
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")?;
        send(stream, SIZE)
    });
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    let config = TlsSettings::trusting(&authority).client();
    let fetch = || {
        let mut client = TlsClient::connect(lab.vip(), "site.example", &config).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        crate::http::client::read_head(&mut client).unwrap();
        client
    };
    assert_eq!(check_to_end(&mut fetch()), SIZE);
    let before = balancer.memory();
    let slow: Vec<TlsClient> = (0..8).map(|_| fetch()).collect();
    let readers =
        slow.into_iter().map(|client| thread::spawn(move || check_to_end(&mut SlowReader::new(client))));
    let readers: Vec<_> = readers.collect();
    let grown = balancer.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    assert!(readers.into_iter().all(|reader| reader.join().unwrap() == SIZE));
}

fn a_proxy_header_comes_before_the_handshake() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let setup = https(&lab, "");
    let setup = setup.frontend(&format!(
        "mode = \"http\"\naccept_proxy = true\ntrusted_proxies = \"{}\"\n{}",
        lab.ip(9),
        super::tls(lab.directory(), "")
    ));
    let _balancer = BalancerProcess::start(&lab, &setup);
    let config = TlsSettings::trusting(&authority).client();
    let mut tcp = convey_testkit::connect_from(lab.ip(9), lab.vip()).unwrap();
    tcp.write_all(b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 443\r\n").unwrap();
    let mut client = Client(TlsClient::over(tcp, "site.example", &config).unwrap());
    assert_eq!(client.get("site.example", "/").status, 200);
    assert_eq!(server.seen()[0].field("x-forwarded-for"), Some("192.0.2.7"));
}

fn a_client_that_only_looks_whether_somebody_listens_is_no_failure() {
    let lab = Loopback::new();
    authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    for _ in 0..3 {
        let mut client = connect(lab.vip());
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
    balancer.wait_for_stat("/frontends/web/current_connections", 0);
    for reason in ["tls_handshake_failed", "client_reset"] {
        assert_eq!(balancer.stat(&format!("/frontends/web/ended/{reason}")), 0, "{reason}");
    }
}
