//! Mode http: failed requests that another server gets, by the rules `retry`.

use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use convey_testkit::{
    BalancerProcess, Loopback, Need, Process, SeenRequest, Setup, TcpServer, TestHttpServer, run, tests,
    tool, wait_for,
};
use http::Request;
use tokio::sync::oneshot;

use crate::http::HTTP;
use crate::http::client::Client;
use crate::http_responses::secure;
use crate::http2::{self, block_on};
use crate::http3::authority;
use crate::http3::client::Clients;

tests!("retries":
    one_of_two_servers_that_answers_503_costs_no_client_a_request,
    retry_on_503_serves_as_many_requests_as_with_haproxy [Need::HAPROXY],
    stream_of_a_server_of_http2_that_answers_503_is_retried,
    post_is_retried_only_if_a_key_allows_it,
    body_is_sent_again_up_to_16_kib,
    last_response_reaches_the_client_after_all_attempts,
    retries_by_status_keep_to_the_budget,
    slow_attempt_goes_to_another_server_after_per_try_timeout,
    rules_without_connect_and_reset_retry_neither,
    retry_is_traced_logged_and_explained,
);

/// Rules of a route for the status 503.
const ON_503: &str = "retry = { on = [\"503\"] }";

/// Answers with status 503 and a body.
fn busy(_: &SeenRequest, stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")
}

/// A frontend whose route has these keys, with two servers.
fn with_route(lab: &Loopback, keys: &str) -> Setup {
    let route = format!("[[frontends.web.routes]]\nhost = \"a\"\nbackend = \"pool\"\n{keys}");
    let setup = Setup::new(lab).frontend(&format!("{HTTP}\n{route}")).health("kind = \"none\"");
    setup.server("a", lab.server(1), "").server("b", lab.server(2), "")
}

/// Statuses of 40 requests over one connection of HTTP/1.1, and over one of HTTP/2.
fn statuses_of_40(to: SocketAddr) -> [Vec<u16>; 2] {
    let mut client = Client::new(to);
    let over_http1 = (0..40).map(|_| client.get("a", "/").status).collect();
    let over_http2 = block_on(async {
        let client = http2::client::Client::connect(to).await;
        let mut statuses = Vec::new();
        for _ in 0..40 {
            statuses.push(client.get("http://a/").await.status);
        }
        statuses
    });
    [over_http1, over_http2]
}

fn one_of_two_servers_that_answers_503_costs_no_client_a_request() {
    let lab = Loopback::new();
    let (busy, good) =
        (TestHttpServer::start(lab.server(1), busy), TestHttpServer::named("b", lab.server(2)));
    let balancer = BalancerProcess::start(&lab, &with_route(&lab, ON_503));
    assert_eq!(statuses_of_40(lab.vip()), [[200; 40], [200; 40]]);
    assert_eq!((busy.seen().len(), good.seen().len()), (40, 80));
    assert!(busy.connections() + good.connections() < 20, "convey keeps the connections");
    balancer.wait_for_stat("/backends/pool/servers/b/retries", 40);
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    // Rules of the frontend hold for its default route, too.
    let default = Setup::new(&lab).frontend(&format!("{HTTP}\n{ON_503}")).health("kind = \"none\"");
    balancer.save(&default.server("a", lab.server(1), "").server("b", lab.server(2), ""));
    wait_for("rules of the frontend", || {
        statuses_of_40(lab.vip()).iter().flatten().all(|status| *status == 200).then_some(())
    });
}

fn retry_on_503_serves_as_many_requests_as_with_haproxy() {
    let lab = Loopback::new();
    let (_busy, _good) =
        (TestHttpServer::start(lab.server(1), busy), TestHttpServer::named("b", lab.server(2)));
    let _balancer = BalancerProcess::start(&lab, &with_route(&lab, ON_503));
    let haproxy = SocketAddr::new(lab.ip(21), 8080);
    let (a, b) = (lab.server(1), lab.server(2));
    let config = format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n\
         frontend web\n bind {haproxy}\n default_backend pool\n\
         backend pool\n retry-on 503\n retries 2\n option redispatch 1\n server a {a}\n server b {b}\n"
    );
    let file = lab.directory().join("haproxy.cfg");
    fs::write(&file, config).unwrap();
    let mut command = std::process::Command::new(tool("haproxy").unwrap());
    let _haproxy = Process::spawn(command.args(["-db", "-q", "-f"]).arg(file).stderr(Stdio::null()));
    wait_for("HAProxy", || TcpStream::connect(haproxy).ok());
    for to in [haproxy, lab.vip()] {
        let mut client = Client::new(to);
        let served = (0..40).filter(|_| client.get("a", "/").status == 200).count();
        assert_eq!(served, 40, "{to}");
    }
}

/// Server of HTTP/2 that answers each request with status 503 and a body.
struct BusyHttp2 {
    seen: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    _stop: oneshot::Sender<()>,
}

