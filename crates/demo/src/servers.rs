//! Small HTTP servers of the demo, one for each configured server on this machine.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use convey_config::Config;
use convey_lab::LabError;
use convey_model::ServerKey;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Running servers. Dropping this value stops them and closes their connections.
#[derive(Debug)]
pub struct Servers {
    _listeners: JoinSet<()>,
}

/// Reason why the demo cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Another program listens on a server's address.
    #[error(
        "backend {}, server {}: {} is already in use; stop what listens there or give the server another \
         address",
        server.backend, server.server, server.addr
    )]
    InUse {
        /// Server that needs the address.
        server: ServerKey,
    },
    /// The system refuses to listen on the address for another reason.
    #[error("backend {}, server {}: cannot listen on {}: {source}", server.backend, server.server, server.addr)]
    Listen {
        /// Server that needs the address.
        server: ServerKey,
        /// The system's error.
        source: io::Error,
    },
    /// No server of the configuration has a loopback address.
    #[error("no server of the configuration has a loopback address: there is nothing for the demo to start")]
    NothingToStart,
    /// The lab of the packet modes cannot be built.
    #[error(transparent)]
    Lab(#[from] LabError),
}

/// Starts an HTTP server at each loopback address among the servers of `config`, in the current
/// runtime. Each server answers every request with status 200 and a line with its name. All
/// addresses are bound before the first request is answered. Servers at other addresses are not
/// started.
pub async fn start_servers(config: &Config) -> Result<Servers, DemoError> {
    let mut bound = Vec::new();
    for server in startable(config) {
        match TcpListener::bind(server.addr).await {
            Ok(listener) => bound.push((listener, server)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(DemoError::InUse { server });
            }
            Err(source) => return Err(DemoError::Listen { server, source }),
        }
    }
    if bound.is_empty() {
        return Err(DemoError::NothingToStart);
    }
    let listeners = bound.into_iter().map(|(listener, server)| {
        let hello = format!("hello from {} ({})\n", server.server, server.addr);
        serve(listener, hello.into())
    });
    Ok(Servers { _listeners: listeners.collect() })
}

/// Starts an HTTP server on each of these listeners. The server answers with the text of its
/// listener.
pub(super) fn serve_on(listeners: Vec<(std::net::TcpListener, String)>) -> Result<Servers, DemoError> {
    let mut serving = JoinSet::new();
    for (listener, hello) in listeners {
        let refused = |source| LabError::System { what: "serve".to_owned(), source };
        listener.set_nonblocking(true).map_err(refused)?;
        let listener = TcpListener::from_std(listener).map_err(refused)?;
        serving.spawn(serve(listener, hello.into()));
    }
    Ok(Servers { _listeners: serving })
}

/// Whether the demo starts a server at this address.
pub(super) fn is_local(addr: SocketAddr) -> bool {
    addr.ip().to_canonical().is_loopback()
}

/// Pause after a failed accept. Without it, the server would try again without pause while file
/// descriptors are lacking.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Servers to start. Each address appears once, although backends may share servers.
fn startable(config: &Config) -> Vec<ServerKey> {
    let mut seen = HashSet::new();
    let all = config.backends.iter().flat_map(|backend| {
        backend.servers.iter().map(|server| ServerKey {
            backend: backend.name.clone(),
            server: server.name.clone(),
            addr: server.addr,
        })
    });
    all.filter(|server| is_local(server.addr) && seen.insert(server.addr)).collect()
}

