//! Frontends of all modes in one process, from one file.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use convey_lab::Role;
use convey_model::{Mode, Offload};
use convey_testkit::{TcpServer, connect, ping, wait_for};
use convey_wire::TestPacket;

use crate::case::{Case, Family, PacketTest, tests};
use crate::network::{DNS, Network, PORT};
use crate::raw::Wire;
use crate::udp::{ECHO, UdpEcho, exchange, socket_to};

/// Modes in which a server may send first.
const LAYER_4: [Mode; 3] = [Mode::Proxy, Mode::Passthrough, Mode::Dsr];

pub(crate) fn tests() -> Vec<PacketTest> {
    let anyhow = tests![every_mode_is_served_by_one_process_from_one_file[NFT]];
    // All modes are in one process, whichever is named.
    let once = tests![when |case| case.is_passthrough() =>
        forged_connections_of_dsr_keep_nobody_out_of_passthrough [NFT]];
    // The proxy has no offload. By IPv6 all clients of the lab count as one, for they share a
    // network.
    let proxied = tests![when |case| case.is_passthrough() && case.offload == Offload::Tc && case.family == Family::V4 =>
        busy_client_leaves_local_ports_for_others];
    [anyhow, once, proxied].concat()
}

/// The mode on the command line applies to the frontend without a mode.
fn every_mode_is_served_by_one_process_from_one_file(case: Case) {
    let mut network = Network::new(case, 1, 2);
    network.answer_directly();
    network.balance_with(&configuration(case));
    let network = &network;
    let _servers = [1, 2].map(|number| {
        network.server(number, |addr| {
            TcpServer::start(addr, |mut stream| write!(stream, "{}", stream.peer_addr()?))
        })
    });
    let _echos = [1, 2].map(|number| {
        let role = Role::Server(number);
        network.inside(role, || UdpEcho::start((case.family.address(role), ECHO).into()))
    });
    let [client, balancer] = [Role::Client(1), Role::Balancer].map(|role| case.family.address(role));
    for _ in 0..20 {
        for (mode, source) in [(Mode::Proxy, balancer), (Mode::Passthrough, balancer), (Mode::Dsr, client)] {
            assert_eq!(seen(network, case.family.vip(port(mode))), source, "by servers of {}", mode.name());
        }
        network.inside(Role::Client(1), || {
            assert_eq!(exchange(&socket_to(case.family.vip(ECHO)), b"hello").unwrap(), b"hello");
        });
    }
    for mode in LAYER_4 {
        let connections = network.stat(&format!("/frontends/{}/total_connections", mode.name()));
        assert_eq!(connections, 20, "{}", mode.name());
    }
}

