//! The two families of addresses: where things are in their packets, and a selection's part of each.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::program::{Field, Label, Program};
use crate::Selection;

/// Where the IP header begins.
const IP: u32 = 14;

/// What the fields of a packet are compared with: a number for each field.
pub(super) type Keys = BTreeSet<Vec<u32>>;

// Where fields of a packet are stored.
pub(super) const PROTOCOL: Field = Field::stored(0);
pub(super) const SRC_PORT: Field = Field::stored(1);
pub(super) const DST_PORT: Field = Field::stored(2);
const SRC: [Field; 4] = [Field::stored(4), Field::stored(5), Field::stored(6), Field::stored(7)];
const DST: [Field; 4] = [Field::stored(8), Field::stored(9), Field::stored(10), Field::stored(11)];

/// The type of an ICMP message, beyond the IP header.
pub(super) const ICMP_TYPE: Field = Field::byte(IP).indexed();

/// How packets of a family are read.
pub(super) struct Family {
    pub(super) ethertype: u32,
    /// Protocol number of its ICMP.
    pub(super) icmp: u32,
    /// Types of ICMP errors.
    pub(super) icmp_errors: &'static [u32],
    /// Protocol numbers of headers behind which anything may follow.
    pub(super) extensions: &'static [u32],
    /// Where the number of what follows the IP header is.
    protocol: u32,
    /// Where the source is, which the destination follows.
    src: u32,
    /// Length of an address, in words of 32 bits.
    words: usize,
}

/// RFC 791 and, for the errors (destination unreachable, time exceeded, parameter problem), RFC 792.
pub(super) const V4: Family = Family {
    ethertype: libc::ETH_P_IP as u32,
    icmp: libc::IPPROTO_ICMP as u32,
    icmp_errors: &[3, 11, 12],
    extensions: &[],
    protocol: IP + 9,
    src: IP + 12,
    words: 1,
};

/// RFC 8200 and, for the errors (destination unreachable, packet too big, time exceeded, parameter problem), RFC 4443.
/// Its extension headers: hop-by-hop options, routing, fragment, destination options.
pub(super) const V6: Family = Family {
    ethertype: libc::ETH_P_IPV6 as u32,
    icmp: libc::IPPROTO_ICMPV6 as u32,
    icmp_errors: &[1, 2, 3, 4],
    extensions: &[0, 43, 44, 60],
    protocol: IP + 6,
    src: IP + 8,
    words: 4,
};

impl Family {
    /// The source, once stored.
    pub(super) fn src(&self) -> &'static [Field] {
        &SRC[..self.words]
    }

    /// The destination, once stored.
    pub(super) fn dst(&self) -> &'static [Field] {
        &DST[..self.words]
    }

    /// Stores what every packet has that we look at: the destination and, loaded at last, the protocol.
    pub(super) fn store_destination(&self, p: &mut Program) {
        self.store_words(p, self.src + 4 * self.words as u32, self.dst());
        p.store(Field::byte(self.protocol), PROTOCOL);
    }

    /// Makes the length of the IP header the index; goes away if this is a later fragment, in which no other header
    /// follows it. A later fragment of IPv6 has an extension header.
    pub(super) fn index_transport(&self, p: &mut Program, later_fragment: Label) {
        if self.words == 4 {
            p.index(40);
        } else {
            p.load(Field::half(IP + 6));
            p.goto_if_bits(0x1fff, later_fragment);
            p.index_header_len(IP);
        }
    }

    /// Stores the destination's port; the index is at the transport header.
    pub(super) fn store_destination_port(&self, p: &mut Program) {
        p.store(Field::half(IP + 2).indexed(), DST_PORT);
    }

    /// Stores the source and its port.
    pub(super) fn store_source(&self, p: &mut Program) {
        self.store_words(p, self.src, self.src());
        p.store(Field::half(IP).indexed(), SRC_PORT);
    }

    fn store_words(&self, p: &mut Program, at: u32, stored: &[Field]) {
        (at..).step_by(4).zip(stored).for_each(|(at, stored)| p.store(Field::word(at), *stored));
    }

    /// The address as its fields have it; `None` if it is of the other family.
    fn words(&self, ip: IpAddr) -> Option<Vec<u32>> {
        match ip {
            IpAddr::V4(ip) if self.words == 1 => Some(vec![ip.to_bits()]),
            IpAddr::V6(ip) if self.words == 4 => {
                Some((0..4).map(|word| (ip.to_bits() >> (96 - 32 * word)) as u32).collect())
            }
            _ => None,
        }
    }
}

/// A selection's part of one family.
pub(super) struct Ours {
    /// TCP, UDP or both.
    pub(super) protocols: Keys,
    /// All our addresses.
    pub(super) addresses: Keys,
    /// Protocol, address, port.
    pub(super) frontends: Keys,
    /// The SNAT addresses.
    pub(super) snat: Keys,
    /// Protocol, port, address.
    pub(super) servers: Keys,
    /// Protocol and address of those without a port.
    pub(super) servers_at_any_port: Keys,
}

impl Ours {
    pub(super) fn new(selection: &Selection, family: &Family) -> Ours {
        let words = |ip: &IpAddr| family.words(*ip);
        let servers = || selection.replies.iter().flat_map(|replies| &replies.servers);
        let snat = selection.replies.iter().flat_map(|replies| &replies.snat_addresses);
        let endpoints = selection.listen().chain(servers());
        Ours {
            protocols: endpoints.map(|endpoint| vec![endpoint.protocol as u32]).collect(),
            addresses: selection.addresses().iter().filter_map(words).collect(),
            frontends: selection
                .listen()
                .filter_map(|f| {
                    let (protocol, port) = (f.protocol as u32, u32::from(f.addr.port()));
                    Some([vec![protocol], family.words(f.addr.ip())?, vec![port]].concat())
                })
                .collect(),
            snat: snat.filter_map(words).collect(),
            servers_at_any_port: servers()
                .filter(|s| s.addr.port() == 0)
                .filter_map(|s| Some([vec![s.protocol as u32], family.words(s.addr.ip())?].concat()))
                .collect(),
            servers: servers()
                .filter(|s| s.addr.port() != 0)
                .filter_map(|s| {
                    let (protocol, port) = (s.protocol as u32, u32::from(s.addr.port()));
                    Some([vec![protocol, port], family.words(s.addr.ip())?].concat())
                })
                .collect(),
        }
    }
}
