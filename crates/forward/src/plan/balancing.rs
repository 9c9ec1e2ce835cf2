//! Plans from addresses alone, for programs and tests without weights and health checks.

use std::net::SocketAddr;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{Picked, Plan, PlannedFrontend, PlannedPool, PlannedServer, ServerPicker};
use crate::state::View;
use convey_model::{Addr, NextHops, Protocol};

/// Choice among a number of equal servers, by a hash of the client's address and port.
struct EqualShares(u64);

impl Plan {
    /// Creates a plan with one frontend at `vip`, whose clients are distributed over `servers` by a
    /// hash of their address and port. All servers are up and have equal shares. Their numbers
    /// count from 1; the frontend and the generation have the number 1.
    pub fn balancing(
        view: View,
        protocol: Protocol,
        vip: SocketAddr,
        servers: &[SocketAddr],
        network: NextHops,
    ) -> Plan {
        let picker = EqualShares(servers.len() as u64);
        let servers = (1..).zip(servers).map(|(id, addr)| Arc::new(PlannedServer::new(id, *addr))).collect();
        let pool = Arc::new(PlannedPool::new(servers, Arc::new(picker)));
        let frontend = PlannedFrontend::new(1, view, protocol, vip, pool);
        Plan::new(1, vec![Arc::new(frontend)], Arc::new(network))
    }
}

impl ServerPicker for EqualShares {
    fn pick(&self, client: SocketAddr, vip: SocketAddr) -> Picked {
        self.hash(client, vip)
            .checked_rem(self.0)
            .map_or(Picked::Nobody, |index| Picked::Server(index as usize))
    }

    fn hash(&self, client: SocketAddr, _vip: SocketAddr) -> u64 {
        let mut bytes = [0; 18];
        bytes[..16].copy_from_slice(Addr::from(client.ip()).bytes());
        bytes[16..].copy_from_slice(&client.port().to_be_bytes());
        xxh3_64(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_an_equal_share_and_each_client_one_server() {
        let servers = [1, 2, 3].map(|n| ([10, 0, 0, n], 80).into());
        let vip = ([192, 0, 2, 1], 80).into();
        for (servers, each) in [(&servers[..], 850..1150), (&servers[..1], 3000..3001)] {
            let network = NextHops::default();
            let plan = Plan::balancing(View::ClientSide, Protocol::Tcp, vip, servers, network);
            let picker = &plan.pools[0].picker;
            let mut shares = vec![0; servers.len()];
            for port in 1..=3000 {
                let client = ([203, 0, 113, 9], port).into();
                let Picked::Server(index) = picker.pick(client, vip) else { panic!("nobody") };
                assert_eq!(picker.pick(client, vip), Picked::Server(index));
                shares[index] += 1;
            }
            assert!(shares.iter().all(|share| each.contains(share)), "{shares:?}");
        }
        let nobody = Plan::balancing(View::ClientSide, Protocol::Tcp, vip, &[], NextHops::default());
        assert_eq!(nobody.pools[0].picker.pick(vip, vip), Picked::Nobody);
    }
}
