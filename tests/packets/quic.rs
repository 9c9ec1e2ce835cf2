//! Datagrams that look like QUIC: the balancer reads only their connection ids.

use convey_lab::Role;
use convey_testkit::wait_for;

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::udp::{ECHO, UdpEcho, exchange_until_answered, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![packets_whose_connection_id_names_a_server_go_there_from_any_port]
}

fn packets_whose_connection_id_names_a_server_go_there_from_any_port(case: Case) {
    let mut network = Network::new(case, 1, 3);
    let servers = ["01", "02", "03"].map(|id| format!("quic_server_id = \"{id}\"").leak() as &str);
    let servers = (1..).zip(servers).collect();
    let backend = "algorithm = \"maglev\"\nhash = \"quic_cid\"";
    network.balance(&Config { servers, backend, health: UNCHECKED, ..Config::udp(ECHO, 0) });
    let network = &network;
    let _servers = [1, 2, 3].map(|number| {
        let (role, name) = (Role::Server(number), format!("s{number} "));
        network.inside(role, || UdpEcho::signing(&name, (case.family.address(role), ECHO).into()))
    });
    let asked = |datagram: &[u8]| {
        let answer = network
            .inside(Role::Client(1), || exchange_until_answered(&socket_to(case.family.vip(ECHO)), datagram));
        answer.split_once(' ').map(|(name, _)| name.to_owned()).unwrap_or_default()
    };
    // A short header, scheme 0, the id, and the nonce.
    let named = |id: u8| [&[0x40, 0x00, id][..], b"nonce, and what is encrypted"].concat();
    for id in [1, 2, 3].repeat(5) {
        assert_eq!(asked(&named(id)), format!("s{id}"));
    }
    let names = (0..).map(|_| asked(&named(9)));
    let mut others = names.take(200).filter(|name| name != "s1");
    wait_for("a server of those that are chosen by hash", || others.next());
}