/// 1,500 flows of the table are for DSR: by hash on one port, by least connections on another.
fn forged_connections_of_dsr_keep_nobody_out_of_passthrough(case: Case) {
    let mut network = Network::new(case, 2, 2);
    network.answer_directly();
    let [hashed, least, passthrough] = [PORT, DNS, port(Mode::Passthrough)].map(|port| case.family.vip(port));
    network.balance_with(&format!(
        "[passthrough]\noffload = \"{}\"\nworkers = 1\nmax_flows = 2000\n\
         [passthrough.timeouts]\nhandshake_only = 2\n\
         [frontends.hashed]\nmode = \"dsr\"\nlisten_addr = \"{hashed}\"\nbackend = \"web\"\n\
         [frontends.least]\nmode = \"dsr\"\nlisten_addr = \"{least}\"\nbackend = \"least\"\n\
         [frontends.passthrough]\nmode = \"passthrough\"\nlisten_addr = \"{passthrough}\"\nbackend = \"web\"\n\
         {}algorithm = \"maglev\"\n{}algorithm = \"least_connections\"\n",
        case.offload,
        backend("web", case.family, PORT),
        backend("least", case.family, DNS),
    ));
    let network = &network;
    let _servers = [1, 2].map(|number| {
        let at = |port| network.server(number, |addr| TcpServer::echo((addr.ip(), port).into()));
        [PORT, DNS].map(at)
    });
    let pinged = |vip| {
        network.inside(Role::Client(1), || {
            let mut stream = TcpStream::connect(vip)?;
            ping(&mut stream).map(|()| stream)
        })
    };
    let count = |state: &str| network.stat(&format!("/packets/flows/{state}")).as_u64().unwrap();
    let forge = |vip, data: &[u8]| {
        let mut wire = network.inside(Role::Client(2), Wire::open);
        let mut random = fastrand::Rng::with_seed(7);
        for n in 0..4_000 {
            forged(vip, data, &mut random).iter().for_each(|frame| wire.send(frame));
            // Slow enough not to fill a queue on the way.
            if n % 50 == 49 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };

    forge(least, b"");
    assert!(count("handshake_only") > 1_000, "{:#}", network.stat("/packets"));
    let _clients = [least, passthrough].map(|vip| [(); 50].map(|()| pinged(vip).unwrap()));
    wait_for("handshakes without data to be forgotten", || (count("handshake_only") == 0).then_some(()));

    forge(least, b"GET");
    wait_for("the share of DSR to be full", || (count("established") >= 1_500).then_some(()));
    let _clients = [(); 100].map(|()| pinged(passthrough).unwrap());
    let refused = || network.stat("/packets/drops/table_share_full").as_u64().unwrap();
    let before = refused();
    assert!(pinged(least).is_err());
    assert!(refused() > before);
    let _clients = [(); 10].map(|()| pinged(hashed).unwrap());
}

/// The host has 100 local ports. A client that half-closes leaves each that it had in TIME-WAIT.
fn busy_client_leaves_local_ports_for_others(case: Case) {
    let mut network = Network::new(case, 2, 1);
    network.inside(Role::Balancer, || {
        for (name, value) in [("ip_local_port_range", "40000 40099"), ("tcp_tw_reuse", "0")] {
            std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
        }
    });
    let vip = case.family.vip(PORT);
    let server = SocketAddr::new(case.family.address(Role::Server(1)), PORT);
    network.balance_with(&format!(
        "[frontends.web]\nmode = \"proxy\"\nlisten_addr = \"{vip}\"\nbackend = \"web\"\n\
         [backends.web]\nhealth_check.kind = \"none\"\nservers.s.addr = \"{server}\"\n"
    ));
    network.wait_for_log("proxy mode has only 100 local ports");
    let network = &network;
    let _server = network.server(1, |_| TcpServer::echo(server));
    let pinged = |client| {
        network.inside(Role::Client(client), || {
            let mut stream = TcpStream::connect(vip)?;
            ping(&mut stream).map(|()| stream)
        })
    };
    for n in 0..300 {
        let mut stream = pinged(1).unwrap_or_else(|error| panic!("connection {n}: {error}"));
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
    // Nor does one that keeps all that it gets.
    let held: Vec<TcpStream> = std::iter::from_fn(|| pinged(1).ok()).take(100).collect();
    assert!((50..100).contains(&held.len()), "{}", held.len());
    let _others = [(); 5].map(|()| pinged(2).unwrap());
    let ended = |reason: &str| network.stat(&format!("/frontends/web/ended/{reason}"));
    assert_eq!(
        (ended("no_local_port"), ended("connect_failed"), ended("client_limit")),
        (0.into(), 0.into(), 1.into())
    );
}

/// Packets of a forged DSR client: SYN, ACK and data.
fn forged(vip: SocketAddr, data: &[u8], random: &mut fastrand::Rng) -> [Vec<u8>; 3] {
    let from = crate::flood::unused_address(vip, random);
    let packet = || TestPacket::from(from).to(vip).macs(Role::Client(2).mac(), Role::Balancer.mac());
    let packets = [packet().syn().seq(7), packet().seq(8).ack(9), packet().seq(8).ack(9).payload(data)];
    packets.map(|packet| packet.bytes())
}

/// In DSR, the frontend has the servers' port.
fn port(mode: Mode) -> u16 {
    match mode {
        Mode::Proxy | Mode::Http => 8080,
        Mode::Passthrough => 8081,
        Mode::Dsr => PORT,
    }
}

/// Client address that a server sees.
fn seen(network: &Network, vip: SocketAddr) -> IpAddr {
    network.inside(Role::Client(1), || {
        let mut seen = String::new();
        connect(vip).read_to_string(&mut seen).unwrap();
        seen.parse::<SocketAddr>().unwrap().ip()
    })
}

fn configuration(case: Case) -> String {
    let mut text = format!("[passthrough]\noffload = \"{}\"\n", case.offload);
    for mode in LAYER_4 {
        let (name, vip) = (mode.name(), case.family.vip(port(mode)));
        text += &format!("[frontends.{name}]\nlisten_addr = \"{vip}\"\nbackend = \"web\"\n");
        if mode != case.mode {
            text += &format!("mode = \"{name}\"\n");
        }
    }
    text += &format!(
        "[frontends.echo]\nlisten_addr = \"{}\"\nprotocol = \"udp\"\nbackend = \"echo\"\n{}{}",
        case.family.vip(ECHO),
        backend("web", case.family, PORT),
        backend("echo", case.family, ECHO),
    );
    text
}

fn backend(name: &str, family: Family, port: u16) -> String {
    let mut text = format!("[backends.{name}.health_check]\nkind = \"none\"\n");
    for number in [1, 2] {
        let addr = SocketAddr::new(family.address(Role::Server(number)), port);
        text += &format!("[backends.{name}.servers.s{number}]\naddr = \"{addr}\"\n");
    }
    text + &format!("[backends.{name}]\n")
}
