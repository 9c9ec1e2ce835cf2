//! A second balancer that takes the VIP over.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_model::DsrKind;
use convey_testkit::{Wrk, send, wait_for};
use socket2::{Domain, Protocol, Socket, Type};

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::l2;
use crate::network::{Network, PORT};
use crate::slow_download::{assert_under_way, assert_whole, under_way};
use crate::udp::{ECHO, UdpEcho, exchange_until_answered, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when Case::is_dsr =>
        a_second_balancer_takes_the_vip_over_and_cuts_no_connection [ARPING, NGINX, WRK],
        a_second_balancer_cuts_no_connection_to_servers_that_have_the_vip [ARPING, NGINX, WRK],
        streams_of_datagrams_keep_their_server_when_the_vip_moves [ARPING],
        udp_streams_keep_their_l2_server_across_a_takeover [ARPING],
    ]
}

/// Size of a client's download, so that it is under way while the VIP moves.
const BYTES: u64 = 32 << 20;

/// There and back again.
const MOVES: [(Role, Role); 2] = [(Role::Balancer, Role::Standby), (Role::Standby, Role::Balancer)];

fn a_second_balancer_takes_the_vip_over_and_cuts_no_connection(case: Case) {
    connections_go_on(case, DsrKind::L3);
}

fn a_second_balancer_cuts_no_connection_to_servers_that_have_the_vip(case: Case) {
    connections_go_on(case, DsrKind::L2);
}

fn streams_of_datagrams_keep_their_server_when_the_vip_moves(case: Case) {
    streams_go_on(case, DsrKind::L3);
}

fn udp_streams_keep_their_l2_server_across_a_takeover(case: Case) {
    streams_go_on(case, DsrKind::L2);
}

fn connections_go_on(case: Case, dsr: DsrKind) {
    let mut network = prepared(case, dsr);
    let servers = [1, 2, 3].map(|number| network.nginx_on(number, listen(&network, dsr, number, PORT)));
    for server in &servers {
        send(&mut File::create(server.file("big")).unwrap(), BYTES).unwrap();
    }
    network.balance(&Config { backend: backend(dsr), ..Config::new(3) });
    let _standby = network.start_standby();
    (1..=3).for_each(|server| network.wait_for_health(server, true));
    let wrk = Wrk::spawn(network.client(2, "wrk"), network.path("").as_path(), network.vip(), 8);
    let downloads = under_way::<12>(&network);
    for (from, to) in MOVES {
        let before = forwarded(&network, to, "total_connections");
        move_vip(&network, from, to);
        wait_for("clients to come this way", || {
            (forwarded(&network, to, "total_connections") > before + 200).then_some(())
        });
        assert_under_way(&downloads);
    }
    let [more] = under_way(&network);
    assert_whole(downloads.into_iter().chain([more]), BYTES);
    let summary = wrk.stop();
    assert_eq!(summary.failed, 0, "{}{}", summary.text, seen_by(&network));
}

/// Counters of both balancers, the client and the servers, to find out which of them ended a
/// connection.
fn seen_by(network: &Network) -> String {
    let balancers = [Role::Balancer, Role::Standby].map(|role| {
        let counted = network.stat_of(role, "/packets");
        format!("{role}: drops {}, flows {}, cache {}", counted["drops"], counted["flows"], counted["cache"])
    });
    let hosts = [Role::Client(2), Role::Server(1), Role::Server(2), Role::Server(3)].map(|role| {
        let counted = network.lab.run(role, "nstat", &["-as"]).unwrap();
        let lines = counted.lines().filter(|line| line.starts_with("Tcp"));
        format!(
            "{role}: {}",
            lines.flat_map(|line| line.split_whitespace().take(2)).collect::<Vec<_>>().join(" ")
        )
    });
    balancers.into_iter().chain(hosts).fold(String::new(), |told, line| told + &line + "\n")
}

