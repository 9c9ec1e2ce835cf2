//! `convey doctor` in labs with faults of the host and of servers that pass their health check.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{TcpServer, connect, fetch, wait_for};
use socket2::{Domain, Socket, Type};

use crate::case::{Case, Family, PacketTest, tests};
use crate::doctor_balancer::Patient;
use crate::l2::prepared;
use crate::network::{Network, PORT, connect_from};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut all = tests![when |case| case.is_passthrough() && case.is_typical() =>
        vip_on_the_wrong_interface_is_named [NGINX],
    ];
    all.extend(tests![when |case| case.is_passthrough() && case.family == Family::V4 && case.is_cached() =>
        ipv6_that_is_turned_off_is_named [NGINX],
        full_accept_queue_is_named,
        strict_rp_filter_beside_a_second_leg_is_named [NGINX],
        server_that_closes_connections_at_once_is_named [NGINX],
        server_that_answers_no_request_is_named [NGINX],
        server_that_swallows_data_is_named,
        range_without_listeners_is_named [NGINX],
    ]);
    all.extend(tests![when |case| case.is_dsr() && case.family == Family::V4 && case.is_cached() =>
        balancer_without_an_address_of_its_own_is_named [NGINX],
    ]);
    all
}

fn vip_on_the_wrong_interface_is_named(case: Case) {
    let mut patient = Patient::proxy(case);
    let _server = patient.network.nginx(1);
    let vip = patient.network.vip().ip();
    let (length, nodad) = if vip.is_ipv4() { (32, "") } else { (128, " nodad") };
    let elsewhere = patient.network.lab.namespace(Role::Client(1));
    patient.ip(Role::Balancer, &format!("link add side type veth peer name side netns {elsewhere}"));
    for role in [Role::Balancer, Role::Client(1)] {
        patient.ip(role, "link set side up");
    }
    patient.ip(Role::Balancer, &format!("addr del {vip}/{length} dev {INTERFACE}"));
    patient.ip(Role::Balancer, &format!("addr add {vip}/{length} dev side{nodad}"));
    patient.start();
    let finding = patient.is_mended("vip-misplaced", Role::Balancer);
    // With IPv6, no host answers for an address of another interface.
    let severity = if vip.is_ipv4() { "warning" } else { "error" };
    assert_eq!(finding["severity"], severity, "{finding:#}");
    patient.is_well();
    patient.serves();
}

fn ipv6_that_is_turned_off_is_named(case: Case) {
    let mut patient = Patient::proxy(case);
    let _server = patient.network.nginx(1);
    let (vip, vip_v6) = (Family::V4.vip(PORT), Family::V6.vip(PORT));
    patient.change(&format!("\"{vip}\""), &format!("[\"{vip}\", \"{vip_v6}\"]"));
    let off = format!("net.ipv6.conf.{INTERFACE}.disable_ipv6=1");
    patient.network.lab.run(Role::Balancer, "sysctl", &["-qw", &off]).unwrap();
    patient.is_mended("ipv6-disabled", Role::Balancer);
    let own = Family::V6.address(Role::Balancer);
    patient.ip(Role::Balancer, &format!("addr add {own}/64 dev {INTERFACE} nodad"));
    patient.start();
    patient.is_well();
    wait_for("a client of IPv6 to be served", || {
        patient.network.inside(Role::Client(1), || fetch(vip_v6, "/").ok())
    });
}

fn full_accept_queue_is_named(case: Case) {
    let patient = Patient::proxy(case);
    patient.change("mode = \"proxy\"", "mode = \"proxy\"\nmax_connections = 1");
    patient.network.lab.run(Role::Balancer, "sysctl", &["-qw", "net.core.somaxconn=2"]).unwrap();
    let patient = patient.started();
    let _server = patient.network.server(1, TcpServer::echo);
    let vip = patient.network.vip();
    let begin = || {
        let socket = Socket::new(Domain::for_address(vip), Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        // The connection attempt is in progress.
        let _ = socket.connect(&vip.into());
        socket
    };
    let held: Vec<Socket> = patient.network.inside(Role::Client(1), || (0..64).map(|_| begin()).collect());
    wait_for("the queue to be full", || {
        let (_, json) = patient.examine();
        json["findings"].as_array().unwrap().iter().any(|one| one["check"] == "accept-queue").then_some(())
    });
    patient.has("accept-queue");
    drop(held);
    wait_for("the queue to be empty", || {
        let (_, json) = patient.examine();
        (json["findings"] == serde_json::json!([])).then_some(())
    });
}

/// Packets of clients in another network arrive by the interface of the VIP, and answers leave by
/// the other one.
fn strict_rp_filter_beside_a_second_leg_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.nginx(1);
    patient.serves();
    let client = Role::Client(1);
    let namespace = patient.network.lab.namespace(client);
    patient.ip(Role::Balancer, &format!("link add side type veth peer name side netns {namespace}"));
    patient.ip(Role::Balancer, "addr add 10.78.0.1/24 dev side");
    patient.ip(client, "addr add 10.78.0.2/24 dev side");
    for role in [Role::Balancer, client] {
        patient.ip(role, "link set side up");
        let strict = u8::from(role == Role::Balancer);
        let settings = [("all", 0), ("side", 0), (INTERFACE, strict)]
            .map(|(name, value)| format!("net.ipv4.conf.{name}.rp_filter={value}"));
        let [all, side, main] = &settings;
        patient.network.lab.run(role, "sysctl", &["-qw", all, side, main]).unwrap();
    }
    patient.ip(Role::Balancer, "route add default via 10.78.0.2 dev side");
    patient.ip(client, "addr add 10.99.0.5/32 dev lo");
    let far: SocketAddr = "10.99.0.5:0".parse().unwrap();
    let vip = patient.network.vip();
    let finding = patient.is_mended("rp-filter", Role::Balancer);
    assert_eq!(finding["severity"], "warning", "{finding:#}");
    patient.is_well();
    wait_for("a client of another network to be connected", || {
        patient.network.inside(client, || connect_from(far, vip).ok())
    });
}

