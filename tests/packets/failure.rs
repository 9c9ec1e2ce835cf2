//! Failed servers, and the fate of their connections.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use convey_lab::{INTERFACE, Role};
use convey_model::{Mode, Offload};
use convey_testkit::{PATIENCE, TcpServer, clock, connect, ping, wait_for, was_reset};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, tcp_counter};
use crate::udp::{ECHO, UdpEcho, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let in_both = tests![
        new_connections_avoid_a_killed_server[NGINX],
        connections_to_a_server_that_is_cut_off_end_with_a_reset,
        udp_server_killed_under_load_loses_its_clients_until_it_returns,
        without_a_server_clients_are_reset_at_once,
        client_on_the_link_gets_replies_after_its_neighbour_entry_was_flushed,
    ];
    let where_answers_pass = tests![when |case| case.mode == Mode::Passthrough =>
        a_server_that_refuses_clients_is_ejected_and_keeps_its_connections,
        refused_connects_have_a_server_probed_and_taken_out_at_once [NGINX],
    ];
    // Probes depend on neither the family nor the offload.
    let by_probes_alone = tests![when |case| {
            case.is_dsr() && case.family == Family::V4 && case.offload == Offload::Off
        } =>
        a_refused_probe_is_repeated_at_once [NGINX],
    ];
    [in_both, where_answers_pass, by_probes_alone].concat()
}

fn new_connections_avoid_a_killed_server(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let (mut first, _second) = (network.nginx(1), network.nginx(2));
    network.balance(&Config::new(2));
    wait_for("both to be asked", || (network.fetch(1).unwrap() == "s1").then_some(()));
    first.kill();
    network.wait_for_health(1, false);
    for _ in 0..100 {
        assert_eq!(network.fetch(1).unwrap(), "s2");
    }
    let _first = network.nginx(1);
    network.wait_for_health(1, true);
    wait_for("the first to be asked again", || (network.fetch(1).unwrap() == "s1").then_some(()));
}

/// The next regular probe is an hour away. A client connects every 10 ms and is refused whenever it
/// gets the dead server, until that is out: three times before convey probes the server, and during
/// three probes at intervals of 50 ms.
fn refused_connects_have_a_server_probed_and_taken_out_at_once(case: Case) {
    const PERIOD: Duration = Duration::from_millis(10);
    /// Much less than the minute of probes; a hundred times the usual duration.
    const PATIENCE: Duration = Duration::from_secs(12);
    let mut network = Network::new(case, 1, 2);
    let (mut first, _second) = (network.nginx(1), network.nginx(2));
    let (backend, health) = ("algorithm = \"round_robin\"", "kind = \"tcp\"\ninterval = 3600\nfall = 3");
    network.balance(&Config { backend, health, ..Config::new(2) });
    [1, 2].iter().for_each(|server| network.wait_for_health(*server, true));
    first.kill();
    let killed = clock();
    let down = "3 connects in a row failed: the server refused the connection (1 of 2 can be chosen)";
    while !network.log(Role::Balancer).contains(down) {
        assert!(killed.elapsed() < PATIENCE, "the first is still asked");
        let _ = network.fetch(1);
        thread::sleep(PERIOD);
    }
    let took = killed.elapsed();
    for _ in 0..20 {
        assert_eq!(network.fetch(1).unwrap(), "s2");
    }
    let refused = network.stat("/backends/pool/servers/s1/connect_failures").as_u64().unwrap();
    eprintln!("{case}: {refused} clients were refused, out after {took:?}");
    // In 0.2 s it is ten. On a busy machine, probes take longer; without them, half of all clients
    // would be refused for an hour.
    assert!((3..60).contains(&refused), "{refused} clients were refused in {took:?}");
}

/// Otherwise, this would take a minute.
fn a_refused_probe_is_repeated_at_once(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let mut nginx = network.nginx(1);
    let health = "kind = \"tcp\"\ninterval = 1\nfall = 60";
    network.balance(&Config { health, ..Config::new(1) });
    network.wait_for_health(1, true);
    nginx.kill();
    network.wait_for_health(1, false);
}

fn connections_to_a_server_that_is_cut_off_end_with_a_reset(case: Case) {
    let mut network = Network::new(case, 1, 2);
    network.balance(&Config::new(2));
    let _servers = [network.server(1, TcpServer::echo), network.server(2, TcpServer::echo)];
    network.wait_for_health(1, true);
    network.wait_for_health(2, true);
    let mut connections: Vec<TcpStream> = network.inside(Role::Client(1), || {
        (0..20)
            .map(|_| {
                let mut stream = connect(network.vip());
                ping(&mut stream).unwrap();
                stream
            })
            .collect()
    });
    // The server keeps its IPv6 addresses; otherwise it could not come back.
    let keep = format!("/proc/sys/net/ipv6/conf/{INTERFACE}/keep_addr_on_down");
    network.inside(Role::Server(1), || std::fs::write(keep, "1")).unwrap();
    network.lab.run(Role::Server(1), "ip", &["link", "set", INTERFACE, "down"]).unwrap();
    network.wait_for_health(1, false);
    let mut reset = 0;
    for stream in &mut connections {
        // Connections to the other server answer. Connections to this server have been reset, or
        // soon are.
        match ping(stream) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                reset += 1;
            }
        }
    }
    assert!((1..20).contains(&reset), "{reset} of 20 were reset");
    // Up again, so that the server can be stopped.
    network.lab.run(Role::Server(1), "ip", &["link", "set", INTERFACE, "up"]).unwrap();
}

