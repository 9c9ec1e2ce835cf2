//! Client and server of a flow, with the addresses by which each sees the other.

use std::net::SocketAddr;

use convey_forward::Verdict;
use convey_model::UDP;
use convey_wire::TestPacket;

use super::balancer::{BalancerSetup, TestBalancer};

/// Ethernet address of the loopback interface, from which frames arrive in a test run of a program.
pub(crate) const US: [u8; 6] = [0; 6];
pub(crate) const THEM: [u8; 6] = [2, 0, 0, 0, 0, 9];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    client: SocketAddr,
    vip: SocketAddr,
    server: SocketAddr,
    snat: SocketAddr,
    is_udp: bool,
}

impl Ends {
    /// Begins a flow of a client with the core, by a SYN with the number 0 if it is TCP.
    pub(crate) fn begin(core: &mut TestBalancer, setup: &BalancerSetup, client: &str) -> Ends {
        let mut first = setup.packet(client).syn().bytes();
        let before = convey_wire::parse(&first).unwrap().key;
        assert!(matches!(core.handle(&mut first), Verdict::Transmit(_)));
        let after = convey_wire::parse(&first).unwrap().key;
        Ends {
            client: before.source(),
            vip: before.destination(),
            server: after.destination(),
            snat: after.source(),
            is_udp: before.protocol == UDP,
        }
    }

    /// Returns a packet of the client.
    pub(crate) fn to_server(self) -> TestPacket {
        self.packet(self.client, self.vip)
    }

    /// Returns a packet of the server.
    pub(crate) fn to_client(self) -> TestPacket {
        self.packet(self.server, self.snat)
    }

    fn packet(self, from: SocketAddr, to: SocketAddr) -> TestPacket {
        let packet = TestPacket::from(from).to(to).macs(THEM, US);
        if self.is_udp { packet.udp() } else { packet }
    }
}
