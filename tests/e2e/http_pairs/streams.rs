//! Streams of clients of HTTP/2 and HTTP/3, under one name.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use convey_testkit::TestAuthority;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use h3::client::RequestStream;
use h3::error::Code;
use http::{HeaderMap, Request};
use quinn::{TransportConfig, VarInt};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;

use super::case::Version;
use super::client::{Addresses, Failure};
use crate::http3::client::{Client as Http3Client, Clients};

/// Clients of HTTP/2 or HTTP/3 that trust one authority.
pub(super) struct StreamClients {
    version: Version,
    to: Addresses,
    from: Ipv4Addr,
    /// Window of a stream; `None` is the library's own.
    window: Option<u32>,
    http3: Clients,
}

/// Connection of a client.
pub(super) enum Connection {
    Http2(SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>),
    Http3(Http3Client),
}

/// Request side of a stream.
pub(super) enum Sending {
    Http2(h2::SendStream<Bytes>),
    Http3(Box<RequestStream<h3_quinn::SendStream<Bytes>, Bytes>>),
}

/// Response side of a stream.
pub(super) enum Reading {
    Http2(ResponseFuture, Option<RecvStream>),
    Http3(Box<RequestStream<h3_quinn::RecvStream, Bytes>>),
}

impl StreamClients {
    /// Clients whose streams have this window. Create them within a runtime.
    pub(super) fn new(
        version: Version,
        to: Addresses,
        authority: &TestAuthority,
        window: Option<u32>,
    ) -> StreamClients {
        let mut transport = TransportConfig::default();
        if let Some(window) = window {
            transport.stream_receive_window(VarInt::from_u32(window));
        }
        let http3 = Clients::with_transport(authority, Arc::new(transport));
        StreamClients { version, to, from: Ipv4Addr::LOCALHOST, window, http3 }
    }

    /// Connects from this address.
    pub(super) fn from(mut self, ip: IpAddr) -> StreamClients {
        let IpAddr::V4(ip) = ip else { panic!("{ip} is not IPv4") };
        self.http3.move_to(ip);
        self.from = ip;
        self
    }

    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        if self.version == Version::Http3 {
            return Ok(Connection::Http3(self.http3.try_connect(self.to.tls).await?));
        }
        let mut builder = client::Builder::new();
        if let Some(window) = self.window {
            builder.initial_window_size(window);
        }
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.from, 0).into())?;
        let stream = socket.connect(self.to.plain).await?;
        stream.set_nodelay(true)?;
        let (send, connection) = builder.handshake(stream).await?;
        Ok(Connection::Http2(send, tokio::spawn(connection)))
    }
}

impl Connection {
    /// Begins a request; `is_over`: it has no body.
    pub(super) async fn begin(
        &self,
        request: http::request::Builder,
        path: &str,
        is_over: bool,
    ) -> Result<(Sending, Reading), Failure> {
        match self {
            Connection::Http2(send, _) => {
                let request = request.uri(format!("http://site.example{path}")).body(())?;
                let mut send = send.clone().ready().await?;
                let (response, stream) = send.send_request(request, is_over)?;
                Ok((Sending::Http2(stream), Reading::Http2(response, None)))
            }
            Connection::Http3(client) => {
                let request = request.uri(format!("https://site.example{path}")).body(())?;
                let mut call = client.begin(request).await?;
                if is_over {
                    call.finish().await?;
                }
                let (send, receive) = call.split();
                Ok((Sending::Http3(Box::new(send)), Reading::Http3(Box::new(receive))))
            }
        }
    }

    /// Requests a page. Returns its status and body.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, Vec<u8>), Failure> {
        let (_sending, mut reading) = self.begin(Request::builder(), path, true).await?;
        let status = reading.head().await?;
        Ok((status, reading.rest().await?))
    }

    /// Sends this body. Returns the status and body of the response.
    pub(super) async fn post(&self, path: &str, body: Bytes) -> Result<(u16, Vec<u8>), Failure> {
        let (mut sending, mut reading) = self.begin(Request::builder().method("POST"), path, false).await?;
        sending.send(body).await?;
        sending.finish().await?;
        let status = reading.head().await?;
        Ok((status, reading.rest().await?))
    }

    /// Closes the connection within its streams.
    pub(super) fn close(self) {
        match self {
            Connection::Http2(_, connection) => connection.abort(),
            Connection::Http3(client) => client.connection.close(0x100_u32.into(), b""),
        }
    }
}

impl Sending {
    /// Sends data as far as the windows allow it.
    pub(super) async fn send(&mut self, mut data: Bytes) -> Result<(), Failure> {
        let stream = match self {
            Sending::Http2(stream) => stream,
            Sending::Http3(stream) => return Ok(stream.send_data(data).await?),
        };
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let room = poll_fn(|cx| stream.poll_capacity(cx)).await.ok_or("the stream is closed")??;
            stream.send_data(data.split_to(room.min(data.len())), false)?;
        }
        Ok(())
    }

    pub(super) async fn finish(&mut self) -> Result<(), Failure> {
        match self {
            Sending::Http2(stream) => Ok(stream.send_data(Bytes::new(), true)?),
            Sending::Http3(stream) => Ok(stream.finish().await?),
        }
    }

    pub(super) fn reset(mut self) {
        match &mut self {
            Sending::Http2(stream) => stream.send_reset(Reason::CANCEL),
            Sending::Http3(stream) => stream.stop_stream(Code::H3_REQUEST_CANCELLED),
        }
    }
}

impl Reading {
    /// Status of the response.
    pub(super) async fn head(&mut self) -> Result<u16, Failure> {
        match self {
            Reading::Http2(response, body) => {
                let (head, stream) = response.await?.into_parts();
                *body = Some(stream);
                Ok(head.status.as_u16())
            }
            Reading::Http3(stream) => Ok(stream.recv_response().await?.status().as_u16()),
        }
    }

    /// Next data of the body, after the head.
    pub(super) async fn data(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Reading::Http2(_, body) => {
                let body = body.as_mut().ok_or("no head")?;
                let Some(data) = body.data().await.transpose()? else { return Ok(None) };
                body.flow_control().release_capacity(data.len())?;
                Ok(Some(data))
            }
            Reading::Http3(stream) => {
                let data = stream.recv_data().await?;
                Ok(data.map(|mut data| data.copy_to_bytes(data.remaining())))
            }
        }
    }

    /// Rest of the body, after the head.
    pub(super) async fn rest(&mut self) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(data) = self.data().await? {
            body.extend_from_slice(&data);
        }
        Ok(body)
    }

    /// Trailers, after the body.
    pub(super) async fn trailers(&mut self) -> Result<HeaderMap, Failure> {
        let trailers = match self {
            Reading::Http2(_, body) => body.as_mut().ok_or("no head")?.trailers().await?,
            Reading::Http3(stream) => stream.recv_trailers().await?,
        };
        Ok(trailers.unwrap_or_default())
    }
}
