//! A client of HTTP/2.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;

/// A client's connection. It lives on the runtime of the test.
pub(crate) struct Client {
    send: SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

/// A request that has begun: its response, and its body.
pub(crate) type Call = (client::ResponseFuture, SendStream<Bytes>);

/// A response that came whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Client {
        Client::over(TcpStream::connect(to).await.unwrap()).await
    }

    pub(crate) async fn over(stream: TcpStream) -> Client {
        // Unread streams leave room for others.
        let builder = client::Builder::new().initial_connection_window_size(1 << 20).clone();
        let (send, connection) = builder.handshake(stream).await.unwrap();
        Client { send, connection: tokio::spawn(connection) }
    }

    /// Begins a request. `ends`: it has no body.
    pub(crate) async fn begin(&self, request: Request<()>, ends: bool) -> Call {
        let mut send = self.send.clone().ready().await.unwrap();
        send.send_request(request, ends).unwrap()
    }

    /// Begins a request without a body, if convey still accepts requests.
    pub(crate) async fn try_begin(&self, request: Request<()>) -> Result<SendStream<Bytes>, h2::Error> {
        let mut send = self.send.clone().ready().await?;
        send.send_request(request, true).map(|(_, stream)| stream)
    }

    /// Requests a page.
    pub(crate) async fn get(&self, uri: &str) -> Answer {
        let request = Request::get(uri).body(()).unwrap();
        let (response, _stream) = self.begin(request, true).await;
        read(response.await.unwrap()).await
    }

    /// Sends a body, and trailers after it.
    pub(crate) async fn post(&self, request: Request<()>, body: &str, trailers: Option<HeaderMap>) -> Answer {
        let (response, mut stream) = self.begin(request, false).await;
        stream.send_data(Bytes::copy_from_slice(body.as_bytes()), trailers.is_none()).unwrap();
        if let Some(trailers) = trailers {
            stream.send_trailers(trailers).unwrap();
        }
        read(response.await.unwrap()).await
    }

    /// Waits until convey has ended the connection. The client keeps its side open, as it might
    /// still send requests.
    pub(crate) async fn ended(self) -> Result<(), h2::Error> {
        self.connection.await.unwrap()
    }
}

/// Reads the rest of a response.
pub(crate) async fn read(response: Response<RecvStream>) -> Answer {
    let (head, mut stream) = response.into_parts();
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        stream.flow_control().release_capacity(data.len()).unwrap();
        body.extend_from_slice(&data);
    }
    let trailers = stream.trailers().await.unwrap();
    let body = String::from_utf8(body).unwrap();
    Answer { status: head.status.as_u16(), fields: head.headers, body, trailers }
}
