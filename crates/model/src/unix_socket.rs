//! Unix sockets of servers. Pure.
//!
//! convey identifies each server by a [`SocketAddr`], which the data path copies for each
//! connection. A unix socket has such an address, too: an address of the discard prefix `100::/64`
//! (RFC 6666), which no server can have. Its last 64 bits are a hash of the path, so the address is
//! the same in the successor process of an upgrade. [`UnixSocket::of`] returns the socket of such
//! an address.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};

/// Maximum length of a path in bytes: `sockaddr_un` has 108 bytes, with a zero byte at the end.
pub const MAX_UNIX_PATH: usize = 107;

/// First 64 bits of the addresses of unix sockets.
const PREFIX: [u16; 4] = [0x100, 0, 0, 0];

/// Unix sockets that a configuration has named, by the last 64 bits of their addresses. Entries stay
/// until convey stops, because a draining connection may still refer to them.
static SOCKETS: RwLock<BTreeMap<u64, UnixSocket>> = RwLock::new(BTreeMap::new());

/// Unix socket that a server listens on, such as `unix:/run/app.sock` or the abstract socket
/// `unix:@app`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixSocket {
    /// As in a configuration: `unix:/run/app.sock` or `unix:@app`.
    text: &'static str,
    /// For `sockaddr_un`: the path, or a zero byte and the name of an abstract socket.
    path: &'static str,
    number: u64,
}

/// Reason why a text does not name a unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnixSocketError {
    /// The path is relative, or the name of an abstract socket is empty.
    #[error("the path of a unix socket begins with `/`; an abstract socket is unix:@NAME")]
    Relative,
    /// The path does not fit into `sockaddr_un`.
    #[error("the path of a unix socket has at most {MAX_UNIX_PATH} bytes, and this one has {0}")]
    Long(usize),
    /// The path contains a control character.
    #[error("the path of a unix socket contains no control characters")]
    Control,
}

impl UnixSocket {
    /// Unix socket of a server's address; `None` if the address is an IP address.
    #[inline]
    pub fn of(addr: SocketAddr) -> Option<UnixSocket> {
        match addr {
            SocketAddr::V6(addr) if is_reserved(*addr.ip()) => UnixSocket::numbered(*addr.ip()),
            SocketAddr::V4(_) | SocketAddr::V6(_) => None,
        }
    }

    #[cold]
    fn numbered(ip: Ipv6Addr) -> Option<UnixSocket> {
        let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
        sockets.get(&(ip.to_bits() as u64)).copied()
    }

    /// Address that identifies the socket among servers. Nothing listens there.
    pub fn addr(self) -> SocketAddr {
        let [a, b, c, d] = PREFIX;
        let prefix = Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).to_bits();
        SocketAddr::new(Ipv6Addr::from_bits(prefix | u128::from(self.number)).into(), 1)
    }

    /// Path for `sockaddr_un`. The path of an abstract socket begins with a zero byte.
    pub fn path(self) -> &'static str {
        self.path
    }

    /// Text of the socket in a configuration, such as `unix:/run/app.sock`.
    pub fn text(self) -> &'static str {
        self.text
    }

    /// Name of the socket within `unix:`, such as `/run/app.sock` or `@app`.
    fn named(name: &str) -> UnixSocket {
        let text = format!("unix:{name}");
        let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
        let mut number = hash(name);
        loop {
            match sockets.get(&number) {
                Some(known) if known.text == text => return *known,
                Some(_) => number = number.wrapping_add(1),
                None => break,
            }
        }
        let text: &'static str = text.leak();
        let path = match name.strip_prefix('@') {
            Some(name) => format!("\0{name}").leak(),
            None => &text["unix:".len()..],
        };
        let socket = UnixSocket { text, path, number };
        sockets.insert(number, socket);
        socket
    }
}

impl FromStr for UnixSocket {
    type Err = UnixSocketError;

    /// Parses `unix:/run/app.sock` or `unix:@app`.
    fn from_str(text: &str) -> Result<UnixSocket, UnixSocketError> {
        let name = text.strip_prefix("unix:").ok_or(UnixSocketError::Relative)?;
        if !name.starts_with(['/', '@']) || name.len() == 1 {
            return Err(UnixSocketError::Relative);
        }
        if name.len() > MAX_UNIX_PATH {
            return Err(UnixSocketError::Long(name.len()));
        }
        if name.contains(char::is_control) {
            return Err(UnixSocketError::Control);
        }
        Ok(UnixSocket::named(name))
    }
}

impl fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// Whether addresses like this one identify unix sockets, so that no server can have it.
pub(crate) fn is_reserved(ip: Ipv6Addr) -> bool {
    ip.segments()[..4] == PREFIX
}

/// Operator-facing text of a server's address and port, or of its unix socket.
pub fn server_text(addr: SocketAddr) -> String {
    UnixSocket::of(addr).map_or_else(|| addr.to_string(), |socket| socket.to_string())
}

/// FNV-1a. It is the same in each version of convey, because it identifies a server across
/// upgrades.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_has_one_address_that_leads_back_to_it() {
        let socket: UnixSocket = "unix:/run/app.sock".parse().unwrap();
        assert_eq!((socket.text(), socket.path()), ("unix:/run/app.sock", "/run/app.sock"));
        assert_eq!("unix:/run/app.sock".parse(), Ok(socket));
        assert_eq!(UnixSocket::of(socket.addr()), Some(socket));
        assert_eq!(socket.addr().to_string(), "[100::aa16:27ef:881e:dbbf]:1", "the same after an upgrade");
        let other: UnixSocket = "unix:/run/other.sock".parse().unwrap();
        assert_ne!(socket.addr(), other.addr());
    }

    #[test]
    fn abstract_socket_begins_with_a_zero_byte() {
        let socket: UnixSocket = "unix:@app".parse().unwrap();
        assert_eq!((socket.to_string().as_str(), socket.path()), ("unix:@app", "\0app"));
    }

    #[test]
    fn ip_address_is_no_unix_socket() {
        for addr in ["10.0.0.1:80", "[2001:db8::1]:80", "[::1]:1", "[100::1:2:3:4]:1"] {
            assert_eq!(UnixSocket::of(addr.parse().unwrap()), None, "{addr}");
        }
        assert_eq!(server_text("10.0.0.1:80".parse().unwrap()), "10.0.0.1:80");
    }

    #[test]
    fn path_is_absolute_and_fits_into_sockaddr_un() {
        let longest = format!("unix:/{}", "a".repeat(MAX_UNIX_PATH - 1));
        assert!(longest.parse::<UnixSocket>().is_ok());
        assert_eq!(format!("{longest}a").parse::<UnixSocket>(), Err(UnixSocketError::Long(108)));
        for text in ["unix:app.sock", "unix:", "unix:/", "unix:@", "/run/app.sock"] {
            assert_eq!(text.parse::<UnixSocket>(), Err(UnixSocketError::Relative), "{text}");
        }
        assert_eq!("unix:/run/a\0b".parse::<UnixSocket>(), Err(UnixSocketError::Control));
    }
}
