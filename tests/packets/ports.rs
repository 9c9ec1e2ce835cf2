//! Frontends with a range of ports, and servers that keep the port.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_testkit::{TcpServer, connect, ftp_server, ping, run, wait_for};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::UNCHECKED;
use crate::network::Network;
use crate::udp::{UdpEcho, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![when |case| case.family == Family::V4 || case.is_cached() =>
        passive_ftp_is_served_by_the_server_of_the_control_connection [CURL],
    ];
    tests.extend(tests![when |case| case.family == Family::V4 =>
        udp_port_pair_of_a_client_leads_to_one_server,
        a_reload_widens_a_range_under_an_open_connection,
        ten_thousand_ports_are_one_frontend,
    ]);
    tests.extend(
        tests![when |case| case.is_passthrough() && case.family == Family::V4 && !case.is_cached() =>
            a_reload_that_takes_a_worker_its_last_snat_ports_is_refused,
        ],
    );
    tests
}

/// Command port of FTP servers.
const FTP: u16 = 21;

/// Ports from which the lab's servers answer in mode DSR.
const PORTS: &str = "21 10000-20000 21000-21010";

fn passive_ftp_is_served_by_the_server_of_the_control_connection(case: Case) {
    let mut network = prepared(case, 4);
    let text = text(&network, &[FTP..=FTP, 21_000..=21_010], "", "port = 21\ninterval = 0.2");
    network.balance_with(&text);
    let ftp = |number: u8, name: &'static str| {
        network.server(number, move |addr| ftp_server(at(addr, FTP), 21_000..=21_010, name))
    };
    let _servers = [ftp(1, "one"), ftp(2, "two")];
    [1, 2].into_iter().for_each(|server| network.wait_for_health(server, true));
    let url = format!("ftp://{}/file", case.family.vip(FTP));
    for client in 1..=4 {
        for _ in 0..3 {
            let ran = run(network.client(client, "curl").args(["-sS", &url]));
            // A data connection that met another server would have been refused there.
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "client {client}");
            assert!(["one", "two"].contains(&ran.stdout.as_str()), "{ran:?}");
        }
    }
    let connections = network.stat("/frontends/web/total_connections");
    assert_eq!(connections, 24, "of control and of data, at one frontend");
}

fn udp_port_pair_of_a_client_leads_to_one_server(case: Case) {
    let mut network = prepared(case, 3);
    let text = text(&network, &[21_000..=21_003], "protocol = \"udp\"", UNCHECKED);
    network.balance_with(&text);
    let echo = |server: u8, port: u16| {
        let role = Role::Server(server);
        let name = format!("{server} {port} ");
        network.inside(role, || UdpEcho::signing(&name, at(network.address(role), port)))
    };
    let _servers: Vec<UdpEcho> = [1, 2]
        .into_iter()
        .flat_map(|server| (21_000..21_004).map(move |port| (server, port)))
        .map(|(server, port)| echo(server, port))
        .collect();
    for client in 1..=3 {
        let fetch = |port: u16| {
            let socket = socket_to(case.family.vip(port));
            let answers = [(); 3].map(|()| exchange(&socket, b"?").unwrap());
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
            String::from_utf8(answers[0].clone()).unwrap()
        };
        let answers = network.inside(Role::Client(client), || [21_000, 21_001, 21_003].map(fetch));
        let server = &answers[0][..1];
        assert_eq!(
            answers,
            [21_000, 21_001, 21_003].map(|port| format!("{server} {port} ?")),
            "client {client}"
        );
    }
    assert_eq!(network.stat("/frontends/web/total_connections"), 9);
}

fn a_reload_widens_a_range_under_an_open_connection(case: Case) {
    let mut network = prepared(case, 1);
    let [narrow, wide] = [21_004, 21_010].map(|last| text(&network, &[21_000..=last], "", UNCHECKED));
    network.balance_with(&narrow);
    let network = &network;
    let echo = |server: u8, port: u16| network.server(server, move |addr| TcpServer::echo(at(addr, port)));
    let _servers = [echo(1, 21_002), echo(1, 21_009), echo(2, 21_002), echo(2, 21_009)];
    let [inside, beyond] = [21_002, 21_009].map(|port| case.family.vip(port));
    let mut held = network.inside(Role::Client(1), || connect(inside));
    ping(&mut held).unwrap();
    network.save_with(&wide);
    wait_for("the range to be wider", || {
        let listen = network.stat("/frontends/web/listen_addr/0");
        listen.as_str()?.ends_with(":21000-21010").then_some(())
    });
    let mut new = network.inside(Role::Client(1), || connect(beyond));
    [&mut new, &mut held].into_iter().for_each(|stream| ping(stream).unwrap());
    network.save_with(&narrow);
    wait_for("the range to be narrower", || {
        let listen = network.stat("/frontends/web/listen_addr/0");
        listen.as_str()?.ends_with(":21000-21004").then_some(())
    });
    [&mut new, &mut held].into_iter().for_each(|stream| ping(stream).unwrap());
    assert_eq!(network.stat("/frontends/web/total_connections"), 2);
}

