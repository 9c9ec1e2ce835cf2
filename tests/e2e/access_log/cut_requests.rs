//! Requests that end before their response has ended: each has its line.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, TcpServer, TestHttpServer, TlsClient, TlsSettings, connect, reset, run,
    wait_for,
};
use http::Request;
use rustix::process::Signal;
use serde_json::Value;

use super::{log, path, setup, wait_for_lines};
use crate::http::HTTP;
use crate::{http2, http3};

/// Waits until the server has received something on each of this number of connections.
fn wait_until_asked(accepted: &Mutex<Vec<TcpStream>>, count: usize) {
    wait_for("requests at the server", || (accepted.lock().unwrap().len() == count).then_some(()));
    for stream in accepted.lock().unwrap().iter_mut() {
        stream.read_exact(&mut [0; 4]).unwrap();
    }
}

/// Checks the line of a request whose server never responded.
fn expect_cut(line: &Value, version: &str, reason: &str) {
    expect_cut_in("response_head", line, version, reason);
    assert!(line["status"].is_null(), "{line}");
}

/// Checks the line of a request that was cut in this phase.
fn expect_cut_in(phase: &str, line: &Value, version: &str, reason: &str) {
    for (field, value) in [
        ("http_version", version),
        ("method", "GET"),
        ("server", "pool/a"),
        ("termination", "cut"),
        ("reason", reason),
        ("phase", phase),
    ] {
        assert_eq!(line[field], value, "{field}: {line}");
    }
}

/// Sends a request on each of two new connections: over HTTP/1.1, and over HTTP/2. Returns the
/// connections.
fn request_over_both_versions(lab: &Loopback) -> [TcpStream; 2] {
    let http2 = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*http2::frames::frame(4, 0, 0, &[])].concat();
    let http2 = [http2, http2::frames::frame(1, 5, 1, b"\x82\x86\x84\x41\x01a")].concat();
    [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], &http2].map(|request| {
        let mut client = connect(lab.vip());
        client.write_all(request).unwrap();
        client
    })
}

/// Kills all connections with `convey flows kill`.
fn kill_all(balancer: &BalancerProcess) {
    let flows = run(balancer.command().args(["flows", "--json"])).stdout;
    let flows: Value = serde_json::from_str(&flows).unwrap();
    for flow in flows["flows"].as_array().unwrap() {
        let killed = run(balancer.command().args(["flows", "kill", flow["id"].as_str().unwrap()]));
        assert_eq!(killed.code, Some(0), "{killed:?}");
    }
}

pub(super) fn requests_of_killed_connections_have_lines() {
    let lab = Loopback::new();
    let (_server, accepted) = TcpServer::holding(lab.server(1));
    let setup = setup(&lab).frontend(HTTP).health("kind = \"none\"");
    let balancer = BalancerProcess::start(&lab, &setup);
    let _held = request_over_both_versions(&lab);
    wait_until_asked(&accepted, 2);
    kill_all(&balancer);
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["http_version"].to_string());
    expect_cut(&lines[0], "1.1", "killed");
    expect_cut(&lines[1], "2", "killed");
    balancer.wait_for_stat("/frontends/web/requests/early_ends/response_head", 2);
}

pub(super) fn downloads_that_are_cut_have_and_count_their_status() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart")?;
        // Waits until convey closes the connection.
        stream.read(&mut [0]).map(drop)
    });
    let setup = setup(&lab).frontend(HTTP).health("kind = \"none\"");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut clients = request_over_both_versions(&lab);
    for client in &mut clients {
        let (mut received, mut byte) = (Vec::new(), [0]);
        while !received.ends_with(b"part") {
            client.read_exact(&mut byte).unwrap();
            received.push(byte[0]);
        }
    }
    kill_all(&balancer);
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["http_version"].to_string());
    for (line, version) in lines.iter().zip(["1.1", "2"]) {
        expect_cut_in("bodies", line, version, "killed");
        assert_eq!(line["status"], 200, "{line}");
    }
    balancer.wait_for_stat("/frontends/web/requests/early_ends/bodies", 2);
    let metrics = balancer.page("/metrics").1;
    for labels in [
        r#"frontend_http_responses_total{frontend="web",code="2xx"} 2"#,
        r#"route_http_responses_total{frontend="web",route="default",code="2xx"} 2"#,
        r#"server_http_responses_total{backend="pool",server="a",code="2xx"} 2"#,
    ] {
        assert!(metrics.contains(&format!("\nconvey_{labels}\n")), "no {labels} in {metrics}");
    }
}

