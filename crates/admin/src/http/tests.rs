//! Tests of the statistics address with clients over real sockets.

mod described;
mod refused;
mod token;
mod traced;

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use convey_control::{EventLog, OperatorRequest, ReloadHistory};
use convey_model::{LogLevel, Timestamp};
use convey_snapshot::stats::Counter;
use convey_snapshot::{NewestSnapshot, Snapshot, fixture};
use convey_trace::TraceHub;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::{Method, Response, StatusCode};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::{FlowSources, StatsSource, routes};

/// State from which answers are built, as the tests set it.
struct Admin {
    snapshot: Arc<NewestSnapshot>,
    draining: Arc<AtomicBool>,
    events: Arc<EventLog>,
    loads: Arc<ReloadHistory>,
    trace: Arc<TraceHub>,
    routes: Router,
    /// Requests of operators. No task answers them.
    requests: mpsc::Receiver<OperatorRequest>,
}

fn admin() -> Admin {
    let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:8081"), fixture::up())]);
    let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pool);
    let snapshot = Arc::new(NewestSnapshot::new(fixture::snapshot(vec![frontend], vec![pool])));
    let draining = Arc::new(AtomicBool::new(false));
    let (request, requests) = mpsc::channel(1);
    let (events, loads) = (Arc::new(EventLog::default()), Arc::new(ReloadHistory::default()));
    let trace = Arc::new(TraceHub::default());
    let source = StatsSource {
        acme: Arc::default(),
        announce: Arc::default(),
        remote: Arc::default(),
        snapshot: snapshot.clone(),
        started: SystemTime::UNIX_EPOCH,
        now: Box::new(|| Timestamp(5_000_000_000)),
        draining: draining.clone(),
        packets: None,
        dropped_log_lines: || 3,
        log_level: LogLevel::default,
        loads: loads.clone(),
        access_log: Arc::default(),
        events: events.clone(),
        trace: trace.clone(),
        flows: FlowSources::default(),
        data_path: Default::default(),
    };
    let routes = routes(source, request).unwrap();
    Admin { snapshot, draining, events, loads, trace, routes, requests }
}

async fn start(limits: ConnectionLimits, admin: &Admin) -> SocketAddr {
    let listener = TcpListener::bind("127.77.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let routes = admin.routes.clone();
    tokio::spawn(async move { serve_within(limits, &listener, routes, &mut JoinSet::new()).await });
    addr
}

async fn ask(addr: SocketAddr, method: Method, path: &str) -> Response<String> {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut client, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).body(Empty::<Bytes>::new()).unwrap();
    let (head, body) = client.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(head, String::from_utf8(body.into()).unwrap())
}

#[tokio::test]
async fn stats_are_json_of_the_snapshot_at_that_moment() {
    let admin = admin();
    let addr = start(LIMITS, &admin).await;
    let stats = |answer: Response<String>| serde_json::from_str::<Value>(answer.body()).unwrap();

    let answer = ask(addr, Method::GET, "/stats").await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
    assert!(answer.body().ends_with("}\n"));
    let before = stats(answer);
    assert_eq!(before["uptime_seconds"], 5);
    assert_eq!(before["frontends"]["web"]["current_connections"], 0);
    assert_eq!(before["backends"]["app"]["servers"]["a"]["eligible"], true);

    admin.snapshot.load().frontends[0].live.traffic.add(0, Counter::Opened, 1);
    let after = stats(ask(addr, Method::GET, "/stats?pretty").await);
    assert_eq!(after["frontends"]["web"]["current_connections"], 1);

    admin.snapshot.publish(Arc::new(Snapshot::empty(1)));
    let emptied = stats(ask(addr, Method::GET, "/stats").await);
    assert_eq!(emptied["frontends"], serde_json::json!({}));
}

#[tokio::test]
async fn metrics_come_with_the_content_type_prometheus_expects() {
    let addr = start(LIMITS, &admin()).await;
    let answer = ask(addr, Method::GET, "/metrics").await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; version=0.0.4");
    assert!(answer.body().contains("convey_server_up{backend=\"app\",server=\"a\"} 1\n"));
    assert!(answer.body().contains("process_resident_memory_bytes "));
}

#[tokio::test]
async fn health_turns_to_draining_when_the_program_stops() {
    let admin = admin();
    let addr = start(LIMITS, &admin).await;
    let answer = ask(addr, Method::GET, "/healthz").await;
    assert_eq!((answer.status(), answer.body().as_str()), (StatusCode::OK, "ok\n"));
    admin.draining.store(true, Ordering::Relaxed);
    let answer = ask(addr, Method::GET, "/healthz").await;
    assert_eq!((answer.status(), answer.body().as_str()), (StatusCode::OK, "draining\n"));
}

