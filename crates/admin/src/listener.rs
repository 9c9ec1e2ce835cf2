//! Listeners for requests: the statistics address and the control socket.

use std::io;
use std::net::IpAddr;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Client that sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    /// Operator-facing name.
    pub name: String,
    /// IP address of the client, if it uses the statistics address. `None` for the control socket.
    pub address: Option<IpAddr>,
    /// Whether the client may change things.
    pub may_change: bool,
}

/// Socket that clients connect to.
pub trait AdminListener: Send + Sync + 'static {
    /// Stream of a connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts the next connection and identifies its client.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Requester)>> + Send;

    /// Name of the listener in the log.
    fn name(&self) -> &'static str;
}

/// Size of the kernel's send buffer of a connection, in bytes (the kernel reports twice that). A
/// write of this size takes 0.1 ms, so answers of megabytes to many clients do not delay other
/// clients. If no client reads, the buffers of all connections take 16 MiB in total.
const SEND_BUFFER: usize = 128 << 10;

/// Statistics address: every client may read, but needs a token to change things.
impl AdminListener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Requester)> {
        let (stream, from) = TcpListener::accept(self).await?;
        // If the limit cannot be set, a slow reader occupies a little more memory.
        let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER);
        let ip = from.ip().to_canonical();
        Ok((stream, Requester { name: ip.to_string(), address: Some(ip), may_change: false }))
    }

    fn name(&self) -> &'static str {
        "statistics"
    }
}

/// Control socket: every client that the permissions of the socket's file let connect may change
/// things.
impl AdminListener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Requester)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let name = match stream.peer_cred() {
            Ok(peer) if peer.uid() == 0 => "root".to_owned(),
            Ok(peer) => format!("user {}", peer.uid()),
            Err(_) => "an unknown user".to_owned(),
        };
        Ok((stream, Requester { name, address: None, may_change: true }))
    }

    fn name(&self) -> &'static str {
        "control socket"
    }
}