pub(super) fn requests_cut_at_the_end_of_a_stop_have_lines() {
    let lab = Loopback::new();
    let authority = http3::authority(&lab);
    let (_server, accepted) = TcpServer::holding(lab.server(1));
    let setup = http3::site(&lab, "").health("kind = \"none\"").timeouts("drain = 0.1");
    let mut balancer = BalancerProcess::start(&lab, &setup.and(&log(&lab, "format = 'json'")));
    let settings = TlsSettings::trusting(&authority).client();
    let mut http1 = TlsClient::connect(lab.vip(), "site.example", &settings).unwrap();
    http1.write_all(b"GET / HTTP/1.1\r\nHost: site.example\r\n\r\n").unwrap();
    http2::block_on(async {
        let client = http3::client::Clients::trusting(&authority).connect(lab.vip()).await;
        let request = Request::get(http3::client::uri("/")).body(()).unwrap();
        let mut call = client.begin(request).await.unwrap();
        call.finish().await.unwrap();
        while accepted.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        wait_until_asked(&accepted, 2);
        balancer.signal(Signal::TERM);
        assert_eq!(balancer.wait(), 0);
    });
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["http_version"].to_string());
    expect_cut(&lines[0], "1.1", "cut");
    expect_cut(&lines[1], "3", "cut");
}

/// The head announces an empty body, and the stream continues.
pub(super) fn request_cut_before_its_empty_body_has_ended_has_a_line() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab).frontend(HTTP).health("kind = \"none\""));
    let mut client = connect(lab.vip());
    let head = b"\x82\x86\x84\x41\x01a";
    let held = http2::frames::frame(1, 4, 1, &[&head[..], b"\x0f\x0d\x010"].concat());
    let whole = http2::frames::frame(1, 5, 3, head);
    let settings = http2::frames::frame(4, 0, 0, &[]);
    client.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*settings, &held, &whole].concat()).unwrap();
    // convey has the first head once it responds to the second one.
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", 1);
    kill_all(&balancer);
    let mut lines = wait_for_lines(&path(&lab), 2);
    lines.sort_by_key(|line| line["termination"].to_string());
    for (field, value) in
        [("method", "GET"), ("termination", "cut"), ("reason", "killed"), ("phase", "request_head")]
    {
        assert_eq!(lines[1][field], value, "{field}: {}", lines[1]);
    }
    balancer.wait_for_stat("/frontends/web/requests/early_ends/request_head", 1);
}

/// The client has no window for the body of the 502, and then resets its stream.
pub(super) fn local_reply_whose_client_leaves_keeps_its_reason_in_the_log() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |stream| {
        reset(stream);
        Ok(())
    });
    let setup = setup(&lab).frontend(HTTP).health("kind = \"none\"");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = connect(lab.vip());
    let no_window = http2::frames::frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let request = http2::frames::frame(1, 5, 1, b"\x82\x86\x84\x41\x01a");
    client.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*no_window, &request].concat()).unwrap();
    balancer.wait_for_stat("/frontends/web/requests/local_replies/server_reset", 1);
    client.write_all(&http2::frames::frame(3, 0, 1, &[0, 0, 0, 8])).unwrap();
    let line = &wait_for_lines(&path(&lab), 1)[0];
    for (field, value) in [("termination", "refused"), ("reason", "server_reset"), ("answered_by", "convey")]
    {
        assert_eq!(line[field], value, "{field}: {line}");
    }
    assert_eq!(line["status"], 502, "{line}");
}
