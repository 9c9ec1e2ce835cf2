//! Fields that describe the client to a server: `X-Forwarded-For`, `-Proto`, `-Host`, and
//! `Forwarded` (RFC 7239).

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::head::{KnownField, RequestHead};

/// Client of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientIdentity<'a> {
    /// Address of the connection's peer: the client, or a proxy.
    pub ip: IpAddr,
    /// Scheme of the client's connection: `http` or `https`.
    pub scheme: &'a str,
    /// Subject of the client's TLS certificate; `None` if the client has presented none.
    pub subject: Option<&'a str>,
    /// Whether `ip` is a trusted proxy. If so, servers also receive the proxy's own values of these
    /// fields.
    pub is_trusted: bool,
}

/// Selects the fields that describe clients to servers. convey removes such fields from requests of
/// untrusted clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardedFields {
    /// `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
    pub x_forwarded: bool,
    /// `Forwarded`.
    pub forwarded: bool,
    /// Whether clients of the frontend may present certificates. If so, convey removes
    /// `X-SSL-Client-DN` even from requests of trusted proxies.
    pub subject: bool,
}

impl Default for ForwardedFields {
    /// `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`, which most servers
    /// understand.
    fn default() -> ForwardedFields {
        ForwardedFields { x_forwarded: true, forwarded: false, subject: false }
    }
}

const FOR: &str = "X-Forwarded-For";
const PROTO: &str = "X-Forwarded-Proto";
const HOST: &str = "X-Forwarded-Host";
const FORWARDED: &str = "Forwarded";
const SUBJECT: &str = "X-SSL-Client-DN";

impl ForwardedFields {
    /// Calls `each` with the name and value of each selected field. Values from a trusted proxy are
    /// kept, with the proxy's address appended.
    pub(super) fn each_field(
        &self,
        head: &RequestHead,
        client: &ClientIdentity<'_>,
        each: &mut impl FnMut(&[u8], &[u8]),
    ) {
        let sent = |known| {
            let value = head.known(known).next();
            value.filter(|value| client.is_trusted && !value.is_empty())
        };
        if self.x_forwarded {
            let mut chain = earlier(head, KnownField::XForwardedFor, client);
            write_ip(client.ip, &mut chain);
            each(FOR.as_bytes(), &chain);
            each(PROTO.as_bytes(), sent(KnownField::XForwardedProto).unwrap_or(client.scheme.as_bytes()));
            let host = sent(KnownField::XForwardedHost).unwrap_or_else(|| head.host());
            if !host.is_empty() {
                each(HOST.as_bytes(), host);
            }
        }
        if self.forwarded {
            let mut chain = earlier(head, KnownField::Forwarded, client);
            let address = match client.ip.to_canonical() {
                IpAddr::V4(ip) => format!("for={ip}"),
                IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
            };
            chain.extend_from_slice(address.as_bytes());
            if !head.host().is_empty() {
                chain.extend_from_slice(b";host=\"");
                chain.extend_from_slice(head.host());
                chain.push(b'"');
            }
            chain.extend_from_slice(b";proto=");
            chain.extend_from_slice(client.scheme.as_bytes());
            each(FORWARDED.as_bytes(), &chain);
        }
        match client.subject {
            // A certificate authority may write any bytes into a subject.
            Some(subject) => {
                let visible = |byte: u8| if byte.is_ascii_control() { b'?' } else { byte };
                let shown: Vec<u8> = subject.bytes().map(visible).collect();
                each(SUBJECT.as_bytes(), &shown);
            }
            None => values(head, KnownField::ClientSubject)
                .filter(|_| client.is_trusted && !self.subject)
                .for_each(|sent| each(SUBJECT.as_bytes(), sent)),
        }
    }
}

/// Value of a field under construction. The usual address fits without an allocation.
type ChainValue = SmallVec<[u8; 64]>;

/// Begins the value of a field: with the values that a trusted proxy sent, else empty.
fn earlier(head: &RequestHead, known: KnownField, client: &ClientIdentity<'_>) -> ChainValue {
    let mut chain = ChainValue::new();
    for earlier in values(head, known).filter(|_| client.is_trusted) {
        chain.extend_from_slice(earlier);
        chain.extend_from_slice(b", ");
    }
    chain
}

/// Writes an address in its usual text form. IPv4 avoids `std::fmt`, which would take longer than
/// the rest of this function.
fn write_ip(ip: IpAddr, out: &mut ChainValue) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let (mut text, mut len) = ([b'.'; 16], 0);
            for octet in ip.octets() {
                for (least, unit) in [(100, 100), (10, 10), (0, 1)] {
                    if octet >= least {
                        text[len] = b'0' + octet / unit % 10;
                        len += 1;
                    }
                }
                // A dot follows.
                len += 1;
            }
            out.extend_from_slice(&text[..len - 1]);
        }
        IpAddr::V6(ip) => out.extend_from_slice(ip.to_string().as_bytes()),
    }
}

/// Non-empty values of all fields of this kind.
fn values(head: &RequestHead, known: KnownField) -> impl Iterator<Item = &[u8]> {
    head.known(known).filter(|value| !value.is_empty())
}
