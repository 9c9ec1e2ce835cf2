//! Tunnels for clients' packets to servers on other networks. Pure.

use crate::{Addr, DsrKind, Prefix};

/// Tunnel settings of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelConfig {
    /// UDP port of servers for GUE packets.
    pub gue_port: u16,
    /// Network of outer source addresses, from which the hash of a flow selects one; `None`:
    /// convey's own address.
    pub source: Option<Prefix>,
}

impl TunnelConfig {
    /// Port assigned to GUE by IANA.
    pub const GUE_PORT: u16 = 6_080;
}

impl Default for TunnelConfig {
    fn default() -> TunnelConfig {
        TunnelConfig { gue_port: TunnelConfig::GUE_PORT, source: None }
    }
}

/// Encapsulation: outer headers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// IP header only (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// IP header, UDP header and GUE header, version 0 (draft-ietf-intarea-gue).
    Gue {
        /// UDP port of the server.
        port: u16,
    },
}

impl Encapsulation {
    /// Name in the configuration, and in traces.
    pub fn name(self) -> &'static str {
        match self {
            Encapsulation::Ipip => DsrKind::Ipip.name(),
            Encapsulation::Gue { .. } => DsrKind::Gue.name(),
        }
    }
}

/// Tunnel to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// Outer headers of each packet.
    pub encapsulation: Encapsulation,
    /// Network of outer source addresses, of the server's address family; may be a single address.
    pub source: Prefix,
    /// Destination of outer packets: the server's address.
    pub server: Addr,
}

impl Tunnel {
    /// Maximum length of the outer headers, in bytes: IPv6, UDP and GUE.
    pub const MAX_OVERHEAD: usize = 40 + 8 + 4;

    /// Length of the outer headers, in bytes.
    pub fn overhead(&self) -> u32 {
        let ip = if self.server.is_v4() { 20 } else { 40 };
        match self.encapsulation {
            Encapsulation::Ipip => ip,
            Encapsulation::Gue { .. } => ip + 8 + 4,
        }
    }

    /// Outer source address of a flow with this hash.
    pub fn source_of(&self, hash: u32) -> Addr {
        self.source.member(hash.into()).into()
    }
}

impl DsrKind {
    /// Encapsulation of packets; `None`: packets use no tunnel.
    pub fn encapsulation(self, config: &TunnelConfig) -> Option<Encapsulation> {
        match self {
            DsrKind::L3 | DsrKind::L2 => None,
            DsrKind::Ipip => Some(Encapsulation::Ipip),
            DsrKind::Gue => Some(Encapsulation::Gue { port: config.gue_port }),
        }
    }

    /// Whether packets use a tunnel.
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
