//! Servers of HTTP/1.1 and HTTP/2 whose pages hold their requests in various ways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{self, SendResponse};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Barrier;

use super::case::Version;
use super::client::Failure;

/// Pages with 2 bytes, with more than convey keeps of a response, and with a megabyte.
pub(super) const SHORT: &str = "/short";
pub(super) const MIDDLE: &str = "/middle";
const MIDDLE_LEN: usize = 80_000;
pub(super) const LONG: &str = "/long";
pub(super) const LONG_LEN: usize = 1 << 20;
static LONG_PAGE: [u8; LONG_LEN] = [b'x'; LONG_LEN];

/// A page that waits until so many requests are there.
pub(super) const TOGETHER: &str = "/together";
pub(super) const AT_ONCE: usize = 20;

/// A page that reads the request and returns the length of its body.
pub(super) const READ: &str = "/read";

/// Like [`READ`], but reads nothing at first.
pub(super) const UNREAD: &str = "/unread";
const UNREAD_TIME: Duration = Duration::from_millis(20);

/// Requests that wait.
pub(super) struct Pages {
    together: Barrier,
}

impl Pages {
    /// Serves until the runtime ends.
    pub(super) fn start(addr: SocketAddr, version: Version) {
        let pages = Arc::new(Pages { together: Barrier::new(AT_ONCE) });
        let listener = listen(addr);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                match version {
                    Version::Http1 => drop(tokio::spawn(serve_http1(stream, pages.clone()))),
                    _ => drop(tokio::spawn(serve_http2(stream, pages.clone()))),
                }
            }
        });
    }

    /// Waits as the page wants. Returns the page, or `None` if it is about the request's body.
    async fn page(&self, path: &str) -> Option<Bytes> {
        match path {
            SHORT => return Some(Bytes::from_static(b"ok")),
            MIDDLE => return Some(Bytes::from_static(&LONG_PAGE[..MIDDLE_LEN])),
            LONG => return Some(Bytes::from_static(&LONG_PAGE)),
            TOGETHER => {
                self.together.wait().await;
                return Some(Bytes::from_static(b"together"));
            }
            UNREAD => tokio::time::sleep(UNREAD_TIME).await,
            _ => {}
        }
        None
    }
}

fn listen(addr: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(addr).unwrap();
    socket.listen(4096).unwrap()
}

async fn serve_http1(stream: TcpStream, pages: Arc<Pages>) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: Request<Incoming>| {
        let pages = pages.clone();
        async move {
            let (head, body) = request.into_parts();
            let page = match pages.page(head.uri.path()).await {
                Some(page) => page,
                None => body.collect().await?.to_bytes().len().to_string().into(),
            };
            Ok::<_, hyper::Error>(Response::new(Full::new(page)))
        }
    });
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
}

async fn serve_http2(stream: TcpStream, pages: Arc<Pages>) -> Result<(), h2::Error> {
    // The library ends a connection on which many streams are reset before they are accepted.
    let mut builder = server::Builder::new();
    builder.max_pending_accept_reset_streams(1 << 20).max_concurrent_reset_streams(1 << 20);
    let mut connection = builder.handshake(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        tokio::spawn(answer_http2(request, respond, pages.clone()));
    }
    Ok(())
}

async fn answer_http2(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    pages: Arc<Pages>,
) -> Result<(), Failure> {
    let (head, mut body) = request.into_parts();
    let page = match pages.page(head.uri.path()).await {
        Some(page) => page,
        None => {
            let mut len = 0;
            while let Some(data) = body.data().await.transpose()? {
                body.flow_control().release_capacity(data.len())?;
                len += data.len();
            }
            len.to_string().into()
        }
    };
    let response = Response::builder().header("content-length", page.len()).body(())?;
    Ok(respond.send_response(response, false)?.send_data(page, true)?)
}