/// As many ports as telephone exchanges use for RTP.
fn ten_thousand_ports_are_one_frontend(case: Case) {
    const ASKED: [u16; 3] = [10_000, 15_000, 20_000];
    let mut network = prepared(case, 1);
    network.balance_with(&text(&network, &[10_000..=20_000], "protocol = \"udp\"", UNCHECKED));
    let echo = |server: u8, port: u16| {
        let role = Role::Server(server);
        network.inside(role, || UdpEcho::start(at(network.address(role), port)))
    };
    let _servers: Vec<UdpEcho> =
        ASKED.iter().flat_map(|port| [1, 2].map(|server| echo(server, *port))).collect();
    network.inside(Role::Client(1), || {
        for port in ASKED {
            let socket = socket_to(case.family.vip(port));
            (0..3).for_each(|_| assert_eq!(exchange(&socket, b"?").unwrap(), b"?"));
        }
        for beside in [9_999, 20_001] {
            let refused = exchange(&socket_to(case.family.vip(beside)), b"?").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "by the host's own stack");
        }
    });
    assert_eq!(network.stat("/frontends/web/total_connections"), 3);
}

/// Half of the ports were a frontend's at the start, and the reload wants the other half.
fn a_reload_that_takes_a_worker_its_last_snat_ports_is_refused(case: Case) {
    let mut network = prepared(case, 1);
    let own = network.address(Role::Balancer).ip();
    // Four ports are left, as many as there are connections below.
    let text = |ports: &str| {
        let snat = format!("snat_addresses = [\"{own}\"]\nsnat_ports = \"40000-40007\"\nworkers = 1\n");
        let frontend = "backend = \"pool\"\n[frontends.range]\nbackend = \"pool\"\n";
        text(&network, &[FTP..=FTP], "", UNCHECKED)
            .replace("backend = \"pool\"\n", &format!("{frontend}listen_addr = \"{own}:{ports}\"\n"))
            + &snat
    };
    let [first, others] = [text("40000-40003"), text("40004-40007")];
    network.balance_with(&first);
    let network = &network;
    let _servers = [1, 2].map(|server| network.server(server, |addr| TcpServer::echo(at(addr, FTP))));
    let serves = || network.inside(Role::Client(1), || ping(&mut connect(case.family.vip(FTP))).unwrap());
    serves();
    network.save_with(&others);
    wait_for("the reload to be refused", || {
        let log = network.log(Role::Balancer);
        let why = "frontend range: its ports need a restart: they are SNAT ports of this process now, and without them one \
                   of its threads would have no SNAT port";
        (log.contains(why) && log.contains("the running configuration stays")).then_some(())
    });
    assert_eq!(network.stat("/frontends/range/listen_addr/0"), format!("{own}:40000-40003"));
    (0..3).for_each(|_| serves());
}

/// Clients and two servers, which answer on the ports of these tests.
fn prepared(case: Case, clients: u8) -> Network {
    let network = Network::bare(case, &LabPlan::new(clients, 2));
    if case.is_dsr() {
        let [vip, balancer] =
            [case.family.vip(0).ip(), case.family.address(Role::Balancer)].map(|ip| ip.to_string());
        for server in [1, 2].map(Role::Server) {
            let own = case.family.address(server).to_string();
            let variables = [
                ("VIP", &*vip),
                ("PORTS", PORTS),
                ("SERVER", &own),
                ("BALANCERS", &balancer),
                ("INTERFACE", INTERFACE),
            ];
            network.script(server, "tc/dsr-server-nft.sh", "up", &variables);
        }
    }
    network
}

fn at(addr: SocketAddr, port: u16) -> SocketAddr {
    SocketAddr::new(addr.ip(), port)
}

/// A frontend with these ports, and two servers without a port, which share clients by their
/// address.
fn text(network: &Network, ports: &[RangeInclusive<u16>], frontend: &str, health: &str) -> String {
    let Case { family, offload, .. } = network.case;
    let listen: Vec<String> =
        ports.iter().map(|ports| format!("{}-{}", family.vip(*ports.start()), ports.end())).collect();
    let [one, two] = [1, 2].map(|server| match family.address(Role::Server(server)) {
        IpAddr::V4(addr) => addr.to_string(),
        IpAddr::V6(addr) => format!("[{addr}]"),
    });
    format!(
        "[frontends.web]\nlisten_addr = {listen:?}\nbackend = \"pool\"\n{frontend}\n\
         [backends.pool]\nalgorithm = \"maglev\"\nhash = \"source\"\n[backends.pool.health_check]\n{health}\n\
         [backends.pool.servers]\ns1.addr = \"{one}\"\ns2.addr = \"{two}\"\n[passthrough]\noffload = \"{offload}\"\n"
    )
}
