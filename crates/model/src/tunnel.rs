//! How packets of clients go through a tunnel to servers on other networks. Pure.

use crate::{Addr, DsrKind, Prefix};

/// What a backend says of its tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelConfig {
    /// The UDP port at which servers take packets of GUE.
    pub gue_port: u16,
    /// The network that the outer source is chosen from, by the hash of a flow; `None`: it is convey's own address.
    pub source: Option<Prefix>,
}

impl TunnelConfig {
    /// The port that IANA has given to GUE.
    pub const GUE_PORT: u16 = 6_080;
}

impl Default for TunnelConfig {
    fn default() -> TunnelConfig {
        TunnelConfig { gue_port: TunnelConfig::GUE_PORT, source: None }
    }
}

/// What goes before a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// An IP header alone (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// An IP header, one of UDP and one of GUE, version 0 (draft-ietf-intarea-gue).
    Gue {
        /// The server's port.
        port: u16,
    },
}

impl Encapsulation {
    /// The name in the configuration, and in traces.
    pub fn name(self) -> &'static str {
        match self {
            Encapsulation::Ipip => DsrKind::Ipip.name(),
            Encapsulation::Gue { .. } => DsrKind::Gue.name(),
        }
    }
}

/// The tunnel to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// What goes before each packet.
    pub encapsulation: Encapsulation,
    /// Where outer packets come from: one address, or a network. Of the server's family.
    pub source: Prefix,
    /// Where they go.
    pub server: Addr,
}

impl Tunnel {
    /// The longest that an outer header is, in bytes: IPv6, UDP and GUE.
    pub const MAX_OVERHEAD: usize = 40 + 8 + 4;

    /// How much longer packets become, in bytes.
    pub fn overhead(&self) -> u32 {
        let ip = if self.server.is_v4() { 20 } else { 40 };
        match self.encapsulation {
            Encapsulation::Ipip => ip,
            Encapsulation::Gue { .. } => ip + 8 + 4,
        }
    }

    /// The outer source of a flow with this hash.
    pub fn source_of(&self, hash: u32) -> Addr {
        self.source.member(hash.into()).into()
    }
}

impl DsrKind {
    /// What goes before packets; `None`: they go without a tunnel.
    pub fn encapsulation(self, config: &TunnelConfig) -> Option<Encapsulation> {
        match self {
            DsrKind::L3 | DsrKind::L2 => None,
            DsrKind::Ipip => Some(Encapsulation::Ipip),
            DsrKind::Gue => Some(Encapsulation::Gue { port: config.gue_port }),
        }
    }

    /// Whether packets go through a tunnel.
    pub fn has_tunnel(self) -> bool {
        self.encapsulation(&TunnelConfig::default()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_sources_are_one_address_or_as_many_as_the_network_has() {
        let of = |source: &str| Tunnel {
            encapsulation: Encapsulation::Ipip,
            source: source.parse().unwrap(),
            server: Addr::v4([10, 1, 0, 1]),
        };
        for (source, hash, expected) in [
            ("10.0.0.1", 0xffff_ffff, "10.0.0.1"),
            ("172.16.0.0/16", 0x1234_5678, "172.16.86.120"),
            ("fd00::1", 7, "fd00::1"),
            ("fd00::/64", 7, "fd00::7"),
        ] {
            assert_eq!(of(source).source_of(hash).ip().to_string(), expected);
        }
    }

    fn tunnel(encapsulation: Encapsulation, server: &str) -> Tunnel {
        let server: std::net::IpAddr = server.parse().unwrap();
        Tunnel { encapsulation, source: Prefix::of(server, 128), server: server.into() }
    }

    #[test]
    fn the_overhead_is_that_of_all_outer_headers() {
        let of = |encapsulation, server: &str| tunnel(encapsulation, server).overhead();
        let gue = Encapsulation::Gue { port: 6080 };
        assert_eq!([of(Encapsulation::Ipip, "10.0.0.1"), of(Encapsulation::Ipip, "fd00::1")], [20, 40]);
        assert_eq!([of(gue, "10.0.0.1"), of(gue, "fd00::1")], [32, 52]);
    }
}
