//! The HTTP server behind the statistics address.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use convey_access_log::AccessLog;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use super::StatsReport;
use super::pages::{Page, Pages, Rendered};
use super::ready;
use crate::control::ConfigLoads;
use crate::model::Timestamp;
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// Where answers come from.
pub struct StatsSource {
    /// The state to report on.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The wall-clock time of `Timestamp(0)`.
    pub started: SystemTime,
    /// The clock.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Set once the program takes no new connections and waits for the open ones to end.
    pub draining: Arc<AtomicBool>,
    /// Counters of packet modes.
    pub packets: Option<Arc<PacketStats>>,
    /// How many lines of the log nobody read in time.
    pub dropped_log_lines: fn() -> u64,
    /// What has become of the configuration.
    pub loads: Arc<ConfigLoads>,
    /// Knows how many lines of the access log were lost.
    pub access_log: Arc<AccessLog>,
}

/// Answers requests until dropped. One request per connection, and a bounded time and number of
/// connections: nobody can keep others out by being slow.
///
/// # Errors
/// If there is no thread to render pages.
pub async fn serve(listener: TcpListener, source: Arc<StatsSource>) -> io::Result<()> {
    serve_within(LIMITS, &listener, source, &mut JoinSet::new()).await
}

/// The same until the other end of `stop` is dropped: then it closes the listener, drops `stopped`, and answers whom it has
/// accepted.
///
/// # Errors
/// As [`serve`].
pub async fn serve_until(
    listener: Arc<TcpListener>,
    source: Arc<StatsSource>,
    stop: oneshot::Receiver<()>,
    stopped: oneshot::Sender<()>,
) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    tokio::select! {
        served = serve_within(LIMITS, &listener, source, &mut tasks) => return served,
        _ = stop => {}
    }
    drop((listener, stopped));
    while tasks.join_next().await.is_some() {}
    Ok(())
}

#[derive(Clone, Copy)]
struct ConnectionLimits {
    /// Connections open at once; one more ends another that has had its time.
    connections: usize,
    /// From accepting a connection to its end, whoever is slow.
    lifetime: Duration,
}

const LIMITS: ConnectionLimits = ConnectionLimits { connections: 64, lifetime: Duration::from_secs(10) };

/// How long a client has to ask before it gives way to another: more than it takes an honest one.
const TIME_TO_ASK: Duration = Duration::from_millis(50);

/// How long one that has asked has before it gives way. So a thousand who read nothing keep a scraper waiting for seconds.
const TIME_TO_READ: Duration = Duration::from_millis(500);

/// The longest request. Ours are 200 bytes; browsers send cookies of whatever else the host serves.
const MAX_REQUEST: usize = 16 << 10;

/// What the kernel holds of an answer (twice that, it says): a write of it takes a tenth of a millisecond, so that one of
/// megabytes to many clients does not hold another up, and those who do not read hold 16 MiB.
const SEND_BUFFER: usize = 128 << 10;

/// Without a pause, a lack of descriptors would make accepting spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Between two lines of the log about that lack.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Accepts that failed.
#[derive(Default)]
struct AcceptFailures {
    told: Option<Instant>,
    untold: u64,
}

impl AcceptFailures {
    /// One more. Returns how many the log does not know of, if it is told of this one.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.duration_since(told) < LINE_EVERY) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// A connection that is open.
struct Open {
    task: AbortHandle,
    since: Instant,
    has_asked: Arc<AtomicBool>,
}

impl Open {
    /// When it gives way to another.
    fn gives_way(&self) -> Instant {
        let asked = self.has_asked.load(Ordering::Relaxed);
        self.since + if asked { TIME_TO_READ } else { TIME_TO_ASK }
    }
}

async fn serve_within(
    limits: ConnectionLimits,
    listener: &TcpListener,
    source: Arc<StatsSource>,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    let pages = Arc::new(Pages::start(source.clone(), limits.connections)?);
    let mut open: Vec<Open> = Vec::new();
    let mut failures = AcceptFailures::default();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(untold) = failures.take(Instant::now()) {
                    log::warn!(
                        "statistics: cannot accept a connection: {error} ({untold} more since the last line)"
                    );
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        open.retain(|open| !open.task.is_finished());
        // In a burst of honest clients somebody is done at once; only if all are slow must one go.
        if tasks.len() >= limits.connections
            && let Some(first) = open.iter().min_by_key(|open| open.gives_way())
            && timeout_at(first.gives_way(), tasks.join_next()).await.is_err()
        {
            first.task.abort();
            tasks.join_next().await;
        }
        let client = Client { source: source.clone(), pages: pages.clone(), has_asked: Arc::default() };
        let has_asked = client.has_asked.clone();
        let task = tasks.spawn(converse(stream, client, limits.lifetime));
        open.push(Open { task, since: Instant::now(), has_asked });
    }
}

/// The other side of a connection.
struct Client {
    source: Arc<StatsSource>,
    pages: Arc<Pages>,
    has_asked: Arc<AtomicBool>,
}

/// A client that goes away or breaks the protocol is its own affair: errors are not reported.
async fn converse(stream: TcpStream, client: Client, lifetime: Duration) {
    // Without it a slow reader costs a little more memory.
    let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER);
    let client = &client;
    let service = service_fn(|request| async move { Ok::<_, Infallible>(respond(&request, client).await) });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_REQUEST);
    let _ = timeout(lifetime, http.serve_connection(TokioIo::new(stream), service)).await;
}

