//! TLS handshakes that convey refuses, and limits on their cost.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use convey_testkit::{
    BalancerProcess, Loopback, Need, TestHttpServer, TlsClient, TlsSettings, connect, connect_from, tests,
    was_reset,
};

use super::{authority, https};
use crate::http::client::Client;

tests!("tls_refused":
    old_versions_weak_suites_and_renegotiation_are_refused [Need::OPENSSL],
    configured_tls_versions_and_suites_are_enforced [Need::OPENSSL],
    clients_that_do_not_speak_tls_get_an_alert_and_are_counted,
    slow_handshakes_time_out_and_use_little_memory,
    a_source_has_so_many_handshakes_at_once,
);

/// Output of `openssl s_client` with these arguments and this input.
fn openssl(lab: &Loopback, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &lab.vip().to_string(), "-servername", "site.example"]);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned()
}

/// TLS version and cipher suite agreed with convey; `None` without an agreement.
fn agreed(lab: &Loopback, arguments: &[&str]) -> Option<String> {
    let output = openssl(lab, arguments, "");
    let line = output.lines().find(|line| line.starts_with("New, "))?;
    (!line.contains("(NONE)")).then(|| line.trim_start_matches("New, ").to_owned())
}

fn old_versions_weak_suites_and_renegotiation_are_refused() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    // The client supports all of these, unlike convey.
    let weakest = ["-cipher", "ALL:@SECLEVEL=0"];
    for version in ["-tls1", "-tls1_1"] {
        assert_eq!(agreed(&lab, &[&[version], &weakest[..]].concat()), None, "{version}");
    }
    for suite in
        ["AES128-SHA", "AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA", "DHE-RSA-AES128-GCM-SHA256", "NULL"]
    {
        let arguments = ["-tls1_2", "-cipher", &format!("{suite}:@SECLEVEL=0")];
        assert_eq!(agreed(&lab, &arguments), None, "{suite}");
    }
    for (arguments, expected) in [
        (
            ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"],
            "TLSv1.2, Cipher is ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        (["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"], "TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"),
        (["-tls1_3", "-groups", "P-256"], "TLSv1.3, Cipher is TLS_AES_256_GCM_SHA384"),
    ] {
        assert_eq!(agreed(&lab, &arguments).as_deref(), Some(expected));
    }
    let output = openssl(&lab, &["-tls1_2"], "R\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(output.contains("RENEGOTIATING") && !output.contains("a GET /"), "{output}");
    let output = openssl(&lab, &["-tls1_3"], "");
    assert!(output.contains("Early data was not sent") && output.contains("Compression: NONE"), "{output}");
    assert!(balancer.stat("/frontends/web/ended/tls_handshake_failed").as_u64().unwrap() >= 7);
}

fn configured_tls_versions_and_suites_are_enforced() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    authority(&lab);
    let suite = "min_version = \"1.3\"\ncipher_suites = \"TLS13_AES_128_GCM_SHA256\"";
    let _balancer = BalancerProcess::start(&lab, &https(&lab, suite));
    assert_eq!(agreed(&lab, &["-tls1_2"]), None);
    assert_eq!(agreed(&lab, &[]).as_deref(), Some("TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"));
    assert_eq!(agreed(&lab, &["-ciphersuites", "TLS_AES_256_GCM_SHA384"]), None);
}

fn clients_that_do_not_speak_tls_get_an_alert_and_are_counted() {
    let lab = Loopback::new();
    let server = TestHttpServer::named("a", lab.server(1));
    authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, ""));
    let openings: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: site.example\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\xff\xff\x01\x00\x00\x00",
        b"\x17\x03\x03\x00\x05hello",
        b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
    ];
    for (n, bytes) in openings.into_iter().enumerate() {
        let mut client = connect(lab.vip());
        client.write_all(bytes).unwrap();
        let mut alert = Vec::new();
        let _ = client.read_to_end(&mut alert);
        // A fatal alert (RFC 8446, section 6).
        assert!(alert.is_empty() || alert.starts_with(&[21, 3, 3, 0, 2, 2]), "{n}: {alert:?}");
        balancer.wait_for_stat("/frontends/web/ended/tls_handshake_failed", n as u64 + 1);
    }
    assert!(server.seen().is_empty());
}

fn slow_handshakes_time_out_and_use_little_memory() {
    const CLIENTS: u64 = 200;
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, "handshake_timeout = 2"));
    let config = TlsSettings::trusting(&authority).client();
    let mut client = Client(TlsClient::connect(lab.vip(), "site.example", &config).unwrap());
    assert_eq!(client.get("site.example", "/").status, 200);
    let before = balancer.memory();
    // A record that announces 16 KiB, of which only a few bytes arrive.
    let mut slow: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(lab.vip())).collect();
    for stream in slow.iter_mut().skip(CLIENTS as usize / 2) {
        stream.write_all(&[&[22, 3, 1, 64, 0, 1, 0, 63, 252][..], &[0; 4_000]].concat()).unwrap();
    }
    let each = balancer.memory().saturating_sub(before) / CLIENTS;
    assert!(each < 40 << 10, "{each} bytes each");
    balancer.wait_for_stat("/frontends/web/ended/tls_handshake_timeout", CLIENTS);
    assert!(slow.iter_mut().all(was_reset));
    // After the handshake, the client has the frontend's timeouts.
    assert_eq!(client.get("site.example", "/").status, 200);
}

fn a_source_has_so_many_handshakes_at_once() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let authority = authority(&lab);
    let balancer = BalancerProcess::start(&lab, &https(&lab, "max_handshakes_per_source = 4"));
    let from = |host: u8| connect_from(lab.ip(host), lab.vip()).unwrap();
    let silent: Vec<TcpStream> = (0..4).map(|_| from(5)).collect();
    balancer.wait_for_stat("/frontends/web/current_connections", 4);
    // The reset may come before the connect has returned.
    let fifth = connect_from(lab.ip(5), lab.vip());
    assert!(fifth.map_or(true, |mut client| was_reset(&mut client)));
    balancer.wait_for_stat("/frontends/web/ended/tls_handshake_limit", 1);
    let config = TlsSettings::trusting(&authority).client();
    let mut other = Client(TlsClient::over(from(6), "site.example", &config).unwrap());
    assert_eq!(other.get("site.example", "/").status, 200);
    drop(silent);
    balancer.wait_for_stat("/frontends/web/current_connections", 1);
    let mut again = Client(TlsClient::over(from(5), "site.example", &config).unwrap());
    assert_eq!(again.get("site.example", "/").status, 200);
}