fn server_that_closes_connections_at_once_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let broken = patient.network.server(1, |addr| TcpServer::start(addr, |_| Ok(())));
    let finding = patient.has("server-ends");
    assert!(finding["on"].as_str().unwrap().starts_with("server pool/s1 ("), "{finding:#}");
    drop(broken);
    let _server = patient.network.nginx(1);
    patient.is_well();
    patient.serves();
}

fn server_that_answers_no_request_is_named(case: Case) {
    let patient = Patient::proxy(case);
    patient.change("mode = \"proxy\"", "mode = \"http\"");
    let patient = patient.started();
    let reset_by_data = |addr| {
        TcpServer::start(addr, |mut stream| {
            let _ = stream.read(&mut [0])?;
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
        })
    };
    let broken = patient.network.server(1, reset_by_data);
    patient.has("server-mute");
    drop(broken);
    let broken = patient.network.server(1, TcpServer::silent);
    patient.has("server-mute");
    drop(broken);
    let _server = patient.network.nginx(1);
    patient.is_well();
    patient.serves();
}

/// In mode proxy, doctor does not know the protocol: it uses the byte counts of clients.
fn server_that_swallows_data_is_named(case: Case) {
    let patient = Patient::proxy(case).started();
    let _server = patient.network.server(1, TcpServer::silent);
    let vip = patient.network.vip();
    let status = || patient.network.stat("/backends/pool/servers/s1");
    wait_for("the server to be up", || (status()["up"] == true).then_some(()));
    let held: Vec<_> = patient.network.inside(Role::Client(1), || {
        let client = || {
            let mut stream = connect(vip);
            stream.write_all(b"question").unwrap();
            stream
        };
        (0..5).map(|_| client()).collect()
    });
    wait_for("the bytes of clients to be counted", || (status()["bytes_rx"] == 40).then_some(()));
    patient.has("server-mute");
    drop(held);
}

fn range_without_listeners_is_named(case: Case) {
    let network = Network::new(case, 1, 1);
    let patient = Patient::new(network, "proxy", "");
    let (vip, server) = (patient.network.vip().ip(), patient.network.address(Role::Server(1)));
    patient.change(&patient.network.vip().to_string(), &format!("{vip}:8000-8009"));
    patient.change(&server.to_string(), &server.ip().to_string());
    patient.change("kind = \"tcp\"", &format!("kind = \"tcp\"\nport = {PORT}"));
    let patient = patient.started();
    let _nginx = patient.network.nginx(1);
    let finding = patient.has("range-refused");
    assert_eq!(finding["severity"], "error", "{finding:#}");
    let listen = |port| TcpListener::bind((server.ip(), port)).unwrap();
    let _listeners: Vec<TcpListener> =
        patient.network.inside(Role::Server(1), || (8000..=8009).map(listen).collect());
    patient.is_well();
}

fn balancer_without_an_address_of_its_own_is_named(case: Case) {
    let mut patient = Patient::new(prepared(case, 1), "dsr", "[backends.pool]\ndsr = \"l2\"\n");
    let _server = patient.network.nginx_on(1, (case.family.any(), PORT).into());
    let (vip, own) = (patient.network.vip().ip(), case.family.address(Role::Balancer));
    patient.ip(Role::Balancer, &format!("addr flush dev {INTERFACE}"));
    patient.ip(Role::Balancer, &format!("addr add {vip}/24 dev {INTERFACE}"));
    let finding = patient.has("own-address");
    assert_eq!(finding["severity"], "error", "{finding:#}");
    patient.ip(Role::Balancer, &format!("addr flush dev {INTERFACE}"));
    patient.ip(Role::Balancer, &format!("addr add {own}/24 dev {INTERFACE}"));
    patient.ip(Role::Balancer, &format!("addr add {vip}/32 dev {INTERFACE}"));
    patient.start();
    patient.is_well();
    patient.serves();
}
