//! Two balancers that have each other as servers.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};

use convey_lab::{LabPlan, Role};

use crate::case::{Case, PacketTest, tests};
use crate::network::{Network, PORT};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_passthrough() => a_connection_that_goes_round_is_refused_and_counted]
}

fn a_connection_that_goes_round_is_refused_and_counted(case: Case) {
    let mut network = Network::planned(case, &LabPlan::new(1, 1).standby());
    let address = |role| SocketAddr::new(case.family.address(role), PORT);
    let text = |own, other| {
        format!(
            "[passthrough]\noffload = \"{}\"\n[frontends.web]\nlisten_addr = \"{}\"\nbackend = \"other\"\n\
             [backends.other.servers]\nx.addr = \"{}\"\n[backends.other.health_check]\nkind = \"none\"\n",
            case.offload,
            address(own),
            address(other),
        )
    };
    network.balance_with(&text(Role::Balancer, Role::Standby));
    let _standby = network.start_standby_with(&text(Role::Standby, Role::Balancer));
    for n in 1..4 {
        let refused =
            network.inside(Role::Client(1), || TcpStream::connect(address(Role::Balancer)).unwrap_err());
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
        for role in [Role::Balancer, Role::Standby] {
            assert_eq!(
                network.stat_of(role, "/frontends/web/total_connections"),
                n,
                "one flow at the {role}"
            );
        }
        assert_eq!(network.stat("/packets/drops/forwarding_loop"), n);
    }
}
