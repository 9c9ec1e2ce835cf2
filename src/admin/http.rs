//! The HTTP server behind the statistics address.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::{Process, Report, render};
use crate::model::Timestamp;
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// Where answers come from.
pub struct Source {
    /// The state to report on.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The wall-clock time of `Timestamp(0)`.
    pub started: SystemTime,
    /// The clock.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Set once the program takes no new connections and waits for the open ones to end.
    pub draining: Arc<AtomicBool>,
    /// What packet modes count.
    pub packets: Option<Arc<PacketStats>>,
    /// How many lines of the log nobody read in time.
    pub dropped_log_lines: fn() -> u64,
}

/// Answers requests until dropped. One request per connection, and a bounded time and number of
/// connections: nobody can keep others out by being slow.
pub async fn serve(listener: TcpListener, source: Arc<Source>) {
    serve_within(LIMITS, listener, source).await;
}

#[derive(Clone, Copy)]
struct Limits {
    /// Connections open at once; one more ends the oldest.
    connections: usize,
    /// From accepting a connection to its end, whoever is slow.
    lifetime: Duration,
}

const LIMITS: Limits = Limits { connections: 64, lifetime: Duration::from_secs(10) };

/// More than it takes to answer a request that is already there.
const HONEST: Duration = Duration::from_millis(10);

/// Without a pause, a lack of descriptors would make accepting spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn serve_within(limits: Limits, listener: TcpListener, source: Arc<Source>) {
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("statistics: cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        // In a burst of honest clients somebody is done at once; only if all are slow must one go.
        if tasks.len() >= limits.connections
            && tokio::time::timeout(HONEST, tasks.join_next()).await.is_err()
            && let Some(oldest) = open.iter().find(|task| !task.is_finished())
        {
            oldest.abort();
        }
        open.retain(|task| !task.is_finished());
        open.push_back(tasks.spawn(converse(stream, source.clone(), limits.lifetime)));
    }
}

/// A client that goes away or breaks the protocol is its own affair: errors are not reported.
async fn converse(stream: TcpStream, source: Arc<Source>, lifetime: Duration) {
    let service = service_fn(|request| {
        let response = respond(&request, &source);
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    let connection = http.keep_alive(false).serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(lifetime, connection).await;
}

fn respond<B>(request: &Request<B>, source: &Source) -> Response<Full<Bytes>> {
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/stats" | "/metrics" | "/healthz" if !reading => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        "/stats" => page("application/json", json(&source.report())),
        "/metrics" => page(prometheus::TEXT_FORMAT, render(&source.report(), &Process::read())),
        "/healthz" if source.draining.load(Ordering::Relaxed) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        }
        "/healthz" => text(StatusCode::OK, "ok\n"),
        _ => text(StatusCode::NOT_FOUND, "not found; there are /stats, /metrics and /healthz\n"),
    }
}

impl Source {
    fn report(&self) -> Report {
        let report = Report::new(&self.snapshot.load(), self.started, (self.now)());
        report.with_packets(self.packets.as_deref()).with_dropped_log_lines((self.dropped_log_lines)())
    }
}

/// For people as much as for programs: indented, and with the prompt of a shell on a line of its own.
fn json(report: &Report) -> serde_json::Result<String> {
    serde_json::to_string_pretty(report).map(|text| text + "\n")
}

