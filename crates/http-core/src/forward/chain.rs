//! Client of a request that came through trusted proxies: the last address in `X-Forwarded-For`
//! that is not a trusted proxy.

use std::net::{IpAddr, SocketAddr};

use crate::head::{KnownField, RequestHead};

/// Returns the client that trusted proxies name in `X-Forwarded-For`. Call it for a request that a
/// trusted proxy has sent.
///
/// Each proxy appends the address of its peer to the field. So a client can forge only the entries
/// before its own address. The search begins at the last entry. The client is the first address
/// that `is_trusted` refuses; if all addresses are trusted, the client is the last address that the
/// search has read. An entry that is no address ends the search. `None`: the last entry is no
/// address, or there is no entry.
pub fn client_of_chain(head: &RequestHead, is_trusted: impl Fn(IpAddr) -> bool) -> Option<SocketAddr> {
    let lines: Vec<&[u8]> = head.known(KnownField::XForwardedFor).collect();
    let entries = lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    let mut client = None;
    for entry in entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
        let Some(addr) = address(entry) else { break };
        client = Some(addr);
        if !is_trusted(addr.ip()) {
            break;
        }
    }
    client
}

/// Parses an address with or without a port. The default port is 0.
fn address(entry: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let addr = match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, 0),
        Err(_) => text.parse().ok()?,
    };
    Some(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::{HeadLimits, HeadReader};

    fn client(lines: &[&str]) -> Option<String> {
        let fields: String = lines.iter().map(|line| format!("X-Forwarded-For: {line}\r\n")).collect();
        let mut head = BytesMut::from(&*format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        let head = HeadReader::default().request(&mut head, &HeadLimits::default()).unwrap().unwrap();
        let is_trusted = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 10);
        client_of_chain(&head, is_trusted).map(|addr| addr.to_string())
    }

    #[test]
    fn client_is_the_address_in_front_of_the_trusted_proxies() {
        let cases: [(&[&str], Option<&str>); 12] = [
            (&[], None),
            (&[""], None),
            (&["203.0.113.7"], Some("203.0.113.7:0")),
            (&["198.51.100.1, 203.0.113.7"], Some("203.0.113.7:0")),
            (&["203.0.113.7, 10.0.0.1 ,, 10.0.0.2"], Some("203.0.113.7:0")),
            (&["198.51.100.1", "203.0.113.7", "10.0.0.1"], Some("203.0.113.7:0")),
            (&["10.0.0.1, 10.0.0.2"], Some("10.0.0.1:0")),
            (&["203.0.113.7, unknown"], None),
            (&["203.0.113.7, _hidden, 10.0.0.2"], Some("10.0.0.2:0")),
            (&["203.0.113.7:4711"], Some("203.0.113.7:4711")),
            (&["[2001:db8::7]:4711, ::ffff:10.0.0.1"], Some("[2001:db8::7]:4711")),
            (&["198.51.100.1, [2001:db8::7]"], Some("[2001:db8::7]:0")),
        ];
        for (lines, expected) in cases {
            assert_eq!(client(lines).as_deref(), expected, "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn entries_of_a_client_never_change_its_address(forged in "[0-9a-f.:,\\[\\] _]{0,40}") {
            for chain in ["203.0.113.7", "203.0.113.7, 10.0.0.1"] {
                let line = format!("{forged}, {chain}");
                prop_assert_eq!(client(&[&line]), Some("203.0.113.7:0".to_owned()));
                prop_assert_eq!(client(&[&forged, chain]), Some("203.0.113.7:0".to_owned()));
            }
        }
    }
}
