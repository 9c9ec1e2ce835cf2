//! Health checks by gRPC.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, Setup, TestAuthority, TestHttpServer, tests};
use h2::server::{self, SendResponse};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

tests!("grpc_checks":
    grpc_check_follows_the_status_of_the_server,
    grpc_check_fails_with_the_reason_of_each_other_server,
    grpc_check_is_within_the_tls_of_the_backend,
    reload_changes_the_kind_of_a_check_to_grpc_and_http,
);

const FAST: &str = "interval = 0.1\nrise = 1\nfall = 1";
const REASON: &str = "/backends/pool/servers/a/health/reason";

/// A frontend in mode http whose servers get their requests over HTTP/2.
fn setup(lab: &Loopback, check: &str) -> Setup {
    let setup = Setup::new(lab).frontend("mode = \"http\"").backend("protocol = \"h2\"");
    setup.health(&format!("{check}\n{FAST}"))
}

fn grpc_check_follows_the_status_of_the_server() {
    let lab = Loopback::new();
    let server = GrpcServer::start(lab.server(1), None);
    let check =
        "kind = \"grpc\"\nservice = \"shop.Cart\"\nhost = \"app.internal\"\nheaders.X-Key = \"s3cret\"";
    let setup = setup(&lab, check).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_stat(REASON, "gRPC health status SERVING");
    balancer.wait_for_health("a", true);

    server.set(NOT_SERVING);
    balancer.wait_for_health("a", false);
    let line = balancer.wait_for_log("is down");
    assert!(line.contains("is down: gRPC health status NOT_SERVING, expected SERVING"), "{line}");
    server.set(WITHOUT_HEALTH);
    let unimplemented = "gRPC status 12 (UNIMPLEMENTED): unknown service grpc.health.v1.Health";
    balancer.wait_for_stat(REASON, unimplemented);

    server.set(SERVING);
    balancer.wait_for_health("a", true);
    balancer.wait_for_stat(REASON, "gRPC health status SERVING");
    let asked = &server.asked()[0];
    assert_eq!(asked.uri, "http://app.internal/grpc.health.v1.Health/Check");
    assert_eq!(asked.headers["x-key"], "s3cret");
    assert!(!balancer.log().contains("s3cret"), "{}", balancer.log());
}

fn grpc_check_fails_with_the_reason_of_each_other_server() {
    let lab = Loopback::new();
    let _grpc = GrpcServer::start(lab.server(1), None);
    let _http = TestHttpServer::named("b", lab.server(2));
    let setup = setup(&lab, "kind = \"grpc\"\nservice = \"shop.Other\"")
        .server("a", lab.server(1), "")
        .server("b", lab.server(2), "")
        .server("c", lab.server(3), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    for (name, n, reason) in [
        ("a", 1, "gRPC status 5 (NOT_FOUND): unknown service"),
        ("b", 2, "HTTP/2 failed: the server answers in HTTP/1.1"),
        ("c", 3, "connect failed: Connection refused"),
    ] {
        balancer.wait_for_log(&format!("server pool/{name} ({}) is down: {reason}", lab.server(n)));
    }
}

fn grpc_check_is_within_the_tls_of_the_backend() {
    let lab = Loopback::new();
    let authority = TestAuthority::new("The authority");
    let mut tls = ServerConfig::clone(&authority.issue(&["app.example"]).server());
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let _server = GrpcServer::start(lab.server(1), Some(tls));
    let _plain = GrpcServer::start(lab.server(2), None);
    let ca = authority.save(lab.directory()).display().to_string();
    let named = |name: &str| {
        let tls = format!("protocol = \"h2\"\n[backends.pool.tls]\nca = \"{ca}\"\nserver_name = \"{name}\"");
        let setup = setup(&lab, "kind = \"grpc\"").backend(&tls);
        setup.server("a", lab.server(1), "").server("b", lab.server(2), "")
    };
    let balancer = BalancerProcess::start(&lab, &named("app.example"));
    balancer.wait_for_health("b", false);
    balancer.wait_for_log(&format!("server pool/b ({}) is down: TLS failed: ", lab.server(2)));
    balancer.wait_for_stat(REASON, "gRPC health status SERVING");
    balancer.save(&named("other.example"));
    let line = balancer.wait_for_log(&format!("server pool/a ({}) is down: ", lab.server(1)));
    assert!(line.contains("certificate not valid for name \"other.example\""), "{line}");
}

fn reload_changes_the_kind_of_a_check_to_grpc_and_http() {
    let lab = Loopback::new();
    let server = GrpcServer::start(lab.server(1), None);
    server.set(NOT_SERVING);
    let of = |check: &str| setup(&lab, check).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &of("kind = \"tcp\""));
    balancer.wait_for_stat(REASON, "connect succeeded");
    balancer.save(&of("kind = \"grpc\"\nservice = \"shop.Cart\""));
    balancer.wait_for_log("health check tcp -> grpc of service shop.Cart");
    balancer.wait_for_health("a", false);
    balancer.wait_for_stat(REASON, "gRPC health status NOT_SERVING, expected SERVING");
    // The request goes over HTTP/2, as requests of clients do.
    balancer.save(&of("kind = \"http\"\npath = \"/up\""));
    balancer.wait_for_health("a", true);
    balancer.wait_for_stat(REASON, "HTTP status 200");
    assert!(server.asked().iter().any(|asked| asked.uri.path() == "/up"));
    balancer.save(&of("kind = \"grpc\""));
    balancer.wait_for_health("a", false);
    server.set(SERVING);
    balancer.wait_for_health("a", true);
}

