//! Connections as clients and servers see them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use convey_testkit::PATIENCE;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Begins to connect, and does not wait for the end. `from` may be port 0.
pub(crate) fn connecting(from: &str, to: &str) -> Socket {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let socket = Socket::new(Domain::for_address(address(to)), Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address(from).into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let error = socket.connect(&address(to).into()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::INPROGRESS.raw_os_error()));
    socket
}

/// Waits for a connection, and accepts it.
pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    SockRef::from(listener).set_read_timeout(Some(PATIENCE)).unwrap();
    listener.accept().unwrap().0
}

/// Whether the other side answers with a reset. Waits for the answer.
pub(crate) fn refused(to: &str) -> bool {
    let to = to.parse().unwrap();
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => true,
        Err(error) => panic!("{to}: {error}"),
        Ok(_) => false,
    }
}
