//! HTTP/3 or HTTP/2 connection of a client, within TLS, to a peer. Runs on the tokio runtime of its
//! thread.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Buf, Bytes};
use convey_testkit::TlsSettings;
use http::Request;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, VarInt};
use rustls::client::Resumption;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::peer::Peer;
use crate::site::{NAME, Site};

/// Longest wait for a connection or an answer.
const WAIT: Duration = Duration::from_secs(5);

/// Longest wait for the end of a connection that was closed.
const FAREWELL: Duration = Duration::from_millis(100);

/// Error code of an orderly close (`H3_NO_ERROR`, RFC 9114, section 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// Receive windows of clients in bytes, for a stream and for a connection, like those of the QUIC
/// client.
const STREAM_WINDOW: u32 = 1_250_000;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Server that clients connect to, and its protocol.
pub(crate) struct Server {
    at: SocketAddr,
    speaks: Speaks,
}

enum Speaks {
    Http2(TlsConnector),
    Http3(ClientConfig),
}

/// Connection of a client. Dropping it closes it.
pub(crate) enum Connection {
    Http2(h2::client::SendRequest<Bytes>),
    Http3 {
        send: h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>,
        connection: quinn::Connection,
        /// Each connection has its own socket, as real clients do.
        endpoint: Endpoint,
    },
}

impl Server {
    /// Server for a peer. Clients resume no earlier session.
    pub(crate) fn of(site: &Site, peer: Peer) -> Result<Server> {
        let at = *peer.targets().first().context("it has an address")?;
        let settings = TlsSettings::trusting(&site.authority);
        let is_http2 = peer == Peer::ConveyHttp2;
        let settings = settings.offering(&[if is_http2 { "h2" } else { "h3" }]).client();
        let mut tls = rustls::ClientConfig::clone(&settings);
        tls.resumption = Resumption::disabled();
        let tls = Arc::new(tls);
        let speaks = match is_http2 {
            true => Speaks::Http2(TlsConnector::from(tls)),
            false => Speaks::Http3(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?))),
        };
        Ok(Server { at, speaks })
    }

    /// Connects, and completes the handshake.
    ///
    /// # Errors
    /// The peer refuses, or does not complete the handshake in time.
    pub(crate) async fn connect(&self) -> io::Result<Connection> {
        timeout(WAIT, self.shake_hands()).await?
    }

    async fn shake_hands(&self) -> io::Result<Connection> {
        match &self.speaks {
            Speaks::Http2(connector) => {
                let tcp = TcpStream::connect(self.at).await?;
                tcp.set_nodelay(true)?;
                let name = NAME.try_into().map_err(io::Error::other)?;
                let tls = connector.connect(name, tcp).await?;
                let mut builder = h2::client::Builder::new();
                builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
                let (send, connection) = builder.handshake(tls).await.map_err(io::Error::other)?;
                tokio::spawn(connection);
                Ok(Connection::Http2(send))
            }
            Speaks::Http3(config) => {
                let endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
                let connecting = endpoint.connect_with(config.clone(), self.at, NAME);
                let connection = connecting.map_err(io::Error::other)?.await?;
                let over_quic = h3_quinn::Connection::new(connection.clone());
                let (mut driver, send) = h3::client::new(over_quic).await.map_err(io::Error::other)?;
                tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
                Ok(Connection::Http3 { send, connection, endpoint })
            }
        }
    }
}

impl Connection {
    /// Requests a file of this name and this size in bytes.
    ///
    /// # Errors
    /// No answer comes in time, or another one.
    pub(crate) async fn get(&self, (name, size): (&str, usize)) -> io::Result<()> {
        let request = Request::get(format!("https://{NAME}/{name}")).body(()).map_err(io::Error::other)?;
        let (status, received) = timeout(WAIT, self.fetch(request)).await??;
        match status == 200 && received == size {
            true => Ok(()),
            false => Err(io::Error::other(format!("answered {status} with {received} bytes"))),
        }
    }

    /// Returns the status of the response, and the length of its body in bytes.
    async fn fetch(&self, request: Request<()>) -> io::Result<(u16, usize)> {
        let mut received = 0;
        match self {
            Connection::Http2(send) => {
                let mut send = send.clone().ready().await.map_err(io::Error::other)?;
                let (response, _) = send.send_request(request, true).map_err(io::Error::other)?;
                let (head, mut body) = response.await.map_err(io::Error::other)?.into_parts();
                while let Some(data) = body.data().await {
                    let data = data.map_err(io::Error::other)?;
                    received += data.len();
                    body.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
                }
                Ok((head.status.as_u16(), received))
            }
            Connection::Http3 { send, .. } => {
                let mut stream = send.clone().send_request(request).await.map_err(io::Error::other)?;
                stream.finish().await.map_err(io::Error::other)?;
                let head = stream.recv_response().await.map_err(io::Error::other)?;
                while let Some(mut data) = stream.recv_data().await.map_err(io::Error::other)? {
                    received += data.remaining();
                    data.advance(data.remaining());
                }
                Ok((head.status().as_u16(), received))
            }
        }
    }
}

/// Closes connections, and waits until the close has been sent. A connection that is only dropped
/// at the end of a run closes without notice to its peer.
pub(crate) async fn close(connections: Vec<Connection>) {
    for connection in connections {
        if let Connection::Http3 { connection, endpoint, .. } = &connection {
            connection.close(NO_ERROR, b"");
            let _ = timeout(FAREWELL, endpoint.wait_idle()).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Connection::Http3 { connection, .. } = self {
            connection.close(NO_ERROR, b"");
        }
    }
}
