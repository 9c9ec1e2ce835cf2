//! What only one process of a network namespace may have.

use std::fmt::Display;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Something that this process has for itself in its network namespace. Given up when dropped, or with the process,
/// however that ends: it is the name of an abstract Unix socket (unix(7)).
#[derive(Debug)]
pub struct Claim {
    _socket: UnixDatagram,
}

impl Claim {
    /// Claims what the name says.
    ///
    /// # Errors
    /// `AddrInUse` if it is claimed already, whoever did.
    pub fn new(name: impl Display) -> io::Result<Claim> {
        let address = SocketAddr::from_abstract_name(format!("convey {name}"))?;
        let taken = |error: io::Error| match error.kind() {
            kind @ io::ErrorKind::AddrInUse => io::Error::new(kind, TAKEN),
            _ => error,
        };
        Ok(Claim { _socket: UnixDatagram::bind_addr(&address).map_err(taken)? })
    }
}

const TAKEN: &str = "another process on this host does already (`sudo ss -xap | grep @convey` shows which)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_claimed_is_free_again_when_given_up() {
        let name = format!("test {}", std::process::id());
        let claim = Claim::new(&name).unwrap();
        let error = Claim::new(&name).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::AddrInUse, TAKEN));
        let _other = Claim::new(format!("{name} b")).unwrap();
        drop(claim);
        Claim::new(&name).unwrap();
    }
}
