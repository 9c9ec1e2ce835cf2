//! Where those come from who ask: the statistics address, or the control socket.

use std::io;
use std::net::IpAddr;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    /// In words for an operator.
    pub name: String,
    /// Its address, if it is at the statistics address.
    pub address: Option<IpAddr>,
    /// Whether it may change things.
    pub may_change: bool,
}

/// A socket that clients connect to.
pub trait AdminListener: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and who has opened it.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Requester)>> + Send;

    /// What the log calls it.
    fn name(&self) -> &'static str;
}

/// What the kernel holds of an answer (twice that, it says): a write of it takes a tenth of a millisecond, so that one of
/// megabytes to many clients does not hold another up, and those who do not read hold 16 MiB.
const SEND_BUFFER: usize = 128 << 10;

/// Whoever reaches the address may read; a token may change things.
impl AdminListener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Requester)> {
        let (stream, from) = TcpListener::accept(self).await?;
        // Without it a slow reader costs a little more memory.
        let _ = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER);
        let ip = from.ip().to_canonical();
        Ok((stream, Requester { name: ip.to_string(), address: Some(ip), may_change: false }))
    }

    fn name(&self) -> &'static str {
        "statistics"
    }
}

/// The permissions of its file say who may connect, and those may change things.
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
