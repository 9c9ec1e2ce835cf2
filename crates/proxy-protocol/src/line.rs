//! Parser of version 1 of the PROXY protocol: a line of text (section 2.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use convey_model::{Protocol, ProxyVersion};

use crate::{Addresses, Header, HeaderFault, ProxyHeaderError};

/// First bytes of every version 1 header.
pub(super) const BEGIN: &[u8] = b"PROXY ";

/// Last bytes of every version 1 header.
const END: &[u8] = b"\r\n";

/// Upper bound of a line in bytes, including its end.
const MAX_LINE: usize = 107;

/// Parses a line that begins with [`BEGIN`].
pub(super) fn parse(bytes: &[u8]) -> Result<Header<'_>, ProxyHeaderError> {
    let head = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = head.windows(END.len()).position(|window| window == END) else {
        let is_whole = head.len() == MAX_LINE;
        return Err(if is_whole { HeaderFault::Line.into() } else { ProxyHeaderError::Incomplete });
    };
    let fields = &head[BEGIN.len()..end];
    // After `UNKNOWN`, receivers must ignore the rest of the line.
    let is_unknown = fields == b"UNKNOWN" || fields.starts_with(b"UNKNOWN ");
    let addresses = if is_unknown { None } else { Some(addresses(fields).ok_or(HeaderFault::Line)?) };
    Ok(Header { version: ProxyVersion::V1, addresses, tlvs: &[], len: end + END.len() })
}

fn addresses(fields: &[u8]) -> Option<Addresses> {
    let mut fields = std::str::from_utf8(fields).ok()?.split(' ');
    let mut next = || fields.next();
    let read: fn(&str) -> Option<IpAddr> = match next()? {
        "TCP4" => |text| Some(text.parse::<Ipv4Addr>().ok()?.into()),
        "TCP6" => |text| Some(text.parse::<Ipv6Addr>().ok()?.into()),
        _ => return None,
    };
    let (source, destination) = (read(next()?)?, read(next()?)?);
    let source = SocketAddr::new(source, port(next()?)?);
    let destination = SocketAddr::new(destination, port(next()?)?);
    let is_all = next().is_none();
    is_all.then_some(Addresses { source, destination, transport: Protocol::Tcp })
}

/// Parses a decimal number without sign and leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}
