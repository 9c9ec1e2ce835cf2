//! System call errors that mean a shortage on this host.

use std::io::{Error, ErrorKind};
use std::net::IpAddr;

use rustix::io::Errno;

/// Whether an error means that this host ran out of descriptors, memory or ports, or lacks the
/// source address of a connection ([`source_error`]). Such an error is
/// not the peer's fault, and immediate retries would only cost CPU time.
pub fn is_shortage(error: &Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.kind() == ErrorKind::AddrNotAvailable
        || shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Error of a socket that could not be bound to this source address. If this host does not have the
/// address, the result names it, and is not taken for a shortage of ports.
pub fn source_error(error: Error, source: IpAddr) -> Error {
    match error.kind() {
        ErrorKind::AddrNotAvailable => {
            Error::new(error.kind(), format!("no interface of this host has the source address {source}"))
        }
        _ => error,
    }
}
