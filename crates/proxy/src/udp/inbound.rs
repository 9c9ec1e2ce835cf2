//! Datagrams from a client, with or without PROXY headers. Where the frontend requires them, each
//! datagram begins with a header of version 2.

use std::net::{IpAddr, SocketAddr};

use convey_model::{Protocol, ProxyVersion};
use convey_proxy_protocol::{Addresses, Header, parse, write};

use super::socket::Datagrams;
use super::table::SessionKey;
use crate::header_error::HeaderError;

/// Datagrams of one client.
#[derive(Clone, Copy)]
pub(super) struct Inbound<'a> {
    /// Datagrams without PROXY header. With a header, this is always a single datagram.
    pub(super) datagrams: Datagrams<'a>,
    header: Option<Header<'a>>,
}

impl<'a> Inbound<'a> {
    /// Wraps datagrams that a client has sent without a PROXY header.
    pub(super) fn of(datagrams: Datagrams<'a>) -> Inbound<'a> {
        Inbound { datagrams, header: None }
    }

    /// Parses the PROXY header of one datagram, and returns the datagram after the header.
    pub(super) fn behind_header(datagram: Datagrams<'a>) -> Result<Inbound<'a>, HeaderError> {
        let header = parse(datagram.bytes)?;
        if header.version == ProxyVersion::V1 {
            return Err(HeaderError::LineOverUdp);
        }
        let datagrams = Datagrams { bytes: &datagram.bytes[header.len..], ..datagram };
        Ok(Inbound { datagrams, header: Some(header) })
    }

    /// Returns the key of the client's session. `asked` is the destination address, if the
    /// listening socket is bound to a wildcard.
    pub(super) fn key(&self, asked: Option<IpAddr>) -> SessionKey {
        let peer = self.datagrams.meta.addr;
        match &self.header {
            None => SessionKey { client: peer, via: None, asked },
            Some(header) => {
                let client = header.addresses.map_or(peer, |addresses| addresses.client());
                SessionKey { client, via: Some(peer), asked }
            }
        }
    }

    /// Appends the PROXY header for a server to `to`. `vip` is the address that the listening
    /// socket is bound to. Addresses and TLVs of a received header are passed on.
    pub(super) fn write_header(&self, version: ProxyVersion, vip: SocketAddr, to: &mut Vec<u8>) {
        let meta = self.datagrams.meta;
        let asked = if vip.ip().is_unspecified() { meta.dst_ip } else { None };
        let destination = SocketAddr::new(asked.unwrap_or(vip.ip()), vip.port());
        let source = SocketAddr::new(meta.addr.ip(), meta.addr.port());
        let own = Addresses { source, destination, transport: Protocol::Udp };
        let received = self.header.and_then(|header| header.addresses);
        let tlvs = self.header.map_or(&[][..], |header| header.tlvs);
        write(version, Some(received.unwrap_or(own)), tlvs, to);
    }
}

#[cfg(test)]
mod tests {
    use quinn_udp::RecvMeta;

    use super::*;
    use convey_proxy_protocol::{HeaderFault, local};

    fn meta() -> RecvMeta {
        let mut meta = RecvMeta::default();
        meta.addr = "192.0.2.5:500".parse().unwrap();
        meta
    }

    fn header(tlvs: &[u8]) -> Vec<u8> {
        let [source, destination] = ["198.51.100.7:7", "198.51.100.8:53"].map(|addr| addr.parse().unwrap());
        let mut bytes = Vec::new();
        let addresses = Addresses { source, destination, transport: Protocol::Udp };
        write(ProxyVersion::V2, Some(addresses), tlvs, &mut bytes);
        bytes
    }

    const VIP: &str = "192.0.2.1:53";

    #[test]
    fn session_belongs_to_the_client_in_the_proxy_header() {
        let (bytes, mut meta) = ([&header(&[])[..], b"who?"].concat(), meta());
        meta.stride = bytes.len();
        let inbound = Inbound::behind_header(Datagrams { bytes: &bytes, meta: &meta }).unwrap();
        let key = inbound.key(None);
        assert_eq!((key.client, key.peer()), ("198.51.100.7:7".parse().unwrap(), meta.addr));
        assert_eq!((inbound.datagrams.bytes, inbound.datagrams.count()), (&b"who?"[..], 1));
    }

    #[test]
    fn a_header_goes_on_as_it_came_with_its_fields() {
        let (bytes, meta) = (header(&[5, 0, 1, 7]), meta());
        let inbound = Inbound::behind_header(Datagrams { bytes: &bytes, meta: &meta }).unwrap();
        let mut written = Vec::new();
        inbound.write_header(ProxyVersion::V2, VIP.parse().unwrap(), &mut written);
        assert_eq!(written, bytes);
    }

    #[test]
    fn client_without_a_header_address_is_the_sender() {
        let (local, mut meta) = (local(ProxyVersion::V2), meta());
        meta.dst_ip = Some("192.0.2.9".parse().unwrap());
        let by_proxy = Inbound::behind_header(Datagrams { bytes: local, meta: &meta }).unwrap();
        let direct = Inbound::of(Datagrams { bytes: b"x", meta: &meta });
        for (inbound, via) in [(by_proxy, Some(meta.addr)), (direct, None)] {
            assert_eq!(inbound.key(None), SessionKey { client: meta.addr, via, asked: None });
            for (vip, asked) in [(VIP, VIP), ("0.0.0.0:53", "192.0.2.9:53")] {
                let mut written = Vec::new();
                inbound.write_header(ProxyVersion::V2, vip.parse().unwrap(), &mut written);
                let [source, destination] = [meta.addr, asked.parse().unwrap()];
                let expected = Addresses { source, destination, transport: Protocol::Udp };
                assert_eq!(parse(&written).unwrap().addresses, Some(expected));
            }
        }
    }

    #[test]
    fn without_a_header_of_its_own_a_datagram_goes_nowhere() {
        let whole = header(&[]);
        for (bytes, why) in [
            (&b""[..], HeaderError::Cut),
            (&whole[..whole.len() - 1], HeaderError::Cut),
            (b"who?", HeaderError::Malformed(HeaderFault::NotAHeader)),
            (b"PROXY TCP4 192.0.2.7 192.0.2.8 7 80\r\nwho?", HeaderError::LineOverUdp),
        ] {
            let refused = Inbound::behind_header(Datagrams { bytes, meta: &meta() }).err();
            assert_eq!(refused, Some(why), "{bytes:?}");
        }
    }
}
