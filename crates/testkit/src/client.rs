//! TCP and HTTP clients for tests.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::PATIENCE;

/// Opens a connection with timeouts.
pub fn connect(addr: SocketAddr) -> TcpStream {
    try_connect(None, addr).unwrap()
}

/// Opens a connection with timeouts from the given source address.
pub fn connect_from(source: IpAddr, addr: SocketAddr) -> io::Result<TcpStream> {
    try_connect(Some(source), addr)
}

/// Client socket that is bound but not connected, so that its address and port are known in
/// advance.
pub struct BoundClient(Socket);

impl BoundClient {
    /// Binds a free port on this address.
    pub fn new(source: IpAddr) -> BoundClient {
        let socket = Socket::new(Domain::for_address((source, 0).into()), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
        BoundClient(socket)
    }

    /// Source address of the future connection.
    pub fn addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap().as_socket().unwrap()
    }

    /// Connects to `addr`.
    pub fn connect(self, addr: SocketAddr) -> io::Result<TcpStream> {
        begin(self.0, addr)
    }
}

/// Sends a byte and waits until an echo server has returned it. Then the connection is established
/// end to end.
pub fn ping(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"!")?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    assert_eq!(&byte, b"!");
    Ok(())
}

/// Sends one HTTP request on a new connection. Returns the status and body.
pub fn fetch(addr: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    request(try_connect(None, addr)?, path)
}

/// Sends one HTTP request on a new connection from the given source address. Returns the status and
/// body.
pub fn fetch_from(source: IpAddr, addr: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    request(try_connect(Some(source), addr)?, path)
}

/// Whether a read fails because the peer has reset the connection.
pub fn was_reset(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1024]), Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
}

/// Whether the peer resets a new connection without sending a byte. The reset may arrive before the
/// client considers the connection established.
pub fn is_refused_with_reset(addr: SocketAddr) -> bool {
    is_reset_at_once(None, addr)
}

/// Whether the peer resets a new connection from the given source address without sending a byte.
/// See `is_refused_with_reset`.
pub fn is_refused_with_reset_from(source: IpAddr, addr: SocketAddr) -> bool {
    is_reset_at_once(Some(source), addr)
}

fn is_reset_at_once(source: Option<IpAddr>, addr: SocketAddr) -> bool {
    match try_connect(source, addr) {
        Ok(mut stream) => was_reset(&mut stream),
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

/// Closes the connection with a reset.
pub fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

pub(super) fn try_connect(source: Option<IpAddr>, addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    begin(socket, addr)
}

fn begin(socket: Socket, addr: SocketAddr) -> io::Result<TcpStream> {
    socket.connect_timeout(&addr.into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn request(mut stream: TcpStream, path: &str) -> io::Result<(u16, String)> {
    let host = stream.peer_addr()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let broken = || io::Error::new(io::ErrorKind::UnexpectedEof, format!("half an answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    if length.is_some_and(|length: usize| length != body.len()) {
        return Err(broken());
    }
    Ok((status, body.to_owned()))
}