/// The server's kernel sends one "port unreachable" a second, most likely to the client that sends
/// most: not to the probe.
fn udp_server_killed_under_load_loses_its_clients_until_it_returns(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let health = "kind = \"udp\"\ninterval = 2\nfall = 2\nrise = 1";
    network.balance(&Config { health, ..Config::udp(ECHO, 2) });
    let network = &network;
    let start = |number| {
        let role = Role::Server(number);
        let addr = (case.family.address(role), ECHO).into();
        network.inside(role, || UdpEcho::signing(&format!("s{number}"), addr))
    };
    let (first, _second) = (start(1), start(2));
    for server in [1, 2] {
        // Before its first probe, which may precede its start, the server is up without a reason.
        let reason = format!("/backends/pool/servers/s{server}/health/reason");
        wait_for("it to be proven", || (network.stat(&reason) == "datagram answered").then_some(()));
    }
    network.inside(Role::Client(1), || {
        let clients: Vec<_> = (0..40).map(|_| socket_to(case.family.vip(ECHO))).collect();
        let serving = |client: &UdpSocket| exchange(client, b"").map(|name| name == b"s1");
        // Repeated until they are streams, which the kernel may forward.
        for client in clients.iter().chain(&clients).chain(&clients) {
            serving(client).unwrap();
        }
        let of_first: Vec<_> = clients.into_iter().filter(|client| serving(client).unwrap()).collect();
        assert!(!of_first.is_empty());
        drop(first);
        for client in &of_first {
            client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        }
        wait_for("its clients to be served by the other", || {
            let moved = of_first.iter().filter(|client| serving(client).is_ok()).count();
            (moved == of_first.len()).then_some(())
        });
    });
    network.wait_for_health(1, false);
    let _first = start(1);
    network.wait_for_health(1, true);
}

fn a_server_that_refuses_clients_is_ejected_and_keeps_its_connections(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let backend = "algorithm = \"round_robin\"\n\
        outlier_detection = { consecutive_failures = 3, base_ejection_time = 3600 }";
    network.balance(&Config { backend, health: UNCHECKED, ..Config::new(2) });
    let network = &network;
    let (first, _second) = (network.server(1, TcpServer::echo), network.server(2, TcpServer::echo));
    let connect = || TcpStream::connect(network.vip());
    network.inside(Role::Client(1), || {
        let mut open: Vec<_> = (0..2).map(|_| connect().unwrap()).collect();
        open.iter_mut().for_each(|stream| ping(stream).unwrap());
        drop(first);
        wait_for("the first to be ejected", || {
            let _ = connect();
            thread::sleep(Duration::from_millis(10));
            network
                .log(Role::Balancer)
                .contains("3 connections in a row failed: the server refused the connection")
                .then_some(())
        });
        open.iter_mut().for_each(|stream| ping(stream).unwrap());
        (0..20).for_each(|_| ping(&mut connect().unwrap()).unwrap());
    });
    // Three failures in a row eject the server. A few more clients get it before convey processes
    // the refusals, more on a busy machine.
    let refused = network.stat("/backends/pool/servers/s1/connect_failures").as_u64().unwrap();
    assert!((3..=100).contains(&refused), "{refused} clients were refused");
    let first = network.stat("/backends/pool/servers/s1");
    assert_eq!(
        (&first["up"], &first["eligible"], &first["ejections"]),
        (&true.into(), &false.into(), &1.into())
    );
}

fn without_a_server_clients_are_reset_at_once(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config::new(1));
    network.wait_for_health(1, false);
    network.inside(Role::Client(1), || {
        // The first SYN is answered, unless another process uses this machine for a second.
        wait_for("a reset without a second SYN", || {
            let before = tcp_counter("RetransSegs");
            assert!(is_refused_or_reset(network.vip()));
            (tcp_counter("RetransSegs") == before).then_some(())
        });
    });
}

fn is_refused_or_reset(vip: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&vip, PATIENCE) {
        Ok(mut stream) => {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            was_reset(&mut stream)
        }
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    }
}

fn client_on_the_link_gets_replies_after_its_neighbour_entry_was_flushed(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config::new(1));
    let network = &network;
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    let client = case.family.address(Role::Client(1)).to_string();
    for _ in 0..3 {
        ping(&mut stream).unwrap();
        network.lab.run(Role::Balancer, "ip", &["neigh", "flush", "to", &client]).unwrap();
        ping(&mut stream).unwrap();
        let entry = network.lab.run(Role::Balancer, "ip", &["neigh", "show", &client]).unwrap();
        assert!(!entry.contains("managed"), "{entry}");
    }
}