impl BusyHttp2 {
    fn start(addr: SocketAddr) -> BusyHttp2 {
        let listener = std::net::TcpListener::bind(addr).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (seen, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (requests, accepted) = (seen.clone(), connections.clone());
        thread::spawn(move || {
            block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        accepted.fetch_add(1, Ordering::Relaxed);
                        tokio::spawn(refuse_all(stream, requests.clone()));
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        BusyHttp2 { seen, connections, _stop: stop }
    }
}

/// Errors are due to the other side, which has closed.
async fn refuse_all(stream: tokio::net::TcpStream, seen: Arc<AtomicUsize>) -> Result<(), h2::Error> {
    let mut connection = h2::server::handshake(stream).await?;
    while let Some(asked) = connection.accept().await {
        let (_, mut respond) = asked?;
        seen.fetch_add(1, Ordering::Relaxed);
        let response = http::Response::builder().status(503).body(()).unwrap();
        respond.send_response(response, false)?.send_data("busy".into(), true)?;
    }
    Ok(())
}

fn stream_of_a_server_of_http2_that_answers_503_is_retried() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let busy = BusyHttp2::start(lab.server(1));
    let good = http2::server::EchoServer::start(lab.server(2));
    let route = format!("[[frontends.web.routes]]\nbackend = \"pool\"\n{ON_503}\n");
    let setup = secure(&lab, &route).backend("protocol = \"h2\"").health("kind = \"none\"");
    let setup = setup.server("other", lab.server(2), "").to_string();
    let balancer = BalancerProcess::start(&lab, &setup.replacen("backend = \"pool\"", "", 1));
    let ca = authority.save(lab.directory()).display().to_string();
    let port = lab.vip().port();
    let resolve = format!("site.example:{port}:{}", lab.vip().ip());
    let url = format!("https://site.example:{port}/");
    for version in ["--http1.1", "--http2"] {
        for _ in 0..10 {
            let args = [
                version,
                "--cacert",
                &ca,
                "--resolve",
                &resolve,
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                &url,
            ];
            assert_eq!(crate::curl::curl(&args), "200", "{version}");
        }
    }
    block_on(async {
        let client = Clients::trusting(&authority).connect(lab.vip()).await;
        for _ in 0..10 {
            assert_eq!(client.get("/").await.status, 200);
        }
    });
    assert_eq!((busy.seen.load(Ordering::Relaxed), good.seen().len()), (15, 30));
    assert!(busy.connections.load(Ordering::Relaxed) <= 2, "convey keeps the connections");
    balancer.wait_for_stat("/backends/pool/servers/other/retries", 15);
}

/// Sends this many requests with a body of this length, in turn over HTTP/1.1 and HTTP/2. Returns
/// the statuses.
fn send(to: SocketAddr, method: &str, body: usize, times: usize) -> Vec<u16> {
    let text = "x".repeat(body);
    let of_one = |n: usize| match n % 4 < 2 {
        true => {
            let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: {body}\r\n\r\n");
            Client::new(to).send(&(head + &text)).status
        }
        false => block_on(async {
            let client = http2::client::Client::connect(to).await;
            let request = Request::builder().method(method).uri("http://a/").body(()).unwrap();
            client.post(request, &text, None).await.status
        }),
    };
    (0..times).map(of_one).collect()
}

fn post_is_retried_only_if_a_key_allows_it() {
    let lab = Loopback::new();
    let (_busy, good) =
        (TestHttpServer::start(lab.server(1), busy), TestHttpServer::named("b", lab.server(2)));
    let balancer = BalancerProcess::start(&lab, &with_route(&lab, ON_503));
    let mut statuses = send(lab.vip(), "POST", 4, 8);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 503, 503, 503, 503]);
    balancer.save(&with_route(&lab, "retry = { on = [\"503\"], non_idempotent = true }"));
    wait_for("retries of POST", || (send(lab.vip(), "POST", 4, 8) == [200; 8]).then_some(()));
    assert!(good.seen().iter().all(|request| request.body == b"xxxx"));
}

fn body_is_sent_again_up_to_16_kib() {
    let lab = Loopback::new();
    let (busy, good) =
        (TestHttpServer::start(lab.server(1), busy), TestHttpServer::named("b", lab.server(2)));
    let _balancer = BalancerProcess::start(&lab, &with_route(&lab, ON_503));
    assert_eq!(send(lab.vip(), "PUT", 16_000, 8), [200; 8]);
    assert!(busy.seen().iter().chain(&good.seen()).all(|request| request.body == vec![b'x'; 16_000]));
    assert_eq!((busy.seen().len(), good.seen().len()), (4, 8));
    let mut statuses = send(lab.vip(), "PUT", 100_000, 8);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 503, 503, 503, 503]);
    // Another request follows on the same connection.
    let mut client = Client::new(lab.vip());
    for _ in 0..4 {
        let put = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
        assert_eq!(client.send(put).status, 200);
        assert_eq!(client.get("a", "/").status, 200);
    }
}

