//! A client of HTTP/3.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use convey_testkit::{TestAuthority, TlsSettings};
use h3::client::{RequestStream, SendRequest};
use h3::error::StreamError;
use http::{HeaderMap, Request};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, TransportConfig, ZeroRttAccepted};
use rustls::pki_types::CertificateDer;

/// Clients that share their sessions.
pub(crate) struct Clients {
    endpoint: Endpoint,
}

/// A client's connection. It lives on the runtime of the test.
pub(crate) struct Client {
    pub(crate) connection: Connection,
    send: SendRequest<h3_quinn::OpenStreams, Bytes>,
}

/// A request that has begun.
pub(crate) type Call = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// A response that came whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Clients {
    /// Clients that trust this authority.
    pub(crate) fn trusting(authority: &TestAuthority) -> Clients {
        Clients::with_transport(authority, Arc::default())
    }

    /// Clients that trust this authority, with these windows and limits.
    pub(crate) fn with_transport(authority: &TestAuthority, transport: Arc<TransportConfig>) -> Clients {
        let tls = TlsSettings::trusting(authority).offering(&["h3"]).client();
        let mut tls = rustls::ClientConfig::clone(&tls);
        tls.enable_early_data = true;
        let tls = QuicClientConfig::try_from(tls).unwrap();
        let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(transport);
        endpoint.set_default_client_config(config);
        Clients { endpoint }
    }

    /// Connects, and shakes hands.
    pub(crate) async fn connect(&self, to: SocketAddr) -> Client {
        self.try_connect(to).await.unwrap()
    }

    /// Begins to connect.
    pub(crate) fn begin(&self, to: SocketAddr) -> quinn::Connecting {
        self.endpoint.connect(to, "site.example").unwrap()
    }

    pub(crate) async fn try_connect(&self, to: SocketAddr) -> Result<Client, quinn::ConnectionError> {
        let connection = self.begin(to).await?;
        Ok(Client::over(connection).await)
    }

    /// Resumes an earlier session with early data. `None` without a session, or if it excludes
    /// early data.
    pub(crate) async fn connect_early(&self, to: SocketAddr) -> Option<(Client, ZeroRttAccepted)> {
        let (connection, accepted) = self.begin(to).into_0rtt().ok()?;
        Some((Client::over(connection).await, accepted))
    }

    /// Waits until all connections are over, so that their servers have received the end.
    pub(crate) async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }

    /// Moves all clients to another port. Returns the new address.
    pub(crate) fn move_on(&self) -> SocketAddr {
        self.move_to(Ipv4Addr::LOCALHOST)
    }

    /// Moves all clients to this address.
    pub(crate) fn move_to(&self, ip: Ipv4Addr) -> SocketAddr {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let addr = socket.local_addr().unwrap();
        self.endpoint.rebind(socket).unwrap();
        addr
    }
}

impl Client {
    async fn over(connection: Connection) -> Client {
        let over_quic = h3_quinn::Connection::new(connection.clone());
        let (mut driver, send) = h3::client::new(over_quic).await.unwrap();
        tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
        Client { connection, send }
    }

    /// Certificate of the server.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        let chain =
            self.connection.peer_identity().unwrap().downcast::<Vec<CertificateDer<'static>>>().unwrap();
        chain[0].to_vec()
    }

    /// Begins a request.
    pub(crate) async fn begin(&self, request: Request<()>) -> Result<Call, StreamError> {
        self.send.clone().send_request(request).await
    }

    /// Requests a page.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.fetch(Request::get(uri(path)), b"", None).await
    }

    /// Sends a body, and trailers behind it.
    pub(crate) async fn fetch(
        &self,
        request: http::request::Builder,
        body: &[u8],
        trailers: Option<HeaderMap>,
    ) -> Answer {
        let mut call = self.begin(request.body(()).unwrap()).await.unwrap();
        if !body.is_empty() {
            call.send_data(Bytes::copy_from_slice(body)).await.unwrap();
        }
        if let Some(trailers) = trailers {
            call.send_trailers(trailers).await.unwrap();
        }
        call.finish().await.unwrap();
        read(&mut call).await.unwrap()
    }
}

/// A page of the site.
pub(crate) fn uri(path: &str) -> String {
    format!("https://site.example{path}")
}

/// Reads the response of a request.
pub(crate) async fn read(call: &mut Call) -> Result<Answer, StreamError> {
    let head = call.recv_response().await?;
    let mut body = Vec::new();
    while let Some(mut data) = call.recv_data().await? {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    call.recv_trailers().await?;
    let (head, ()) = head.into_parts();
    Ok(Answer { status: head.status.as_u16(), fields: head.headers, body })
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}
