//! A container behind the balancer, which masquerades for it, connects to a server of a passthrough
//! frontend.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use convey_lab::Role;
use convey_testkit::{TcpServer, TestNamespace, ping, run, wait_for};

use crate::case::{Case, Family, PacketTest, tests};
use crate::doctor_balancer::Patient;
use crate::network::{PORT, connect_from};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_passthrough() && case.family == Family::V4 =>
        masquerading_that_picks_snat_ports_is_named_with_its_remedy [NFT],
    ]
}

/// A port of the container among the SNAT ports, which `masquerade` keeps while it is free.
const SOURCE_PORT: u16 = 45_000;

fn masquerading_that_picks_snat_ports_is_named_with_its_remedy(case: Case) {
    let mut patient = Patient::of(case);
    let container = TestNamespace::new();
    let in_container = container.name();
    patient.ip(Role::Balancer, &format!("link add ct0 type veth peer name eth0 netns {in_container}"));
    patient.ip(Role::Balancer, "addr add 172.30.0.1/24 dev ct0");
    patient.ip(Role::Balancer, "link set ct0 up");
    container.ip("addr add 172.30.0.2/24 dev eth0");
    container.ip("link set eth0 up");
    container.ip("route add default via 172.30.0.1");
    let nft = |line: &str| patient.network.lab.run(Role::Balancer, "nft", &[line]).unwrap();
    nft("add table ip containers");
    nft("add chain ip containers out { type nat hook postrouting priority srcnat; }");
    nft("add rule ip containers out ip saddr 172.30.0.0/24 oifname eth0 masquerade");
    let check = |patient: &Patient| {
        let mut command = patient.command();
        run(command.arg("check").arg("--config").arg(patient.network.path("config.toml"))).stderr
    };
    // A host that forwards nothing does not masquerade.
    assert!(!check(&patient).contains("snat_ports"), "{}", check(&patient));
    let forward = ["-qw", "net.ipv4.ip_forward=1"];
    patient.network.lab.run(Role::Balancer, "sysctl", &forward).unwrap();
    let named = "(table ip containers) may select source ports";
    assert!(check(&patient).contains(named), "{}", check(&patient));

    patient.start();
    let _server = patient.network.server(1, TcpServer::echo);
    assert!(patient.network.log(Role::Balancer).contains(named), "{}", patient.network.log(Role::Balancer));
    let finding = patient.is_mended("snat-masquerade", Role::Balancer);
    assert_eq!(finding["severity"], "warning", "{finding:#}");
    patient.is_well();
    assert!(!check(&patient).contains(named), "{}", check(&patient));

    let from = SocketAddr::new(IpAddr::from([172, 30, 0, 2]), SOURCE_PORT);
    let server = patient.network.address(Role::Server(1));
    assert_eq!(server.port(), PORT);
    let mut stream =
        container.enter(|| wait_for("the container to connect", || connect_from(from, server).ok()));
    ping(&mut stream).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}
