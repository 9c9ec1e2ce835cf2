//! A server of HTTP/2, similar to gRPC servers: it streams, and sends the outcome in trailers.

use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{self, SendResponse};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::sync::oneshot;

/// Path at which the server neither reads bodies nor responds.
pub(crate) const UNREAD: &str = "/unread";

/// Path at which the server sends a body without end, as far as convey lets it.
pub(crate) const ENDLESS: &str = "/endless";

/// An echo server: it returns each request's body as it arrives, with the trailer `grpc-status: 0`.
/// A request's `x-length` becomes the `content-length` of the response.
pub(crate) struct EchoServer {
    connections: Arc<AtomicUsize>,
    is_silent: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Request<()>>>>,
    endless: Arc<AtomicUsize>,
    _stop: oneshot::Sender<()>,
}

impl EchoServer {
    pub(crate) fn start(addr: SocketAddr) -> EchoServer {
        EchoServer::with(addr, server::Builder::new())
    }

    /// Starts a server whose connections use this builder.
    pub(crate) fn with(addr: SocketAddr, builder: server::Builder) -> EchoServer {
        let listener = TcpListener::bind(addr).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (connections, seen) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (count, requests) = (connections.clone(), seen.clone());
        let endless = Arc::<AtomicUsize>::default();
        let sent = endless.clone();
        let is_silent = Arc::new(AtomicBool::new(false));
        let says_nothing = is_silent.clone();
        let (stop, stopped) = oneshot::channel();
        thread::spawn(move || {
            super::block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let mut held = Vec::new();
                let accept = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        count.fetch_add(1, Ordering::Relaxed);
                        if says_nothing.load(Ordering::Relaxed) {
                            held.push(stream);
                            continue;
                        }
                        tokio::spawn(serve(stream, builder.clone(), requests.clone(), sent.clone()));
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        EchoServer { connections, is_silent, seen, endless, _stop: stop }
    }

    /// Sets whether the server stays silent on connections that it accepts from now on.
    pub(crate) fn be_silent(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::Relaxed);
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Number of bytes of the endless bodies that convey has made room for.
    pub(crate) fn endless(&self) -> usize {
        self.endless.load(Ordering::Relaxed)
    }

    /// Heads of the requests so far.
    pub(crate) fn seen(&self) -> Vec<Request<()>> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    stream: tokio::net::TcpStream,
    builder: server::Builder,
    seen: Arc<Mutex<Vec<Request<()>>>>,
    endless: Arc<AtomicUsize>,
) {
    let Ok(mut connection) = builder.handshake(stream).await else { return };
    let mut unread = Vec::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (head, body) = request.into_parts();
        if head.uri.path() == UNREAD {
            seen.lock().unwrap().push(Request::from_parts(head, ()));
            unread.push((body, respond));
            continue;
        }
        if head.uri.path() == ENDLESS {
            tokio::spawn(send_endless(respond, endless.clone()));
            continue;
        }
        let length = head.headers.get("x-length").cloned();
        seen.lock().unwrap().push(Request::from_parts(head, ()));
        tokio::spawn(echo(body, length, respond));
    }
}

/// Sends as much as the window allows. Errors are due to the other side, which has closed.
async fn send_endless(mut respond: SendResponse<Bytes>, sent: Arc<AtomicUsize>) -> Result<(), h2::Error> {
    let mut stream = respond.send_response(Response::new(()), false)?;
    loop {
        stream.reserve_capacity(1 << 20);
        let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await.transpose()? else { return Ok(()) };
        sent.fetch_add(room, Ordering::Relaxed);
        stream.send_data(vec![0; room].into(), false)?;
    }
}

/// Errors are due to the other side, which has closed.
async fn echo(
    mut body: RecvStream,
    length: Option<HeaderValue>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut response = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    if let Some(length) = length {
        response.headers_mut().insert("content-length", length);
    }
    let mut stream = respond.send_response(response, false)?;
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        stream.send_data(data, false)?;
    }
    let mut trailers = body.trailers().await?.unwrap_or_default();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let trailers: HeaderMap = trailers;
    stream.send_trailers(trailers)
}
