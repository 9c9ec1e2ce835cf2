//! Reading a header of either version.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use convey_model::{Protocol, ProxyVersion};

use crate::{Addresses, MAX_HEADER, line, tlvs};

/// What a header of version 2 begins with (section 2.2).
pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of a header of version 2 before its addresses.
pub(super) const FIXED: usize = 16;

/// A header, and where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its version.
    pub version: ProxyVersion,
    /// `None` if it names none of the internet: then those of the connection hold, as it is.
    pub addresses: Option<Addresses>,
    /// The additional fields of version 2, whole and checked.
    pub tlvs: &'a [u8],
    /// Its length in bytes; what follows is the client's.
    pub len: usize,
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProxyHeaderError {
    /// They begin one, and the rest is missing.
    #[error("the header is incomplete")]
    Incomplete,
    /// They cannot become one.
    #[error(transparent)]
    Malformed(#[from] HeaderFault),
}

/// The fault of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderFault {
    /// Neither version begins like this.
    #[error("no PROXY header")]
    NotAHeader,
    /// The line of version 1 is longer than 107 bytes, or wrong.
    #[error("a wrong line of version 1")]
    Line,
    /// The signature of version 2 with another version.
    #[error("an unknown version")]
    Version,
    /// Neither LOCAL nor PROXY.
    #[error("an unknown command")]
    Command,
    /// A family and a transport that the specification does not know.
    #[error("an unknown address family or transport")]
    Family,
    /// Shorter than its addresses.
    #[error("shorter than its addresses")]
    TooShort,
    /// Longer than [`MAX_HEADER`].
    #[error("longer than {MAX_HEADER} bytes")]
    TooLong,
    /// An additional field that does not end within the header, or a second checksum.
    #[error("a wrong additional field (TLV)")]
    Tlv,
    /// The checksum is another (section 2.2.3).
    #[error("a wrong checksum")]
    Checksum,
}

/// Reads the header that `bytes` begin with.
///
/// # Errors
/// [`ProxyHeaderError::Incomplete`] if more bytes may make it one: [`MAX_HEADER`] bytes are never incomplete. Else what is wrong.
pub fn parse(bytes: &[u8]) -> Result<Header<'_>, ProxyHeaderError> {
    if bytes.starts_with(&SIGNATURE) {
        binary(bytes)
    } else if bytes.starts_with(line::BEGIN) {
        line::parse(bytes)
    } else if SIGNATURE.starts_with(bytes) || line::BEGIN.starts_with(bytes) {
        Err(ProxyHeaderError::Incomplete)
    } else {
        Err(HeaderFault::NotAHeader.into())
    }
}

/// Version 2, from its signature on.
fn binary(bytes: &[u8]) -> Result<Header<'_>, ProxyHeaderError> {
    let Some([.., version_and_command, family, high, low]) = bytes.first_chunk::<FIXED>() else {
        return Err(ProxyHeaderError::Incomplete);
    };
    if version_and_command >> 4 != 2 {
        return Err(HeaderFault::Version.into());
    }
    let is_local = match version_and_command & 0xf {
        0 => true,
        1 => false,
        _ => return Err(HeaderFault::Command.into()),
    };
    let len = FIXED + usize::from(u16::from_be_bytes([*high, *low]));
    if len > MAX_HEADER {
        return Err(HeaderFault::TooLong.into());
    }
    let kind =
        if is_local { AddressKind::Ignored } else { AddressKind::of(*family).ok_or(HeaderFault::Family)? };
    if len < kind.end() {
        return Err(HeaderFault::TooShort.into());
    }
    let header = bytes.get(..len).ok_or(ProxyHeaderError::Incomplete)?;
    let addresses = kind.addresses(header);
    let rest = if kind == AddressKind::Ignored { len } else { kind.end() };
    tlvs::check(header, rest)?;
    Ok(Header { version: ProxyVersion::V2, addresses, tlvs: &header[rest..], len })
}

/// What addresses a header of version 2 has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressKind {
    /// LOCAL, and the unspecified family: whatever there is, fields included, means nothing.
    Ignored,
    V4(Protocol),
    V6(Protocol),
    /// Two paths of Unix sockets, which are no client's address.
    Unix,
}

impl AddressKind {
    /// By the byte of family and transport.
    fn of(byte: u8) -> Option<AddressKind> {
        Some(match byte {
            0x00 => AddressKind::Ignored,
            0x11 => AddressKind::V4(Protocol::Tcp),
            0x12 => AddressKind::V4(Protocol::Udp),
            0x21 => AddressKind::V6(Protocol::Tcp),
            0x22 => AddressKind::V6(Protocol::Udp),
            0x31 | 0x32 => AddressKind::Unix,
            _ => return None,
        })
    }

    /// Where the addresses end.
    fn end(self) -> usize {
        FIXED
            + match self {
                AddressKind::Ignored => 0,
                AddressKind::V4(_) => 2 * (4 + 2),
                AddressKind::V6(_) => 2 * (16 + 2),
                AddressKind::Unix => 2 * 108,
            }
    }

    /// Those of a header that is as long as [`AddressKind::end`].
    fn addresses(self, header: &[u8]) -> Option<Addresses> {
        let bytes = &header[FIXED..];
        let (ips, transport): ([IpAddr; 2], _) = match self {
            AddressKind::Ignored | AddressKind::Unix => return None,
            AddressKind::V4(transport) => {
                ([0, 4].map(|at| Ipv4Addr::from(array(bytes, at)).into()), transport)
            }
            AddressKind::V6(transport) => {
                ([0, 16].map(|at| Ipv6Addr::from(array(bytes, at)).into()), transport)
            }
        };
        let ports = self.end() - FIXED - 4;
        let port = |n: usize| u16::from_be_bytes(array(bytes, ports + 2 * n));
        let [source, destination] = [0, 1].map(|n| SocketAddr::new(ips[n], port(n)));
        Some(Addresses { source, destination, transport })
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|n| bytes[at + n])
}
