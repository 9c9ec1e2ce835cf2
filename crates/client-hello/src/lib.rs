//! The first message of a TLS client: which server it asks for, and which protocols it offers. Pure: bytes in, a verdict out.
//!
//! [`parse`] reads a ClientHello of TLS 1.0 to 1.3 (RFC 8446 4.1.2, RFC 5246 7.4.1.2) with its server name (RFC 6066 3) and its
//! application protocols (ALPN, RFC 7301). Nothing is decrypted and nothing changes: who routes by a hello passes its bytes on.
//! A client that encrypts its hello (ECH) has an outer one with a name that is meant for this; that is the name here.
//! [`HelloAlert`] is what a client is told whose hello leads nowhere.
//!
//! It reads more strictly than servers do, for a hello that can be read in two ways could be routed by one name and served by another.
//! This is why it is not `tls-parser`: that takes messages apart, and leaves records and doubles to its user. Nor is it the `Acceptor` of
//! `rustls`, which wants a server's settings and keeps up to 64 KiB. The fuzz target `client_hello` holds it against that one.
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

/// Longest ClientHello that is read, with the four bytes before it.
const MAX_MESSAGE: usize = 16_384;

/// Records that it may be spread over.
const MAX_RECORDS: usize = 64;

/// Length of a record's header.
const RECORD_HEADER: usize = 5;

/// No hello is longer, with the headers of its records: fewer bytes than this are enough for a verdict other than
/// [`HelloVerdict::NeedMore`].
pub const MAX_HELLO: usize = MAX_MESSAGE + MAX_RECORDS * RECORD_HEADER;

/// What the beginning of a connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloVerdict {
    /// It may become a hello.
    NeedMore,
    /// The first bytes are no handshake of TLS. SSL 2 is none, either.
    NotTls,
    /// A whole hello. Whatever follows it has not been looked at.
    Hello(ClientHello),
    /// It begins like a handshake of TLS, and is no ClientHello.
    Malformed(HelloFault),
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientHello {
    /// The host, in small letters and without a dot at its end: letters, digits, `-`, `_` and `.`, 253 bytes at most. `None`: it names
    /// none, or an address, which RFC 6066 does not permit and servers overlook.
    pub server_name: Option<Box<str>>,
    /// The list as it came: each name behind its length.
    alpn: Box<[u8]>,
}

/// Why it is no hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HelloFault {
    /// Another record stands between those of the hello.
    #[error("another record within the ClientHello")]
    Interleaved,
    /// A record without a byte (RFC 8446 5.1).
    #[error("an empty record")]
    EmptyRecord,
    /// A record with more than 16 KiB.
    #[error("a record that is too long")]
    RecordTooLong,
    /// It is spread over too many records.
    #[error("more than {MAX_RECORDS} records")]
    TooManyRecords,
    /// The handshake begins with another message.
    #[error("another message than a ClientHello")]
    OtherMessage,
    /// It is longer than 16 KiB.
    #[error("longer than {MAX_MESSAGE} bytes")]
    TooLong,
    /// Its last record goes on behind it.
    #[error("something behind it in its record")]
    Trailing,
    /// It is of no version of TLS.
    #[error("a version that is none of TLS")]
    Version,
    /// A length leads beyond the end, stops before it, or is one that the field cannot have.
    #[error("a length that does not fit")]
    Length,
    /// An extension comes twice (RFC 8446 4.2).
    #[error("an extension twice")]
    DoubleExtension,
    /// The server name is no host name, there are two, or a name of another type has a length that does not fit.
    #[error("a server name that is none")]
    ServerName,
}

/// Looks at the first bytes of a connection. More bytes change no verdict but [`HelloVerdict::NeedMore`].
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
    /// That of a client that has asked for this name, and offers this protocol at least.
    pub fn of(server_name: Option<&str>, protocol: Option<&[u8]>) -> ClientHello {
        let protocol = protocol.and_then(|name| Some([&[u8::try_from(name.len()).ok()?][..], name].concat()));
        ClientHello {
            server_name: server_name.map(|name| name.to_ascii_lowercase().into()),
            alpn: protocol.unwrap_or_default().into(),
        }
    }

    /// The application protocols that it offers, such as `h2`, the one that it likes best first. None is empty.
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