fn last_response_reaches_the_client_after_all_attempts() {
    let lab = Loopback::new();
    let servers = [1, 2].map(|n| TestHttpServer::start(lab.server(n), busy));
    let seen = || servers.iter().map(|server| server.seen().len()).sum::<usize>();
    let balancer =
        BalancerProcess::start(&lab, &with_route(&lab, "retry = { on = [\"503\"], attempts = 5 }"));
    let answer = Client::new(lab.vip()).get("a", "/");
    assert_eq!((answer.status, &*answer.body), (503, "busy"), "the server's response");
    assert_eq!(seen(), 2, "each server gets the request once");
    let answer = block_on(async { http2::client::Client::connect(lab.vip()).await.get("http://a/").await });
    assert_eq!((answer.status, &*answer.body, seen()), (503, "busy", 4));
    balancer.save(&with_route(&lab, "retry = { on = [\"503\"], attempts = 1 }"));
    wait_for("a single attempt", || {
        let before = seen();
        assert_eq!(Client::new(lab.vip()).get("a", "/").status, 503);
        (seen() == before + 1).then_some(())
    });
}

fn retries_by_status_keep_to_the_budget() {
    let lab = Loopback::new();
    let servers = [1, 2].map(|n| TestHttpServer::start(lab.server(n), busy));
    let _balancer = BalancerProcess::start(&lab, &with_route(&lab, ON_503));
    let mut client = Client::new(lab.vip());
    for _ in 0..200 {
        assert_eq!(client.get("a", "/").status, 503);
    }
    let seen: usize = servers.iter().map(|server| server.seen().len()).sum();
    assert!((305..=315).contains(&seen), "{seen} attempts: ten at first, and one for two requests");
}

fn slow_attempt_goes_to_another_server_after_per_try_timeout() {
    let lab = Loopback::new();
    let (_silent, _good) = (TcpServer::silent(lab.server(1)), TestHttpServer::named("b", lab.server(2)));
    let keys = "retry = { on = [\"timeout\"], per_try_timeout = 0.3 }";
    let balancer = BalancerProcess::start(&lab, &with_route(&lab, keys));
    let began = Instant::now();
    let over_http1 = || Client::new(lab.vip()).get("a", "/").status;
    let over_http2 =
        || block_on(async { http2::client::Client::connect(lab.vip()).await.get("http://a/").await.status });
    for _ in 0..2 {
        assert_eq!((over_http1(), over_http2()), (200, 200));
    }
    assert_eq!(send(lab.vip(), "PUT", 9, 4), [200; 4]);
    assert!(began.elapsed() > Duration::from_millis(900), "three attempts or more took their time");
    // No attempt is left for the request.
    balancer.save(&with_route(&lab, &keys.replace("0.3", "0.3, attempts = 1")));
    wait_for("a single attempt", || [over_http1(), over_http1()].contains(&504).then_some(()));
}

fn rules_without_connect_and_reset_retry_neither() {
    let lab = Loopback::new();
    let closing =
        TcpServer::start(lab.server(2), |mut stream| crate::http::client::read_head(&mut stream).map(drop));
    let balancer = BalancerProcess::start(&lab, &with_route(&lab, ON_503));
    let mut statuses = [0; 4].map(|_| Client::new(lab.vip()).get("a", "/").status);
    statuses.sort_unstable();
    assert_eq!(statuses, [502, 502, 503, 503], "resets, and refused connects");
    let _good = TestHttpServer::named("a", lab.server(1));
    balancer.save(&with_route(&lab, "retry = { on = [\"reset\"] }"));
    wait_for("retries of resets", || {
        let statuses = [0; 4].map(|_| Client::new(lab.vip()).get("a", "/").status);
        (statuses == [200; 4]).then_some(())
    });
    drop(closing);
    wait_for("a refused connect", || (Client::new(lab.vip()).get("a", "/").status == 503).then_some(()));
}

fn retry_is_traced_logged_and_explained() {
    let lab = Loopback::new();
    let (_busy, _good) =
        (TestHttpServer::start(lab.server(1), busy), TestHttpServer::named("b", lab.server(2)));
    let log = lab.directory().join("access.log");
    let logged = format!("[access_log]\noutput = {:?}\nformat = \"json\"\n", log.display().to_string());
    let setup = with_route(&lab, "retry = { on = [\"503\"], per_try_timeout = 2 }").and(&logged);
    let balancer = BalancerProcess::start(&lab, &setup);
    for _ in 0..2 {
        assert_eq!(Client::new(lab.vip()).get("a", "/").status, 200);
    }
    wait_for("a line with a retry", || {
        let text = fs::read_to_string(&log).ok()?;
        let line = text.lines().find(|line| line.contains("\"retries\":1"))?;
        assert!(line.contains("\"status\":200") && line.contains("\"server\":\"pool/b\""), "{line}");
        Some(())
    });
    let (_, metrics) = balancer.page("/metrics");
    let line =
        |text: &str| metrics.lines().any(|line| line.contains("frontend=\"web\"") && line.contains(text));
    assert!(!line("class=\"5xx\"} 1"), "the client got no 503: {metrics}");
    let ran = run(balancer.command().args(["explain", "192.0.2.7", "web", "http://a/"]));
    assert!(ran.stdout.contains("retry: on 503, at most 3 attempts of 2s each"), "{ran:?}");
}