const SERVING: u8 = 1;
const NOT_SERVING: u8 = 2;
/// State of a server that has no health service.
const WITHOUT_HEALTH: u8 = 0;

/// A server of gRPC with the health service, which knows the service `shop.Cart`. It answers 200 to
/// GET.
struct GrpcServer {
    status: Arc<AtomicU8>,
    asked: Arc<Mutex<Vec<Parts>>>,
    _stop: oneshot::Sender<()>,
}

impl GrpcServer {
    fn start(addr: SocketAddr, tls: Option<ServerConfig>) -> GrpcServer {
        let listener = TcpListener::bind(addr).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (status, asked) = (Arc::new(AtomicU8::new(SERVING)), Arc::<Mutex<Vec<Parts>>>::default());
        let state = (status.clone(), asked.clone());
        let acceptor = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
        let (stop, stopped) = oneshot::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        let (acceptor, state) = (acceptor.clone(), state.clone());
                        tokio::spawn(async move {
                            match acceptor {
                                None => serve(stream, state).await,
                                Some(acceptor) => {
                                    let Ok(stream) = acceptor.accept(stream).await else { return };
                                    serve(stream, state).await;
                                }
                            }
                        });
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        GrpcServer { status, asked, _stop: stop }
    }

    fn set(&self, status: u8) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Heads of the requests so far.
    fn asked(&self) -> Vec<Parts> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    (status, asked): (Arc<AtomicU8>, Arc<Mutex<Vec<Parts>>>),
) {
    let Ok(mut connection) = server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (head, mut body) = request.into_parts();
        asked.lock().unwrap().push(head.clone());
        let status = status.load(Ordering::Relaxed);
        tokio::spawn(async move {
            let mut message = Vec::new();
            while let Some(Ok(data)) = body.data().await {
                message.extend_from_slice(&data);
            }
            let _ = answer(&head, &message, status, respond);
        });
    }
}

/// Errors are due to the other side, which has closed.
fn answer(
    head: &Parts,
    message: &[u8],
    status: u8,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let response = Response::builder().header("content-type", "application/grpc");
    let failed = |code: &str, text: &str| {
        Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", code)
            .header("grpc-message", text)
            .body(())
            .unwrap()
    };
    if head.method == Method::GET {
        return respond.send_response(Response::new(()), true).map(drop);
    }
    if status == WITHOUT_HEALTH || head.uri.path() != "/grpc.health.v1.Health/Check" {
        let unknown = failed("12", "unknown service grpc.health.v1.Health");
        return respond.send_response(unknown, true).map(drop);
    }
    // The message is empty, or has the name of the service as its only field.
    if !matches!(message, b"\0\0\0\0\0" | b"\0\0\0\0\x0b\x0a\x09shop.Cart") {
        return respond.send_response(failed("5", "unknown service"), true).map(drop);
    }
    let mut stream = respond.send_response(response.body(()).unwrap(), false)?;
    stream.send_data(Bytes::from(vec![0, 0, 0, 0, 2, 8, status]), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
