//! Mode http: `timeouts.request`, the time limit for a whole request.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, PATIENCE, Setup, TcpServer, TestAuthority, connect, tests, wait_for,
};
use http::Request;

use crate::http::client::{Client, read_head};
use crate::http_responses::secure;
use crate::http2::block_on;
use crate::http3::authority;
use crate::http3::client::{Clients, read, uri};

tests!("http_deadline":
    request_without_response_in_time_gets_a_504_in_each_version [Need::CURL],
    response_that_takes_too_long_is_reset_in_each_version [Need::CURL],
    upload_that_takes_too_long_gets_a_408,
    request_that_waits_too_long_for_a_server_gets_a_504,
    head_that_takes_too_long_gets_a_408_and_reaches_no_server,
    slow_clients_eject_no_server,
    server_that_uses_up_the_time_of_requests_is_ejected,
    tunnel_has_no_time_limit,
);

const VERSIONS: [&str; 2] = ["--http1.1", "--http2"];

/// Exit status and HTTP status of curl.
fn curl(lab: &Loopback, authority: &TestAuthority, version: &str) -> (Option<i32>, String) {
    let port = lab.vip().port();
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", version, "--cacert"]);
    command.arg(authority.save(lab.directory())).arg("--resolve");
    command.arg(format!("site.example:{port}:{}", lab.vip().ip()));
    let ran = command.arg(format!("https://site.example:{port}/")).output().unwrap();
    (ran.status.code(), String::from_utf8(ran.stdout).unwrap())
}

/// Server whose responses begin at once, move all the time, and have no end.
fn endless(addr: SocketAddr) -> TcpServer {
    TcpServer::start(addr, |mut stream| {
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        loop {
            stream.write_all(b"1\r\na\r\n")?;
            thread::sleep(Duration::from_millis(10));
        }
    })
}

/// Plain frontend whose requests may take 0.3 seconds.
fn plain(lab: &Loopback, lines: &str) -> Setup {
    Setup::new(lab).frontend("mode = \"http\"\ntimeouts.request = 0.3").server("a", lab.server(1), lines)
}

fn request_without_response_in_time_gets_a_504_in_each_version() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TcpServer::silent(lab.server(1));
    let route = "[[frontends.web.routes]]\nbackend = \"pool\"\ntimeouts.request = 0.3\n";
    let setup = secure(&lab, route).to_string().replacen("backend = \"pool\"", "", 1);
    let balancer = BalancerProcess::start(&lab, &setup);
    for version in VERSIONS {
        assert_eq!(curl(&lab, &authority, version), (Some(0), "504".to_owned()), "{version}");
    }
    block_on(async {
        let client = Clients::trusting(&authority).connect(lab.vip()).await;
        assert_eq!(client.get("/").await.status, 504);
    });
    let (_, metrics) = balancer.page("/metrics");
    assert!(metrics.contains("reason=\"request_deadline\"} 3"), "{metrics}");
}

fn response_that_takes_too_long_is_reset_in_each_version() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = endless(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &secure(&lab, "timeouts.request = 0.3"));
    for version in VERSIONS {
        let (exit, status) = curl(&lab, &authority, version);
        assert_eq!(status, "200", "{version}");
        assert!(exit.is_some_and(|code| code != 0 && code != 28), "{version} ended with {exit:?}");
    }
    block_on(async {
        let client = Clients::trusting(&authority).connect(lab.vip()).await;
        let mut call = client.begin(Request::get(uri("/")).body(()).unwrap()).await.unwrap();
        call.finish().await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, read(&mut call)).await.expect("the stream ends");
        assert!(ended.is_err(), "{ended:?}");
    });
    balancer.wait_for_stat("/frontends/web/ended/request_deadline", 1);
    balancer.wait_for_stat("/frontends/web/drops/request_deadline", 2);
}