#[tokio::test]
async fn readiness_tells_each_frontend_that_cannot_serve() {
    let admin = admin();
    let addr = start(LIMITS, &admin).await;
    let ready = |answer: Response<String>| (answer.status().as_u16(), answer.into_body());
    assert_eq!(ready(ask(addr, Method::GET, "/readyz").await), (200, "ready\n".to_owned()));
    let down = fixture::down("refused", Duration::ZERO);
    let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:8081"), down)]);
    let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pool);
    admin.snapshot.publish(Arc::new(fixture::snapshot(vec![frontend], vec![pool])));
    let why = "frontend web: no server of backend app can be chosen (1 of 1 are down)\n".to_owned();
    assert_eq!(ready(ask(addr, Method::GET, "/readyz").await), (503, why));
    assert_eq!(ask(addr, Method::GET, "/healthz").await.status(), StatusCode::OK, "it is alive");
    admin.draining.store(true, Ordering::Relaxed);
    assert_eq!(ask(addr, Method::GET, "/readyz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_wrong_path_or_method_is_told_what_is_right() {
    let addr = start(LIMITS, &admin()).await;
    let answer = ask(addr, Method::GET, "/stat").await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    for path in ["/stats", "/metrics", "/healthz", "/readyz"] {
        assert!(answer.body().contains(path), "{}", answer.body());
        let answer = ask(addr, Method::POST, path).await;
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(answer.headers()[ALLOW], "GET,HEAD");
    }
}

#[tokio::test]
async fn the_dashboard_is_a_page_whose_browser_runs_nothing_from_elsewhere() {
    let addr = start(LIMITS, &admin()).await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard", "text/html; charset=utf-8"),
        ("/dashboard/main.js", "text/javascript; charset=utf-8"),
        ("/dashboard/style.css", "text/css; charset=utf-8"),
        ("/dashboard/icon.svg", "image/svg+xml"),
    ] {
        let answer = ask(addr, Method::GET, path).await;
        let header = |name: &str| answer.headers()[name].to_str().unwrap();
        assert_eq!((answer.status(), header("content-type")), (StatusCode::OK, kind), "{path}");
        assert!(header("content-security-policy").starts_with("default-src 'none'; script-src 'self';"));
        assert!(header("content-security-policy").ends_with("frame-ancestors 'none'"));
        assert_eq!([header("x-content-type-options"), header("referrer-policy")], ["nosniff", "no-referrer"]);
    }
    assert_eq!(ask(addr, Method::GET, "/dashboard/mod.rs").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(ask(addr, Method::POST, "/").await.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn head_answers_as_get_does_without_the_body() {
    let addr = start(LIMITS, &admin()).await;
    let answer = ask(addr, Method::HEAD, "/healthz").await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-length"], "3");
    assert_eq!(answer.body(), "");
}

/// Waits until the server sends bytes, and returns their number. Returns 0 if the server closes the
/// connection.
async fn heard(client: &TcpStream) -> usize {
    let heard = async {
        loop {
            client.readable().await.unwrap();
            match client.try_read(&mut [0; 64]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                heard => return heard.unwrap_or(0),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), heard).await.expect("the server does nothing")
}

#[tokio::test]
async fn many_silent_clients_do_not_keep_another_one_out() {
    let limits = ConnectionLimits { connections: 4, lifetime: Duration::from_secs(3600) };
    let addr = start(limits, &admin()).await;
    let mut silent = Vec::new();
    for _ in 0..limits.connections {
        silent.push(TcpStream::connect(addr).await.unwrap());
    }
    assert_eq!(ask(addr, Method::GET, "/healthz").await.status(), StatusCode::OK);
    assert_eq!(heard(&silent[0]).await, 0, "the oldest makes room");
    assert_eq!(silent[1].try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_burst_of_clients_is_answered_to_the_last() {
    let limits = ConnectionLimits { connections: 4, lifetime: Duration::from_secs(3600) };
    let addr = start(limits, &admin()).await;
    // The server task runs only after all clients have sent their requests.
    let burst: Vec<_> = (0..40)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(addr).unwrap();
            client.write_all(b"GET /healthz HTTP/1.1\r\nHost: convey\r\n\r\n").unwrap();
            client.set_nonblocking(true).unwrap();
            TcpStream::from_std(client).unwrap()
        })
        .collect();
    for client in &burst {
        assert!(heard(client).await > 0, "no answer");
    }
}

#[tokio::test]
async fn a_thousand_who_read_nothing_keep_nobody_out_for_long() {
    let limits = ConnectionLimits { connections: 8, lifetime: Duration::from_secs(3600) };
    let addr = start(limits, &admin()).await;
    let rude: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
    let asked = timeout(Duration::from_secs(20), ask(addr, Method::GET, "/healthz")).await;
    assert_eq!(asked.expect("its turn comes").status(), StatusCode::OK);
    drop(rude);
}

#[tokio::test]
async fn a_request_without_end_is_refused() {
    let addr = start(LIMITS, &admin()).await;
    let client = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: convey\r\nCookie: {}", "a".repeat(2 * MAX_REQUEST));
    for part in request.as_bytes().chunks(4096) {
        client.writable().await.unwrap();
        // The server may close the connection before it has read all of a refused request.
        let _ = client.try_write(part);
    }
    client.readable().await.unwrap();
    let mut answer = [0; 64];
    let length = client.try_read(&mut answer).unwrap_or(0);
    assert!(length == 0 || answer.starts_with(b"HTTP/1.1 431 "), "{:?}", &answer[..length]);
}

#[tokio::test]
async fn a_client_that_never_finishes_its_request_is_cut() {
    let limits = ConnectionLimits { connections: 4, lifetime: Duration::from_millis(50) };
    let addr = start(limits, &admin()).await;
    let client = TcpStream::connect(addr).await.unwrap();
    client.writable().await.unwrap();
    client.try_write(b"GET /stats HTTP/1.1\r\nHost: con").unwrap();
    assert_eq!(heard(&client).await, 0, "half a request gets no answer");
}
#[test]
fn a_lack_of_descriptors_makes_a_line_in_ten_seconds() {
    let (mut log_limit, start) = (LogLimit::once_in(LOG_PERIOD), Instant::now());
    let lines = (0..301).filter_map(|n| log_limit.admit(start + n * ACCEPT_PAUSE));
    assert_eq!(lines.map(|suppressed| suppressed.0).collect::<Vec<u64>>(), [0, 99, 99, 99]);
}
