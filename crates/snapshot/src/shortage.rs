//! Errors of system calls that are faults of this host, not of a peer.

use std::io::{Error, ErrorKind};
use std::net::IpAddr;

use rustix::io::Errno;
use thiserror::Error as ThisError;

/// Reason why no connection can have a `source` address of the configuration.
#[derive(Debug, ThisError)]
pub enum SourceError {
    /// No interface of this host has the address.
    #[error("no interface of this host has the source address {0}")]
    Missing(IpAddr),
    /// The kernel refuses a loopback address as the source towards another host.
    #[error("the kernel refuses connections from the source address {0} to this server")]
    Refused(IpAddr),
}

/// Whether an error means that this host ran out of descriptors, memory or ports, or cannot use the
/// source address of a connection ([`SourceError`]). Such an error is not the peer's fault, and
/// immediate retries of the same call would only cost CPU time.
pub fn is_shortage(error: &Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.kind() == ErrorKind::AddrNotAvailable
        || SourceError::of(error).is_some()
        || shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl SourceError {
    /// Returns the fault of the source address, if it is the cause of this error. It concerns only
    /// connections from this address, and nothing that convey could release would help.
    pub fn of(error: &Error) -> Option<&SourceError> {
        error.get_ref()?.downcast_ref()
    }
}

/// Error of a socket that could not be bound to this source address. If this host does not have the
/// address, the result is a [`SourceError`], and no shortage of ports.
pub fn source_error(error: Error, source: IpAddr) -> Error {
    match error.kind() {
        ErrorKind::AddrNotAvailable => Error::new(error.kind(), SourceError::Missing(source)),
        _ => error,
    }
}

/// Error of a connect from this source address; `None`: the kernel has chosen the address. After a
/// successful bind, `AddrNotAvailable` means that no port is free, so it stays as it is. With
/// `net.ipv4.ip_nonlocal_bind`, only the connect fails for a missing IPv4 address, with `EINVAL`.
pub fn connect_error(error: Error, source: Option<IpAddr>) -> Error {
    match source.filter(IpAddr::is_ipv4) {
        Some(source) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            let is_loopback = source.is_loopback();
            let cause = if is_loopback { SourceError::Refused } else { SourceError::Missing };
            Error::new(error.kind(), cause(source))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_source_is_no_shortage_of_ports() {
        let (source, loopback) = (IpAddr::from([192, 0, 2, 7]), IpAddr::from([127, 0, 0, 7]));
        let bind = |errno: Errno| source_error(errno.into(), source);
        let connect = |errno: Errno, from| connect_error(errno.into(), from);
        let refused = connect(Errno::INVAL, Some(loopback));
        assert!(matches!(SourceError::of(&refused), Some(SourceError::Refused(_))) && is_shortage(&refused));
        for fault in [bind(Errno::ADDRNOTAVAIL), connect(Errno::INVAL, Some(source))] {
            assert!(matches!(SourceError::of(&fault), Some(SourceError::Missing(_))), "{fault:?}");
            assert!(is_shortage(&fault) && fault.to_string().ends_with("192.0.2.7"), "{fault:?}");
        }
        for other in [
            bind(Errno::ADDRINUSE),
            connect(Errno::ADDRNOTAVAIL, Some(source)),
            connect(Errno::INVAL, None),
            connect(Errno::CONNREFUSED, Some(source)),
        ] {
            assert!(SourceError::of(&other).is_none() && other.raw_os_error().is_some(), "{other:?}");
        }
    }
}
