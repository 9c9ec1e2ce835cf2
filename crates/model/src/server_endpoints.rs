//! Listen addresses of servers. convey refuses clients that send from these addresses.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::{self as model, Endpoint, Listen, Protocol};

/// Listen addresses of the servers of all frontends, by protocol. A datagram that comes from such
/// an address is forged: if convey forwarded it, two servers would answer each other endlessly.
#[derive(Debug, Default)]
pub struct ServerEndpoints {
    /// Each new client is looked up here, so the hash is a fast one.
    ips: foldhash::HashSet<IpAddr>,
    /// Endpoints of servers with a configured port.
    own: HashSet<Endpoint>,
    /// Listen ports of servers that listen on the port that the client connected to: the port
    /// ranges of their frontends. The key is the protocol and the server's IP address.
    client_ports: HashMap<(Protocol, IpAddr), HashSet<RangeInclusive<u16>>>,
}

impl ServerEndpoints {
    /// Endpoints of the servers of these frontends. Each frontend comes with its backend.
    pub fn of<'a>(
        frontends: impl IntoIterator<Item = (&'a model::FrontendConfig, &'a model::BackendConfig)>,
    ) -> Self {
        let mut endpoints = ServerEndpoints::default();
        let mut known = HashSet::new();
        for (frontend, backend) in frontends {
            let protocol = frontend.protocol;
            let keeps_port = frontend.mode.is_dsr() && backend.dsr.keeps_destination();
            let ports: HashSet<_> = frontend.listen.iter().map(Listen::ports).collect();
            for port in ports {
                // Another frontend with the same backend and ports adds no endpoint.
                if !known.insert((&backend.name, protocol, keeps_port, port.clone())) {
                    continue;
                }
                for server in &backend.servers {
                    let (ip, own) = (server.addr.ip(), server.addr.port());
                    endpoints.ips.insert(ip);
                    if own != 0 {
                        endpoints.own.insert(endpoint(protocol, ip, own));
                    }
                    if own == 0 || keeps_port {
                        endpoints.client_ports.entry((protocol, ip)).or_default().insert(port.clone());
                    }
                }
            }
        }
        endpoints
    }

    /// Whether a server has this address.
    pub fn have_ip(&self, ip: IpAddr) -> bool {
        self.ips.contains(&ip)
    }

    /// Whether `client`, which connects to the port `listen_port`, sends from a server's listen
    /// address.
    ///
    /// Some servers listen on the port that clients connected to, so they have a listen address for
    /// each port of their frontends. For a datagram from any of these addresses the result is true,
    /// because two such ports could answer each other. For a SYN the result is true only if its
    /// source port is `listen_port`: a handshake cannot loop, and the server may be a client from
    /// any other port.
    pub fn contain(&self, protocol: Protocol, client: SocketAddr, listen_port: u16) -> bool {
        let (ip, port) = (client.ip(), client.port());
        if self.own.contains(&endpoint(protocol, ip, port)) {
            return true;
        }
        let Some(ranges) = self.client_ports.get(&(protocol, ip)) else { return false };
        let listens = |port: u16| ranges.iter().any(|range| range.contains(&port));
        match protocol {
            Protocol::Tcp => port == listen_port && listens(listen_port),
            Protocol::Udp => listens(port),
        }
    }
}

/// Endpoint without the flow label and scope of an IPv6 socket address.
fn endpoint(protocol: Protocol, ip: IpAddr, port: u16) -> Endpoint {
    Endpoint { protocol, addr: SocketAddr::new(ip, port) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DsrKind, Mode, fixture};

    fn of(mode: Mode, dsr: DsrKind, addr: &str) -> ServerEndpoints {
        let backend = model::BackendConfig { dsr, ..fixture::backend("b", vec![fixture::server("a", addr)]) };
        let frontend = fixture::frontend("f", &["192.0.2.1:53"], "b");
        let frontend = model::FrontendConfig { mode, protocol: Protocol::Udp, ..frontend.clone() };
        ServerEndpoints::of([(&frontend, &backend)])
    }

    fn is_server(endpoints: &ServerEndpoints, client: &str) -> bool {
        endpoints.contain(Protocol::Udp, client.parse().unwrap(), 53)
    }

    #[test]
    fn a_server_is_its_address_with_its_port_and_protocol() {
        let endpoints = of(Mode::Passthrough, DsrKind::L3, "10.0.0.1:5353");
        assert!(is_server(&endpoints, "10.0.0.1:5353"));
        assert!(!is_server(&endpoints, "10.0.0.1:40000"), "an ordinary client");
        assert!(!is_server(&endpoints, "10.0.0.1:53") && !is_server(&endpoints, "10.0.0.2:5353"));
        assert!(!endpoints.contain(Protocol::Tcp, "10.0.0.1:5353".parse().unwrap(), 53));
    }

    #[test]
    fn server_that_keeps_client_ports_is_its_address_with_that_port() {
        let client_ports =
            [of(Mode::Dsr, DsrKind::L2, "10.0.0.1:5353"), of(Mode::Passthrough, DsrKind::L3, "10.0.0.1:0")];
        for endpoints in client_ports {
            assert!(is_server(&endpoints, "10.0.0.1:53"));
            assert!(!is_server(&endpoints, "10.0.0.1:54"));
        }
    }

    #[test]
    fn client_port_servers_are_known_at_each_frontend_port() {
        let backend = fixture::backend("b", vec![fixture::server("a", "10.0.0.1:0")]);
        let frontends = ["192.0.2.1:5000-5003", "192.0.2.1:6000"].map(|listen| {
            let frontend = fixture::frontend("f", &["192.0.2.1:53"], "b");
            let listen = vec![listen.parse().unwrap()];
            model::FrontendConfig { protocol: Protocol::Udp, listen, ..frontend.clone() }
        });
        let endpoints = ServerEndpoints::of(frontends.iter().map(|frontend| (frontend, &backend)));
        let is_server = |client: &str| endpoints.contain(Protocol::Udp, client.parse().unwrap(), 5_000);
        assert!(["10.0.0.1:5000", "10.0.0.1:5003", "10.0.0.1:6000"].into_iter().all(is_server));
        assert!(!["10.0.0.1:5004", "10.0.0.1:40000", "10.0.0.2:5000"].into_iter().any(is_server));
    }

    #[test]
    fn an_interface_of_an_ipv6_address_makes_no_difference() {
        let endpoints = of(Mode::Proxy, DsrKind::L3, "[fe80::1%3]:53");
        assert!(is_server(&endpoints, "[fe80::1]:53") && is_server(&endpoints, "[fe80::1%2]:53"));
    }
}