/// Checks that streams go on. Each stream has one port of the client.
fn streams_go_on(case: Case, dsr: DsrKind) {
    let mut network = prepared(case, dsr);
    let _servers = [1, 2, 3].map(|number| {
        let addr = listen(&network, dsr, number, ECHO);
        network.inside(Role::Server(number), || UdpEcho::signing(&format!("s{number} "), addr))
    });
    let config = Config { health: UNCHECKED, backend: backend(dsr), ..Config::udp(ECHO, 3) };
    network.balance(&config);
    let _standby = network.start_standby();
    let streams: Vec<UdpSocket> =
        network.inside(Role::Client(1), || (0..30).map(|_| socket_to(case.family.vip(ECHO))).collect());
    let answers =
        || streams.iter().map(|stream| exchange_until_answered(stream, b"whose?")).collect::<Vec<_>>();
    let before = answers();
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3, "each server has some: {before:?}");
    for (from, to) in MOVES {
        let arrived = forwarded(&network, to, "bytes_rx");
        move_vip(&network, from, to);
        for _ in 0..3 {
            assert_eq!(answers(), before);
        }
        // Each exchange has at least 6 bytes.
        assert!(forwarded(&network, to, "bytes_rx") >= arrived + 3 * 30 * 6, "they came this way");
    }
}

/// A second balancer, and servers prepared for this kind of DSR.
fn prepared(case: Case, dsr: DsrKind) -> Network {
    let plan = LabPlan::new(2, 3).standby();
    match dsr {
        DsrKind::L3 => Network::planned(case, &plan),
        DsrKind::L2 => l2::planned(case, &plan),
        DsrKind::Ipip | DsrKind::Gue => unreachable!("no test has one"),
    }
}

fn backend(dsr: DsrKind) -> &'static str {
    match dsr {
        DsrKind::L3 => Config::new(0).backend,
        DsrKind::L2 => l2::BACKEND,
        DsrKind::Ipip | DsrKind::Gue => unreachable!("no test has one"),
    }
}

/// Address on which a server listens so that it answers from the address that the client used.
fn listen(network: &Network, dsr: DsrKind, server: u8, port: u16) -> SocketAddr {
    let family = network.case.family;
    match (dsr, port) {
        (DsrKind::L3, _) => (family.address(Role::Server(server)), port).into(),
        // TCP also for health checks.
        (DsrKind::L2, PORT) => (family.any(), port).into(),
        (DsrKind::L2, _) => family.vip(port),
        (DsrKind::Ipip | DsrKind::Gue, _) => unreachable!("no test has one"),
    }
}

/// Counter of a balancer at the frontend so far.
fn forwarded(network: &Network, role: Role, counter: &str) -> u64 {
    network.stat_of(role, &format!("/frontends/web/{counter}")).as_u64().unwrap()
}

/// Moves the VIP like keepalived: removes it here, adds it there, and announces it.
pub(crate) fn move_vip(network: &Network, from: Role, to: Role) {
    let vip = network.vip().ip();
    let (vip_text, length) = (vip.to_string(), if vip.is_ipv4() { 32 } else { 128 });
    let address = format!("{vip}/{length}");
    network.lab.run(from, "ip", &["addr", "del", &address, "dev", INTERFACE]).unwrap();
    let mut add = vec!["addr", "add", &address, "dev", INTERFACE];
    if vip.is_ipv6() {
        add.extend(["nodad", "preferred_lft", "0"]);
    }
    network.lab.run(to, "ip", &add).unwrap();
    match vip {
        IpAddr::V4(_) => {
            let arguments = ["-U", "-c", "1", "-I", INTERFACE, &vip_text];
            network.lab.run(to, "arping", &arguments).unwrap();
        }
        IpAddr::V6(vip) => network.inside(to, || advertise(vip, to.mac())),
    }
}

/// Sends an unsolicited neighbour advertisement (RFC 4861, sections 4.4 and 7.2.6).
fn advertise(vip: Ipv6Addr, mac: [u8; 6]) {
    const ADVERTISEMENT: u8 = 136;
    const OVERRIDE: u8 = 0x20;
    const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend_from_slice(&vip.octets());
    message.extend_from_slice(&[TARGET_LINK_LAYER_ADDRESS, 1]);
    message.extend_from_slice(&mac);
    // The kernel writes the checksum.
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
    socket.set_multicast_hops_v6(255).unwrap();
    socket.bind_device(Some(INTERFACE.as_bytes())).unwrap();
    socket.bind(&SocketAddrV6::new(vip, 0, 0, 0).into()).unwrap();
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    socket.send_to(&message, &SocketAddrV6::new(all_nodes, 0, 0, 0).into()).unwrap();
}