fn upload_that_takes_too_long_gets_a_408() {
    let lab = Loopback::new();
    let _server = TcpServer::silent(lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &plain(&lab, ""));
    let mut client = Client::new(lab.vip());
    client.0.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n").unwrap();
    let mut writer = client.0.try_clone().unwrap();
    let upload = thread::spawn(move || {
        // The upload never pauses, until convey closes the connection.
        while writer.write_all(b"a").is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(client.read().status, 408);
    drop(client.0.shutdown(std::net::Shutdown::Both));
    upload.join().unwrap();
}

fn request_that_waits_too_long_for_a_server_gets_a_504() {
    let lab = Loopback::new();
    let _server = endless(lab.server(1));
    let free = "[[frontends.web.routes]]\npath = \"/held\"\nbackend = \"pool\"\ntimeouts.request = 600\n";
    let setup = plain(&lab, "max_connections = 1").to_string();
    let setup = setup.replacen("timeouts.request = 0.3", &format!("timeouts.request = 0.3\n{free}"), 1);
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut holds = connect(lab.vip());
    holds.write_all(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    read_head(&mut holds).unwrap();
    assert_eq!(Client::new(lab.vip()).get("a", "/").status, 504);
    balancer.wait_for_stat("/frontends/web/waiting_connections", 0);
}

fn tunnel_has_no_time_limit() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        let head = read_head(&mut stream)?;
        if head.starts_with("GET /silent") {
            return std::io::copy(&mut stream, &mut std::io::sink()).map(drop);
        }
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n")?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream).map(drop)
    });
    let _balancer = BalancerProcess::start(&lab, &plain(&lab, ""));
    let mut tunnel = connect(lab.vip());
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    assert!(read_head(&mut tunnel).unwrap().starts_with("HTTP/1.1 101 "));
    // The limit of this later request passes after the one that the tunnel would have.
    assert_eq!(Client::new(lab.vip()).get("a", "/silent").status, 504);
    let mut echoed = [0; 4];
    tunnel.write_all(b"ping").unwrap();
    tunnel.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"ping");
}

/// Sends the head of a request, except its last line for so long.
fn slow_head(at: SocketAddr, pause: Duration) -> u16 {
    let mut client = Client::new(at);
    client.0.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").unwrap();
    thread::sleep(pause);
    client.0.write_all(b"\r\n").unwrap();
    client.read().status
}

fn head_that_takes_too_long_gets_a_408_and_reaches_no_server() {
    let lab = Loopback::new();
    let balancer = BalancerProcess::start(&lab, &plain(&lab, ""));
    assert_eq!(slow_head(lab.vip(), Duration::from_millis(350)), 408);
    assert_eq!(balancer.stat("/backends/pool/servers/a/total_connections"), 0);
    balancer.wait_for_stat("/frontends/web/requests/local_replies/request_timeout", 1);
}

/// Two servers, of which the first failure of a request ejects one. Requests may take a second.
fn ejecting(lab: &Loopback) -> Setup {
    let setup = plain(lab, "").frontend("mode = \"http\"\ntimeouts.request = 1");
    let setup = setup.server("b", lab.server(2), "");
    setup.backend("outlier_detection.consecutive_failures = 1")
}

fn ejections(balancer: &BalancerProcess) -> u64 {
    let of = |server| balancer.stat(&format!("/backends/pool/servers/{server}/ejections"));
    ["a", "b"].map(|server| of(server).as_u64().unwrap()).iter().sum()
}

fn slow_clients_eject_no_server() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::silent(lab.server(n)));
    let balancer = BalancerProcess::start(&lab, &ejecting(&lab));
    for _ in 0..2 {
        assert_eq!(slow_head(lab.vip(), Duration::from_millis(600)), 504);
    }
    balancer.wait_for_stat("/frontends/web/requests/local_replies/request_deadline", 2);
    assert_eq!(ejections(&balancer), 0);
}

fn server_that_uses_up_the_time_of_requests_is_ejected() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::silent(lab.server(n)));
    let balancer = BalancerProcess::start(&lab, &ejecting(&lab));
    assert_eq!(slow_head(lab.vip(), Duration::ZERO), 504);
    wait_for("the server to be ejected", || (ejections(&balancer) == 1).then_some(()));
}
