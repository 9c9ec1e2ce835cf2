//! Parser of PROXY headers, versions 1 and 2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use convey_model::{Protocol, ProxyVersion};

use crate::{Addresses, MAX_HEADER, line, tlvs};

/// Signature of version 2 (section 2.2).
pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Length of the fixed part of a version 2 header, before its addresses, in bytes.
pub(super) const FIXED: usize = 16;

/// Parsed PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Version of the header.
    pub version: ProxyVersion,
    /// Addresses of the client's connection. `None` if the header has no IP addresses; then the
    /// addresses of the connection that carried the header apply.
    pub addresses: Option<Addresses>,
    /// Additional fields (TLVs) of version 2. They are complete, and their checksum is correct.
    pub tlvs: &'a [u8],
    /// Length of the header in bytes; the client's data follows.
    pub len: usize,
}

/// Reason why the bytes are not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProxyHeaderError {
    /// The header is incomplete: more bytes are needed.
    #[error("the header is incomplete")]
    Incomplete,
    /// The bytes are not a valid header, and further bytes do not help.
    #[error(transparent)]
    Malformed(#[from] HeaderFault),
}

/// Fault of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderFault {
    /// The first bytes match neither version 1 nor version 2.
    #[error("no PROXY header")]
    NotAHeader,
    /// The line of version 1 is longer than 107 bytes, or invalid.
    #[error("invalid PROXY header of version 1")]
    Line,
    /// After the signature of version 2, the header has another version number.
    #[error("unknown version of the PROXY header")]
    Version,
    /// The command is neither LOCAL nor PROXY.
    #[error("unknown command in the PROXY header")]
    Command,
    /// The specification does not define the address family or the transport.
    #[error("unknown address family or transport in the PROXY header")]
    Family,
    /// The header is shorter than its addresses.
    #[error("the PROXY header is shorter than its addresses")]
    TooShort,
    /// The header is longer than [`MAX_HEADER`].
    #[error("the PROXY header is longer than {MAX_HEADER} bytes")]
    TooLong,
    /// An additional field ends beyond the header, the checksum has a wrong length, or there is a
    /// second checksum.
    #[error("invalid additional field (TLV) in the PROXY header")]
    Tlv,
    /// The checksum is wrong (section 2.2.3).
    #[error("wrong checksum of the PROXY header")]
    Checksum,
}

/// Parses the header at the beginning of `bytes`.
///
/// # Errors
/// [`ProxyHeaderError::Incomplete`] if more bytes are needed; [`MAX_HEADER`] bytes always suffice.
/// `ProxyHeaderError::Malformed` if the bytes are not a valid header.
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

/// Parses a header of version 2.
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

/// Kind of addresses in a version 2 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressKind {
    /// No addresses: the command is LOCAL, or the family is unspecified. Receivers ignore the rest
    /// of the header.
    Ignored,
    V4(Protocol),
    V6(Protocol),
    /// Two paths of Unix sockets, which are not usable as addresses of a client.
    Unix,
}

impl AddressKind {
    /// Decodes the byte with address family and transport. Returns `None` for unknown values.
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

    /// Offset at which the addresses end, from the beginning of the header.
    fn end(self) -> usize {
        FIXED
            + match self {
                AddressKind::Ignored => 0,
                AddressKind::V4(_) => 2 * (4 + 2),
                AddressKind::V6(_) => 2 * (16 + 2),
                AddressKind::Unix => 2 * 108,
            }
    }

    /// Decodes the addresses of a header that is at least [`AddressKind::end`] bytes long.
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