fn page<E: Display>(kind: &'static str, body: Result<String, E>) -> Response<Full<Bytes>> {
    match body {
        Ok(body) => response(StatusCode::OK, kind, body.into()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", body.to_owned().into())
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::SocketAddr;

    use http_body_util::{BodyExt, Empty};
    use hyper::client::conn::http1::handshake;
    use serde_json::Value;

    use super::*;
    use crate::snapshot::fixture;
    use crate::stats::Counter;

    fn source() -> Arc<Source> {
        let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:8081"), fixture::up())]);
        let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pool);
        let snapshot = fixture::snapshot(vec![frontend], vec![pool]);
        Arc::new(Source {
            snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
            started: SystemTime::UNIX_EPOCH,
            now: Box::new(|| Timestamp(5_000_000_000)),
            draining: Arc::default(),
            packets: None,
            dropped_log_lines: || 3,
        })
    }

    async fn start(limits: Limits, source: &Arc<Source>) -> SocketAddr {
        let listener = TcpListener::bind("127.77.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve_within(limits, listener, source.clone()));
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
        let source = source();
        let addr = start(LIMITS, &source).await;
        let stats = |answer: Response<String>| serde_json::from_str::<Value>(answer.body()).unwrap();

        let answer = ask(addr, Method::GET, "/stats").await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
        assert!(answer.body().ends_with("}\n"));
        let before = stats(answer);
        assert_eq!(before["uptime_seconds"], 5);
        assert_eq!(before["frontends"]["web"]["current_connections"], 0);
        assert_eq!(before["backends"]["app"]["servers"]["a"]["eligible"], true);

        source.snapshot.load().frontends[0].live.traffic.add(0, Counter::Opened, 1);
        let after = stats(ask(addr, Method::GET, "/stats?pretty").await);
        assert_eq!(after["frontends"]["web"]["current_connections"], 1);

        source.snapshot.store(Arc::new(Snapshot::empty(1)));
        let emptied = stats(ask(addr, Method::GET, "/stats").await);
        assert_eq!(emptied["frontends"], serde_json::json!({}));
    }

    #[tokio::test]
    async fn metrics_come_with_the_content_type_prometheus_expects() {
        let addr = start(LIMITS, &source()).await;
        let answer = ask(addr, Method::GET, "/metrics").await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; version=0.0.4");
        assert!(answer.body().contains("convey_server_up{backend=\"app\",server=\"a\"} 1\n"));
        assert!(answer.body().contains("process_resident_memory_bytes "));
    }

    #[tokio::test]
    async fn health_turns_to_draining_when_the_program_stops() {
        let source = source();
        let addr = start(LIMITS, &source).await;
        let answer = ask(addr, Method::GET, "/healthz").await;
        assert_eq!((answer.status(), answer.body().as_str()), (StatusCode::OK, "ok\n"));
        source.draining.store(true, Ordering::Relaxed);
        let answer = ask(addr, Method::GET, "/healthz").await;
        assert_eq!(
            (answer.status(), answer.body().as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        );
    }

    #[tokio::test]
    async fn a_wrong_path_or_method_is_told_what_is_right() {
        let addr = start(LIMITS, &source()).await;
        let answer = ask(addr, Method::GET, "/stat").await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
        for path in ["/stats", "/metrics", "/healthz"] {
            assert!(answer.body().contains(path), "{}", answer.body());
            let answer = ask(addr, Method::POST, path).await;
            assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(answer.headers()[ALLOW], "GET, HEAD");
        }
    }

    #[tokio::test]
    async fn head_answers_as_get_does_without_the_body() {
        let addr = start(LIMITS, &source()).await;
        let answer = ask(addr, Method::HEAD, "/healthz").await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-length"], "3");
        assert_eq!(answer.body(), "");
    }

    /// Waits until the server says something, and returns how much, or ends the connection: 0.
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
        let limits = Limits { connections: 4, lifetime: Duration::from_secs(3600) };
        let addr = start(limits, &source()).await;
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
        let limits = Limits { connections: 4, lifetime: Duration::from_secs(3600) };
        let addr = start(limits, &source()).await;
        // The server has no turn before all of them have asked.
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
    async fn a_client_that_never_finishes_its_request_is_cut() {
        let limits = Limits { connections: 4, lifetime: Duration::from_millis(50) };
        let addr = start(limits, &source()).await;
        let client = TcpStream::connect(addr).await.unwrap();
        client.writable().await.unwrap();
        client.try_write(b"GET /stats HTTP/1.1\r\nHost: con").unwrap();
        assert_eq!(heard(&client).await, 0, "half a request gets no answer");
    }
}
