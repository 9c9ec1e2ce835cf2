//! Connections to servers in mode http.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::sleep_until;

use super::client_stream::ClientStream;
use super::own_sockets::OwnSocket;
use convey_stream::{ByteStream, Leg, PollClock};
use convey_tls::SpokenWithin;
use convey_upstream::{Opening, Permit};

/// Properties of a connection that is opened for a request.
#[derive(Debug, Clone, Copy)]
pub struct NewConnection {
    /// Client for the PROXY header, if a trusted proxy has named one.
    pub named: Option<SocketAddr>,
    /// Whether the request has a body.
    pub is_upload: bool,
    /// Time limit for connect and TLS handshake together.
    pub within: Duration,
    /// Protocol within TLS, if the server has TLS.
    pub within_tls: SpokenWithin,
}

/// Connection to a server. A drop without [`ServerStream::close_in_order`] resets the connection.
pub struct ServerStream {
    leg: Leg,
    /// Local address of the connection, as the server sees it.
    local: Option<SocketAddr>,
    _own: Option<OwnSocket>,
}

impl ClientStream {
    /// Opens a connection to the permit's server.
    ///
    /// # Errors
    /// The connection failed, or the server was not ready in time.
    pub async fn connect(
        &self,
        permit: &Permit,
        NewConnection { named, is_upload, within, within_tls }: NewConnection,
    ) -> io::Result<ServerStream> {
        let (client, local, origin, data_waits) = (self.client(), self.local(), self.origin(), true);
        let ports = &*self.session.context.shared.local_ports;
        let keeps_nagle = false;
        let opening = Opening {
            client,
            local,
            origin,
            named,
            data_waits,
            is_upload,
            keeps_nagle,
            ports,
            within,
            within_tls,
        };
        let timer = pin!(sleep_until(PollClock::now() + within));
        let server = self.address_of(permit);
        let (leg, _own) = self.session.connect(server, permit, &opening, timer).await?;
        Ok(ServerStream { local: leg.tcp().local_addr().ok(), leg, _own })
    }
}

impl ServerStream {
    /// Byte stream of the connection to the server.
    pub fn stream(&mut self) -> &mut ByteStream {
        &mut self.leg.stream
    }

    /// Byte stream of the connection, for queries without I/O.
    pub fn bytes(&self) -> &ByteStream {
        &self.leg.stream
    }

    /// Socket of the connection, if the kernel may splice its bytes; `None` with TLS.
    pub fn plain(&self) -> Option<&TcpStream> {
        self.leg.stream.plain()
    }

    /// Makes the drop close the connection in order.
    pub fn close_in_order(&mut self) {
        self.leg.close_in_order();
    }

    /// Local address of the connection, as the server sees it.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.local
    }
}

impl fmt::Debug for ServerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerStream").field("stream", &self.leg.stream).finish_non_exhaustive()
    }
}
