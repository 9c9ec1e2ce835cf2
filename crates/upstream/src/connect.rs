//! Connects to the server of a permit: TCP or unix socket, PROXY header, TLS handshake.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::origin;
use crate::{LocalPorts, Origin, Permit};
use convey_model::UnixSocket;
use convey_snapshot::{connect_error, source_error};
use convey_stream::{Leg, PollClock};
use convey_tls::SpokenWithin;

/// Pause between two attempts to connect to a unix socket whose accept queue is full.
const UNIX_RETRY: Duration = Duration::from_millis(5);

/// Properties of a new connection to a server.
pub struct Opening<'a> {
    /// Address of the client, for the PROXY header.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub local: Option<SocketAddr>,
    /// PROXY header that was received at the beginning of the client's connection; `None` without
    /// one.
    pub origin: Option<&'a Origin>,
    /// Client of the request, if a trusted proxy has named one.
    pub named: Option<SocketAddr>,
    /// Whether bytes of the client will follow immediately.
    pub data_waits: bool,
    /// Whether the server may respond while the client still sends: the request has a body. Then the
    /// kernel acknowledges the first bytes of the server immediately.
    pub is_upload: bool,
    /// Whether the caller itself disables Nagle's algorithm, before its second write. This saves a
    /// system call for connections with one write.
    pub keeps_nagle: bool,
    /// Local ports of this host.
    pub ports: &'a LocalPorts,
    /// Time limit for connect and TLS handshake together.
    pub within: Duration,
    /// Protocol within TLS, if convey speaks TLS with the server.
    pub within_tls: SpokenWithin,
}

impl Permit {
    /// Connects to the permit's server at this address. Sends the PROXY header if the server
    /// expects one, and performs the TLS handshake if the server has TLS. Calls `begun` with the
    /// socket as soon as the socket has its local address. Returns the connection, and the result
    /// of `begun`. `timer` belongs to the caller, who may use it again afterwards: a timer that
    /// stays registered costs less than another one.
    ///
    /// # Errors
    /// The server refuses the connection, fails authentication, or is not ready in time.
    pub async fn connect<T>(
        &self,
        server: SocketAddr,
        opening: &Opening<'_>,
        mut timer: Pin<&mut Sleep>,
        begun: impl FnOnce(&Socket) -> T,
    ) -> io::Result<(Leg, T)> {
        let Opening { client, local, origin, named, data_waits, is_upload, within, within_tls, .. } =
            *opening;
        // Boxed, so that connections without TLS hold no memory for it.
        let (header, tls) = (self.send_proxy(), self.tls(within_tls)?.map(Box::new));
        // With TLS, bytes always follow: convey sends the first bytes of the handshake.
        let data_waits = data_waits || tls.is_some();
        let delays_ack = (data_waits || header.is_some()) && !is_upload;
        let keeps_nagle = opening.keeps_nagle && header.is_none() && tls.is_none();
        let until = PollClock::now() + within;
        let socket = match UnixSocket::of(server) {
            None => {
                let source = self.source_to(server);
                opening.ports.connect(|port| begin((source, port), server, (delays_ack, keeps_nagle)))?
            }
            Some(unix) => match connect_unix(unix) {
                // Boxed, so that connections over TCP hold no memory for it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Box::pin(retry_unix(unix, until, timer.as_mut())).await?
                }
                connected => connected?,
            },
        };
        let kept = begun(&socket);
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        let stream = tokio::select! {
            biased;
            connected = connected(socket) => connected?,
            () = timer.as_mut() => return Err(Errno::TIMEDOUT.into()),
        };
        if let Some(version) = header {
            let none = Origin::default();
            let header = origin.unwrap_or(&none).header(version, client, named, local);
            origin::send(&stream, &header, data_waits)?;
        }
        let mut leg = Leg::new(stream);
        if let Some(session) = tls {
            tokio::select! {
                biased;
                shaken = Box::pin(leg.stream.begin_tls_with_server(*session)) => shaken?,
                () = timer => return Err(Errno::TIMEDOUT.into()),
            }
        }
        Ok((leg, kept))
    }
}

/// Begins to connect to a server, from this local address and port. With `None`, the kernel chooses
/// the address or the port. With `delays_ack`, the kernel sends the acknowledgement that completes
/// the TCP handshake together with the first bytes, which saves a segment. It also delays later
/// acknowledgements.
fn begin(
    (source, port): (Option<IpAddr>, Option<u16>),
    addr: SocketAddr,
    (delays_ack, keeps_nagle): (bool, bool),
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // Keep-alive is enabled later, only for connections that last longer.
    if !keeps_nagle {
        socket.set_tcp_nodelay(true)?;
    }
    if delays_ack {
        let _ = set_tcp_quickack(&socket, false);
    }
    // SO_REUSEADDR: without it, other sockets cannot reuse the port before TIME-WAIT has ended.
    socket.set_reuse_address(true)?;
    match (source, port) {
        (None, None) => {}
        (None, Some(port)) => {
            let any: IpAddr =
                if addr.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            socket.bind(&SocketAddr::new(any, port).into())?;
        }
        (Some(source), port) => bind_to_source(&socket, source, port.unwrap_or(0))?,
    }
    match socket.connect(&addr.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        connected => connected.map_err(|error| connect_error(error, source))?,
    }
    Ok(socket)
}

/// Connects to a unix socket.
///
/// # Errors
/// Errors of `connect`; `WouldBlock` if the accept queue of the server is full.
fn connect_unix(unix: UnixSocket) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(unix.path())?)?;
    Ok(socket)
}

/// Connects to a unix socket whose accept queue was full. The kernel notifies nobody when the queue
/// has room again (`EAGAIN` in connect(2)), so this tries again until the time limit.
async fn retry_unix(unix: UnixSocket, until: Instant, mut timer: Pin<&mut Sleep>) -> io::Result<Socket> {
    loop {
        let now = PollClock::now();
        if now >= until {
            return Err(Errno::TIMEDOUT.into());
        }
        timer.as_mut().reset((now + UNIX_RETRY).min(until));
        timer.as_mut().await;
        match connect_unix(unix) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            connected => return connected,
        }
    }
}

/// Binds the socket of a connection to its source address. With port 0 the kernel chooses the port
/// later, together with the server's address, so each server has all ports.
///
/// # Errors
/// A `SourceError` if this host cannot use the address.
pub fn bind_to_source(socket: &Socket, source: IpAddr, port: u16) -> io::Result<()> {
    if port == 0 {
        setsockopt(socket, sockopt::IpBindAddressNoPort, &true)?;
    }
    let bound = socket.bind(&SocketAddr::new(source, port).into());
    bound.map_err(|error| source_error(error, source))
}

/// Waits until a socket is connected, or has failed.
async fn connected(socket: Socket) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(socket.into())?;
    // A failed connection is also closed for writing. So the error of other sockets need not be
    // read, which saves a system call.
    if stream.ready(Interest::WRITABLE).await?.is_write_closed()
        && let Some(error) = stream.take_error()?
    {
        return Err(error);
    }
    Ok(stream)
}