async fn respond<B>(request: &Request<B>, client: &Client) -> Response<Full<Bytes>> {
    let Client { source, pages, has_asked } = client;
    has_asked.store(true, Ordering::Relaxed);
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    match request.uri().path() {
        "/stats" | "/metrics" | "/healthz" | "/readyz" if !reading => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        "/stats" => page("application/json", pages.get(Page::Stats).await),
        "/metrics" => page(prometheus::TEXT_FORMAT, pages.get(Page::Metrics).await),
        // A process that drains is alive: a restart would cut open connections.
        "/healthz" if source.draining.load(Ordering::Relaxed) => text(StatusCode::OK, "draining\n"),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => readiness(source),
        _ => text(StatusCode::NOT_FOUND, "not found; there are /stats, /metrics, /healthz and /readyz\n"),
    }
}

/// For who decides whether this convey gets traffic: VRRP trackers, orchestrators.
fn readiness(source: &StatsSource) -> Response<Full<Bytes>> {
    let obstacles = ready::obstacles(&source.snapshot.load(), source.draining.load(Ordering::Relaxed));
    if obstacles.is_empty() {
        return text(StatusCode::OK, "ready\n");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, &(obstacles.join("\n") + "\n"))
}

impl StatsSource {
    /// All there is to say now.
    pub(super) fn report(&self) -> StatsReport {
        let report = StatsReport::new(&self.snapshot.load(), self.started, (self.now)());
        let report = report.with_packets(self.packets.as_deref()).with_load(self.loads.now());
        report.with_dropped_lines((self.dropped_log_lines)(), self.access_log.lost())
    }
}

fn page(kind: &'static str, body: Rendered) -> Response<Full<Bytes>> {
    match body {
        Ok(body) => response(StatusCode::OK, kind, body),
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

    fn source() -> Arc<StatsSource> {
        let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:8081"), fixture::up())]);
        let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pool);
        let snapshot = fixture::snapshot(vec![frontend], vec![pool]);
        Arc::new(StatsSource {
            snapshot: Arc::new(ArcSwap::from_pointee(snapshot)),
            started: SystemTime::UNIX_EPOCH,
            now: Box::new(|| Timestamp(5_000_000_000)),
            draining: Arc::default(),
            packets: None,
            dropped_log_lines: || 3,
            loads: Arc::default(),
            access_log: Arc::default(),
        })
    }

    async fn start(limits: ConnectionLimits, source: &Arc<StatsSource>) -> SocketAddr {
        let listener = TcpListener::bind("127.77.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let source = source.clone();
        tokio::spawn(async move { serve_within(limits, &listener, source, &mut JoinSet::new()).await });
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
        assert_eq!((answer.status(), answer.body().as_str()), (StatusCode::OK, "draining\n"));
    }

    #[tokio::test]
    async fn readiness_tells_each_frontend_that_cannot_serve() {
        let source = source();
        let addr = start(LIMITS, &source).await;
        let ready = |answer: Response<String>| (answer.status().as_u16(), answer.into_body());
        assert_eq!(ready(ask(addr, Method::GET, "/readyz").await), (200, "ready\n".to_owned()));
        let down = fixture::down("refused", Duration::ZERO);
        let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:8081"), down)]);
        let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pool);
        source.snapshot.store(Arc::new(fixture::snapshot(vec![frontend], vec![pool])));
        let why = "frontend web: no server of backend app can be chosen (1 of 1 are down)\n".to_owned();
        assert_eq!(ready(ask(addr, Method::GET, "/readyz").await), (503, why));
        assert_eq!(ask(addr, Method::GET, "/healthz").await.status(), StatusCode::OK, "it is alive");
        source.draining.store(true, Ordering::Relaxed);
        assert_eq!(ask(addr, Method::GET, "/readyz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn a_wrong_path_or_method_is_told_what_is_right() {
        let addr = start(LIMITS, &source()).await;
        let answer = ask(addr, Method::GET, "/stat").await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
        for path in ["/stats", "/metrics", "/healthz", "/readyz"] {
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
        let limits = ConnectionLimits { connections: 4, lifetime: Duration::from_secs(3600) };
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
        let limits = ConnectionLimits { connections: 4, lifetime: Duration::from_secs(3600) };
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
    async fn a_thousand_who_read_nothing_keep_nobody_out_for_long() {
        let limits = ConnectionLimits { connections: 8, lifetime: Duration::from_secs(3600) };
        let addr = start(limits, &source()).await;
        let rude: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
        let asked = timeout(Duration::from_secs(20), ask(addr, Method::GET, "/healthz")).await;
        assert_eq!(asked.expect("its turn comes").status(), StatusCode::OK);
        drop(rude);
    }

    #[tokio::test]
    async fn a_request_without_end_is_refused() {
        let addr = start(LIMITS, &source()).await;
        let client = TcpStream::connect(addr).await.unwrap();
        let request =
            format!("GET /healthz HTTP/1.1\r\nHost: convey\r\nCookie: {}", "a".repeat(2 * MAX_REQUEST));
        for part in request.as_bytes().chunks(4096) {
            client.writable().await.unwrap();
            // The server does not read a refused request to its end.
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
        let addr = start(limits, &source()).await;
        let client = TcpStream::connect(addr).await.unwrap();
        client.writable().await.unwrap();
        client.try_write(b"GET /stats HTTP/1.1\r\nHost: con").unwrap();
        assert_eq!(heard(&client).await, 0, "half a request gets no answer");
    }
    #[test]
    fn a_lack_of_descriptors_makes_a_line_in_ten_seconds() {
        let (mut failures, start) = (AcceptFailures::default(), Instant::now());
        let told: Vec<u64> = (0..301).filter_map(|n| failures.take(start + n * ACCEPT_PAUSE)).collect();
        assert_eq!(told, [0, 99, 99, 99]);
    }
}
