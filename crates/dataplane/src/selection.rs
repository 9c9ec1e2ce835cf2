//! Selection of convey's traffic: the capture filter accepts these packets, and the guard drops
//! them before the host's stack receives them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use convey_model::{BackendConfig, DrainingEndpoints, Endpoint, FrontendConfig};

/// Traffic that convey forwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Frontend endpoints that accept new connections.
    pub frontends: BTreeSet<Endpoint>,
    /// Endpoints where convey only forwards packets of existing connections; new connections reach
    /// the host's stack.
    pub draining: BTreeSet<Endpoint>,
    /// Replies of servers to convey; `None` if all servers answer clients directly (DSR).
    pub replies: Option<Replies>,
}

/// Replies of servers that return through convey, to a SNAT port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replies {
    /// Sources of the replies. An entry without a port matches any port.
    pub servers: BTreeSet<Endpoint>,
    /// SNAT addresses of both families. Servers see these as their clients' addresses.
    pub snat_addresses: BTreeSet<IpAddr>,
    /// SNAT ports on these addresses, for all protocols.
    pub snat_ports: RangeInclusive<u16>,
}

impl Selection {
    /// Replaces the SNAT addresses. Has no effect if all servers answer clients directly (DSR).
    #[must_use]
    pub fn with_snat(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Selection {
        if let Some(replies) = &mut self.replies {
            replies.snat_addresses = addresses.into_iter().collect();
        }
        self
    }

    /// Builds the selection of these frontends, each with its backend. Ignores frontends in proxy
    /// modes. If there are SNAT addresses, servers of `passthrough` frontends reply to convey, in
    /// the frontend's protocol.
    pub fn new<'a>(
        frontends: impl IntoIterator<Item = (&'a FrontendConfig, &'a BackendConfig)>,
        snat_addresses: impl IntoIterator<Item = IpAddr>,
        snat_ports: RangeInclusive<u16>,
    ) -> Selection {
        let mut selection =
            Selection { frontends: BTreeSet::new(), draining: BTreeSet::new(), replies: None };
        let mut servers = BTreeSet::new();
        let packet_modes = frontends.into_iter().filter(|(frontend, _)| frontend.mode.forwards_packets());
        for (frontend, backend) in packet_modes {
            selection.frontends.extend(frontend.endpoints());
            if frontend.mode.has_snat() {
                let (protocol, used) = (frontend.protocol, backend.servers.iter());
                servers.extend(used.map(|server| Endpoint { protocol, addr: server.addr }));
            }
        }
        let snat_addresses: BTreeSet<IpAddr> = snat_addresses.into_iter().collect();
        if !snat_addresses.is_empty() {
            selection.replies = Some(Replies { servers, snat_addresses, snat_ports });
        }
        selection
    }

    /// Adds the draining endpoints, and the servers that still reply to convey.
    pub fn with(mut self, draining: &DrainingEndpoints) -> Selection {
        self.draining.extend(&draining.listen);
        if let Some(replies) = &mut self.replies {
            replies.servers.extend(&draining.servers);
        }
        self
    }

    /// Endpoints to which clients send packets for convey: serving and draining frontends.
    pub fn listen(&self) -> impl Iterator<Item = &Endpoint> {
        self.frontends.iter().chain(&self.draining)
    }

    /// All addresses at which convey receives packets: VIPs and SNAT addresses.
    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        let vips = self.listen().map(|frontend| frontend.addr.ip());
        vips.chain(self.replies.iter().flat_map(|replies| replies.snat_addresses.iter().copied())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::{Mode, Protocol};
    use convey_snapshot::fixture;

    fn frontend(mode: Mode, protocol: Protocol, listen: &[&str], backend: &str) -> FrontendConfig {
        let pool = fixture::pool(backend, vec![]);
        FrontendConfig { mode, protocol, ..fixture::frontend("f", listen, &pool).config.clone() }
    }

    fn backend(name: &str, servers: &[&str]) -> BackendConfig {
        fixture::backend(name, servers.iter().map(|addr| fixture::server("s", addr)).collect())
    }

    fn selection(snat_addresses: &[&str]) -> Selection {
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        let frontends = [
            frontend(Mode::Passthrough, tcp, &["203.0.113.1:80"], "web"),
            frontend(Mode::Passthrough, udp, &["203.0.113.1:53", "[2001:db8::1]:53"], "dns"),
            frontend(Mode::Dsr, tcp, &["203.0.113.2:80"], "direct"),
            frontend(Mode::Proxy, tcp, &["127.0.0.1:8080"], "relayed"),
        ];
        let backends = [
            backend("web", &["10.0.0.1:80"]),
            backend("dns", &["10.0.0.1:53", "[2001:db8:1::2]:53"]),
            backend("direct", &["10.0.0.2:80"]),
            backend("relayed", &["10.0.0.3:80"]),
        ];
        let addresses = snat_addresses.iter().map(|ip| ip.parse().unwrap());
        Selection::new(frontends.iter().zip(&backends), addresses, 33768..=61000)
    }

    fn names(endpoints: &BTreeSet<Endpoint>) -> Vec<String> {
        endpoints.iter().map(Endpoint::to_string).collect()
    }

    #[test]
    fn selection_has_frontends_of_packet_modes_only() {
        let ours = selection(&["10.0.0.9"]);
        assert_eq!(
            names(&ours.frontends),
            ["203.0.113.1:80", "203.0.113.2:80", "203.0.113.1:53/udp", "[2001:db8::1]:53/udp"]
        );
    }

    #[test]
    fn replies_are_selected_from_passthrough_servers_by_frontend_protocol() {
        let replies = selection(&["10.0.0.9", "2001:db8:1::9"]).replies.unwrap();
        assert_eq!(names(&replies.servers), ["10.0.0.1:80", "10.0.0.1:53/udp", "[2001:db8:1::2]:53/udp"]);
        assert_eq!(selection(&[]).replies, None);
    }
}