async fn serve(listener: TcpListener, hello: Bytes) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(converse(stream, hello.clone()));
            }
            Err(error) => {
                log::warn!("demo: cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection. Errors are ignored, because a client may disconnect at any time.
async fn converse(stream: TcpStream, hello: Bytes) {
    let service = service_fn(|request| answer(request, hello.clone()));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, hello: Bytes) -> Result<Response<Full<Bytes>>, Infallible> {
    // Read the request to its end. An earlier close would reset the connection, and the answer
    // would be lost.
    let mut body = request.into_body();
    while let Some(Ok(_)) = body.frame().await {}
    let mut response = Response::new(Full::new(hello));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use hyper::Method;
    use hyper::client::conn::http1::{SendRequest, handshake};

    use super::*;
    use convey_config::fixture::config;
    use convey_model::fixture::{backend, server};

    async fn connect(addr: &str) -> SendRequest<Full<Bytes>> {
        let stream = TcpStream::connect(addr).await.unwrap();
        let (client, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn fetch(client: &mut SendRequest<Full<Bytes>>, method: Method, path: &str, body: Bytes) -> String {
        let request = Request::builder().method(method).uri(path).body(Full::new(body)).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.into()).unwrap()
    }

    /// Address on the given loopback host on which no process listens.
    fn free(host: &str) -> String {
        std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().to_string()
    }

    #[tokio::test]
    async fn every_server_answers_any_request_with_its_name_on_a_kept_connection() {
        let [a, b, c] = ["127.77.1.1", "127.77.1.2", "127.77.1.3"].map(free);
        let web = backend("web", vec![server("a", &a), server("b", &b)]);
        let backends = vec![web, backend("api", vec![server("c", &c)])];
        let _servers = start_servers(&config(vec![], backends)).await.unwrap();
        for (name, addr) in [("a", a), ("b", b), ("c", c)] {
            let hello = format!("hello from {name} ({addr})\n");
            let mut client = connect(&addr).await;
            assert_eq!(fetch(&mut client, Method::GET, "/", Bytes::new()).await, hello);
            let upload = Bytes::from(vec![0; 1 << 20]);
            assert_eq!(fetch(&mut client, Method::POST, "/upload", upload).await, hello);
            assert_eq!(fetch(&mut client, Method::GET, "/health", Bytes::new()).await, hello);
        }
    }

    #[tokio::test]
    async fn a_busy_port_is_named_with_the_server_that_wanted_it() {
        let busy = TcpListener::bind("127.77.1.4:0").await.unwrap();
        let (a, b) = (free("127.77.1.4"), busy.local_addr().unwrap().to_string());
        let backends = vec![backend("web", vec![server("a", &a), server("b", &b)])];
        let error = start_servers(&config(vec![], backends)).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("backend web, server b: {b} is already in use")), "{error}");
        TcpListener::bind(&a).await.expect("what was bound before is free again");
    }

    #[tokio::test]
    async fn servers_are_gone_with_their_connections_when_dropped() {
        let addr = free("127.77.1.6");
        let web = backend("web", vec![server("a", &addr)]);
        let servers = start_servers(&config(vec![], vec![web])).await.unwrap();
        let mut client = connect(&addr).await;
        fetch(&mut client, Method::GET, "/", Bytes::new()).await;
        drop(servers);
        while !client.is_closed() {
            tokio::task::yield_now().await;
        }
        assert!(TcpStream::connect(&addr).await.is_err());
    }

    #[tokio::test]
    async fn server_shared_by_two_backends_is_started_once_and_remote_servers_never() {
        let addr = free("127.77.1.7");
        let web = backend("web", vec![server("a", &addr), server("far", "192.0.2.1:80")]);
        let backends = vec![backend("api", vec![server("x", &addr)]), web];
        let _servers = start_servers(&config(vec![], backends)).await.unwrap();
        let hello = fetch(&mut connect(&addr).await, Method::GET, "/", Bytes::new()).await;
        assert_eq!(hello, format!("hello from x ({addr})\n"));
    }

    #[tokio::test]
    async fn demo_without_loopback_servers_has_nothing_to_start() {
        let backends = vec![backend("web", vec![server("far", "192.0.2.1:80")])];
        let error = start_servers(&config(vec![], backends)).await.unwrap_err();
        assert!(matches!(error, DemoError::NothingToStart), "{error}");
    }
}
