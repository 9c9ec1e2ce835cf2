//! Parser of a TLS ClientHello: returns the server name (SNI) and the protocols (ALPN). Pure: bytes
//! in, a verdict out.
//!
//! [`parse`] reads a ClientHello of TLS 1.0 to 1.3 (RFC 8446 4.1.2, RFC 5246 7.4.1.2) with its
//! server name (RFC 6066 3) and its application protocols (ALPN, RFC 7301). The parser decrypts and
//! changes nothing, so a router can pass the bytes on. If the client encrypts its ClientHello
//! (ECH), the parser returns the public name of the outer ClientHello. [`HelloAlert`] is the alert
//! for a client that is refused.
//!
//! The parser is stricter than servers are. Otherwise, a ClientHello that can be read in two ways
//! could be routed by one name and served by another.
//!
//! Existing crates do not fit: `tls-parser` leaves records and duplicate extensions to its user,
//! and the `Acceptor` of `rustls` needs the settings of a server and keeps up to 64 KiB. The fuzz
//! target `client_hello` compares this parser with the `Acceptor` of `rustls`.
//!
//! ```
//! use convey_client_hello::{HelloVerdict, parse};
//!
//! assert_eq!(parse(b"GET / HTTP/1.1\r\n"), HelloVerdict::NotTls);
//! assert_eq!(parse(b"\x16\x03\x01"), HelloVerdict::NeedMore);
//! ```
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod alert;
mod hello;
mod name;
mod records;

pub use alert::HelloAlert;
use thiserror::Error;

/// Upper bound of a ClientHello in bytes, with its four-byte header.
const MAX_MESSAGE: usize = 16_384;

/// Upper bound of the records that a ClientHello may be spread over.
const MAX_RECORDS: usize = 64;

/// Length of a record header in bytes.
const RECORD_HEADER: usize = 5;

/// Upper bound of a ClientHello in bytes, with its record headers. With this many bytes, the
/// verdict is never [`HelloVerdict::NeedMore`].
pub const MAX_HELLO: usize = MAX_MESSAGE + MAX_RECORDS * RECORD_HEADER;

/// Verdict on the first bytes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloVerdict {
    /// The bytes may be the beginning of a ClientHello.
    NeedMore,
    /// The first bytes are not a TLS handshake. SSL 2 does not count as TLS.
    NotTls,
    /// A complete ClientHello. The parser has ignored the bytes after it.
    Hello(ClientHello),
    /// The bytes begin like a TLS handshake, but are not a valid ClientHello.
    Malformed(HelloFault),
}

/// Server name and protocols of a ClientHello.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientHello {
    /// Host name in lower case, without a dot at its end: letters, digits, `-`, `_` and `.`, at
    /// most 253 bytes. `None` if the client sends no name, or an IP address, which RFC 6066 does
    /// not permit and servers ignore.
    pub server_name: Option<Box<str>>,
    /// Protocol list in wire format: the length of each name precedes the name.
    alpn: Box<[u8]>,
}

/// Reason why a ClientHello is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HelloFault {
    /// A record of another kind is between the records of the ClientHello.
    #[error("a record of another type within the ClientHello")]
    Interleaved,
    /// A record is empty (RFC 8446 5.1).
    #[error("an empty record")]
    EmptyRecord,
    /// A record is longer than 16 KiB.
    #[error("a record that is too long")]
    RecordTooLong,
    /// The ClientHello is spread over too many records.
    #[error("a ClientHello in more than {MAX_RECORDS} records")]
    TooManyRecords,
    /// The first handshake message is not a ClientHello.
    #[error("the first handshake message is not a ClientHello")]
    OtherMessage,
    /// The ClientHello is longer than 16 KiB.
    #[error("a ClientHello longer than {MAX_MESSAGE} bytes")]
    TooLong,
    /// The last record contains further bytes after the ClientHello.
    #[error("data after the ClientHello in its record")]
    Trailing,
    /// The version is not a version of TLS.
    #[error("an invalid TLS version")]
    Version,
    /// A length field exceeds the remaining bytes, does not cover all of them, or is not valid for
    /// its field.
    #[error("an invalid length")]
    Length,
    /// An extension occurs twice (RFC 8446 4.2).
    #[error("a duplicate extension")]
    DoubleExtension,
    /// The server name is not a valid host name or occurs twice, or a name of another type has an
    /// invalid length.
    #[error("an invalid server name")]
    ServerName,
}

/// Parses the first bytes of a connection. Except for [`HelloVerdict::NeedMore`], the verdict is
/// final: further bytes do not change it.
pub fn parse(bytes: &[u8]) -> HelloVerdict {
    let message = match records::message(bytes) {
        Ok(Some(message)) => message,
        Ok(None) => return HelloVerdict::NeedMore,
        Err(records::NoMessage::NotTls) => return HelloVerdict::NotTls,
        Err(records::NoMessage::Fault(fault)) => return HelloVerdict::Malformed(fault),
    };
    hello::read(&message).map_or_else(HelloVerdict::Malformed, HelloVerdict::Hello)
}

impl ClientHello {
    /// Creates a ClientHello with this server name and this protocol.
    pub fn of(server_name: Option<&str>, protocol: Option<&[u8]>) -> ClientHello {
        let protocol = protocol.and_then(|name| Some([&[u8::try_from(name.len()).ok()?][..], name].concat()));
        ClientHello {
            server_name: server_name.map(|name| name.to_ascii_lowercase().into()),
            alpn: protocol.unwrap_or_default().into(),
        }
    }

    /// Application protocols that the client offers, such as `h2`; the preferred protocol comes
    /// first. The iterator is empty if the client does not use ALPN.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let mut rest = &self.alpn[..];
        std::iter::from_fn(move || {
            let (len, after) = rest.split_first()?;
            let (name, after) = after.split_at_checked(usize::from(*len))?;
            rest = after;
            Some(name)
        })
    }
}

#[cfg(test)]
mod tests;
