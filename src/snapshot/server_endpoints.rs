//! Where servers listen: nobody who sends from there is a client.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use crate::model::{self, DsrKind, Endpoint, Mode, Protocol};

/// Addresses and ports of the servers of all frontends, by protocol. A datagram that says it comes from one of them is
/// forged: its answer would be answered, and so on without end.
///
/// An entry with port 0 is a server that listens on the port that its client asks for.
#[derive(Debug, Default)]
pub struct ServerEndpoints(HashSet<Endpoint>);

impl ServerEndpoints {
    /// Those of these frontends, each with its backend.
    pub fn of<'a>(frontends: impl IntoIterator<Item = (&'a model::Frontend, &'a model::Backend)>) -> Self {
        let (mut known, mut endpoints) = (HashSet::new(), HashSet::new());
        for (frontend, backend) in frontends {
            let (protocol, asked) =
                (frontend.protocol, frontend.mode == Mode::Dsr && backend.dsr == DsrKind::L2);
            if !known.insert((&backend.name, protocol, asked)) {
                continue;
            }
            for server in &backend.servers {
                let (ip, port) = (server.addr.ip(), server.addr.port());
                endpoints.insert(endpoint(protocol, ip, port));
                if asked {
                    endpoints.insert(endpoint(protocol, ip, 0));
                }
            }
        }
        ServerEndpoints(endpoints)
    }

    /// Whether a client that asks for this port sends from where a server listens.
    pub fn contain(&self, protocol: Protocol, client: SocketAddr, asked: u16) -> bool {
        let (ip, port) = (client.ip(), client.port());
        self.0.contains(&endpoint(protocol, ip, port))
            || (port == asked && self.0.contains(&endpoint(protocol, ip, 0)))
    }
}

/// Without what else an IPv6 socket address says.
fn endpoint(protocol: Protocol, ip: IpAddr, port: u16) -> Endpoint {
    Endpoint { protocol, addr: SocketAddr::new(ip, port) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::fixture;

    fn of(mode: Mode, dsr: DsrKind, addr: &str) -> ServerEndpoints {
        let backend = model::Backend { dsr, ..fixture::backend("b", vec![fixture::server("a", addr)]) };
        let frontend = fixture::frontend("f", &["192.0.2.1:53"], &fixture::pool("b", vec![]));
        let frontend = model::Frontend { mode, protocol: Protocol::Udp, ..frontend.config.clone() };
        ServerEndpoints::of([(&frontend, &backend)])
    }

    fn is_server(endpoints: &ServerEndpoints, client: &str) -> bool {
        endpoints.contain(Protocol::Udp, client.parse().unwrap(), 53)
    }

    #[test]
    fn a_server_is_its_address_with_its_port_and_protocol() {
        let endpoints = of(Mode::Passthrough, DsrKind::Nat, "10.0.0.1:5353");
        assert!(is_server(&endpoints, "10.0.0.1:5353"));
        assert!(!is_server(&endpoints, "10.0.0.1:40000"), "an ordinary client");
        assert!(!is_server(&endpoints, "10.0.0.1:53") && !is_server(&endpoints, "10.0.0.2:5353"));
        assert!(!endpoints.contain(Protocol::Tcp, "10.0.0.1:5353".parse().unwrap(), 53));
    }

    #[test]
    fn a_server_that_listens_on_what_is_asked_for_is_its_address_with_that_port() {
        let asked =
            [of(Mode::Dsr, DsrKind::L2, "10.0.0.1:5353"), of(Mode::Passthrough, DsrKind::Nat, "10.0.0.1:0")];
        for endpoints in asked {
            assert!(is_server(&endpoints, "10.0.0.1:53"));
            assert!(!is_server(&endpoints, "10.0.0.1:54"));
        }
    }

    #[test]
    fn an_interface_of_an_ipv6_address_makes_no_difference() {
        let endpoints = of(Mode::Proxy, DsrKind::Nat, "[fe80::1%3]:53");
        assert!(is_server(&endpoints, "[fe80::1]:53") && is_server(&endpoints, "[fe80::1%2]:53"));
    }
}
