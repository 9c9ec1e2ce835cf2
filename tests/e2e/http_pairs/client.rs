//! Clients of the three versions, each a library of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use convey_testkit::TestAuthority;
use futures_util::{Stream, StreamExt};
use h2::{RecvStream, SendStream, client};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use quinn::{TransportConfig, VarInt};

use super::case::{Case, Fields, Link, Version};
use super::link::{Pauses, TE, add_fields, body, frames};
use crate::http3::client::Clients;

/// Failure of an end, in the words of its library.
pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A request or response as its reader got it.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) status: u16,
    pub(super) method: String,
    pub(super) length: Option<String>,
    pub(super) fields: Fields,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Fields,
}

/// Addresses of convey for clients of each version.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) plain: SocketAddr,
    pub(super) tls: SocketAddr,
}

/// Sends the request of this case, and returns its response.
pub(super) async fn exchange(
    to: Addresses,
    authority: &TestAuthority,
    case: &Case,
    path: &str,
) -> Result<Received, Failure> {
    match case.client {
        Version::Http1 => over_http1(to.plain, case, path).await,
        Version::Http2 => over_http2(to.plain, case, path).await,
        Version::Http3 => over_http3(to.tls, authority, case, path).await,
    }
}

/// Head of a case's request.
fn head<B>(case: &Case, uri: String, body: B) -> Request<B> {
    let mut request = Request::builder().method(case.method).uri(uri).header(TE.0, TE.1).body(body).unwrap();
    add_fields(&case.request, request.headers_mut());
    request
}

async fn over_http1(to: SocketAddr, case: &Case, path: &str) -> Result<Received, Failure> {
    let stream = TokioIo::new(case.link.connect(to).await?);
    let (mut send, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let mut request = head(case, path.to_owned(), body(&case.request, None));
    request.headers_mut().insert("host", "site.example".parse()?);
    let response = send.send_request(request).await?;
    read_hyper(Received::of_response(&response), response.into_body(), case.link.pauses).await
}

/// Reads a body of hyper.
pub(super) async fn read_hyper(
    mut received: Received,
    mut body: hyper::body::Incoming,
    pauses: bool,
) -> Result<Received, Failure> {
    let mut pauses = Pauses::new(pauses);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => received.body.extend_from_slice(&data),
            Err(frame) => received.trailers = Fields::of(frame.trailers_ref().unwrap()),
        }
        pauses.pause().await;
    }
    Ok(received)
}

async fn over_http2(to: SocketAddr, case: &Case, path: &str) -> Result<Received, Failure> {
    let mut builder = client::Builder::new();
    if let Some(window) = case.link.window {
        builder.initial_window_size(window);
    }
    builder.max_frame_size(case.link.frame).enable_push(false).data_frame_budget(1 << 30);
    let (send, connection) = builder.handshake(case.link.connect(to).await?).await?;
    let connection = tokio::spawn(connection);
    let request = head(case, format!("http://site.example{path}"), ());
    let (response, stream) = send.ready().await?.send_request(request, case.request.is_empty())?;
    let sending = async {
        if !case.request.is_empty() {
            send_http2(frames(&case.request, None), stream).await?;
        }
        Ok(())
    };
    let reading = async {
        let response = response.await?;
        read_http2(Received::of_response(&response), response.into_body(), case.link.pauses).await
    };
    let (received, ()) = tokio::try_join!(reading, sending)?;
    connection.abort();
    Ok(received)
}

/// Sends frames, of which the last one ends the stream.
pub(super) async fn send_http2(
    frames: impl Stream<Item = (Frame<Bytes>, bool)>,
    mut stream: SendStream<Bytes>,
) -> Result<(), Failure> {
    let mut frames = std::pin::pin!(frames);
    while let Some((frame, is_last)) = frames.next().await {
        match frame.into_data() {
            Ok(data) => stream.send_data(data, is_last)?,
            Err(frame) => stream.send_trailers(frame.into_trailers().unwrap())?,
        }
    }
    Ok(())
}

/// Reads a body of h2.
pub(super) async fn read_http2(
    mut received: Received,
    mut body: RecvStream,
    pauses: bool,
) -> Result<Received, Failure> {
    let mut pauses = Pauses::new(pauses);
    while let Some(data) = data_of(&mut body).await? {
        pauses.pause().await;
        body.flow_control().release_capacity(data.len())?;
        received.body.extend_from_slice(&data);
    }
    received.trailers = body.trailers().await?.map(|trailers| Fields::of(&trailers)).unwrap_or_default();
    Ok(received)
}

/// Waits for data. h2 sends no update for data that came before its SETTINGS were acknowledged, and
/// so was released while the window was larger: it is reminded.
async fn data_of(body: &mut RecvStream) -> Result<Option<Bytes>, h2::Error> {
    loop {
        match tokio::time::timeout(Duration::from_millis(100), body.data()).await {
            Ok(data) => return data.transpose(),
            Err(_) => body.flow_control().release_capacity(0)?,
        }
    }
}

async fn over_http3(
    to: SocketAddr,
    authority: &TestAuthority,
    case: &Case,
    path: &str,
) -> Result<Received, Failure> {
    let clients = Clients::with_transport(authority, transport(&case.link));
    let client = clients.connect(to).await;
    let request = head(case, format!("https://site.example{path}"), ());
    let (mut send, mut receive) = client.begin(request).await?.split();
    let sending = async {
        let mut frames = std::pin::pin!(frames(&case.request, None));
        while let Some((frame, _)) = frames.next().await {
            match frame.into_data() {
                Ok(data) => send.send_data(data).await?,
                Err(frame) => send.send_trailers(frame.into_trailers().unwrap()).await?,
            }
        }
        send.finish().await?;
        Ok::<_, Failure>(())
    };
    let reading = async {
        let mut received = Received::of_response(&receive.recv_response().await?);
        let mut pauses = Pauses::new(case.link.pauses);
        while let Some(mut data) = receive.recv_data().await? {
            received.body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            pauses.pause().await;
        }
        let trailers = receive.recv_trailers().await?;
        received.trailers = trailers.map(|trailers| Fields::of(&trailers)).unwrap_or_default();
        Ok(received)
    };
    let (received, ()) = tokio::try_join!(reading, sending)?;
    client.connection.close(0x100_u32.into(), b"");
    Ok(received)
}

fn transport(link: &Link) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    if let Some(window) = link.window {
        transport.stream_receive_window(VarInt::from_u32(window));
    }
    Arc::new(transport)
}

impl Received {
    pub(super) fn of_response<B>(response: &Response<B>) -> Received {
        let status = response.status().as_u16();
        Received { status, ..Received::of_fields(response.headers()) }
    }

    pub(super) fn of_request<B>(request: &Request<B>) -> Received {
        Received { method: request.method().to_string(), ..Received::of_fields(request.headers()) }
    }

    pub(super) fn summary(&self) -> String {
        format!("{} with {} bytes and {:?}", self.method, self.body.len(), self.trailers)
    }

    fn of_fields(fields: &HeaderMap) -> Received {
        let length =
            fields.get("content-length").map(|length| String::from_utf8_lossy(length.as_bytes()).into());
        Received { fields: Fields::of(fields), length, ..Received::default() }
    }
}
