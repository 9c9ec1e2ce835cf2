//! Forged datagrams, and the scarce resources that they leave to clients.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TcpServer, UdpServer, connect_from, ping, tests, wait_for,
};

use crate::shares::{half_a_request, is_answered, is_answered_eventually, limited, udp_client};

tests!("forged":
    forged_questions_beside_a_client_with_its_share_leave_others_some_connections [Need::PRLIMIT],
    flood_of_forged_queries_leaves_established_streams_their_share,
    streams_whose_server_is_silent_give_way_to_new_clients,
    forged_queries_at_one_port_do_not_block_another_port,
    forged_queries_at_one_frontend_leave_descriptors_for_another [Need::PRLIMIT],
    forged_queries_at_one_frontend_leave_server_slots_for_another,
);

fn forged_questions_beside_a_client_with_its_share_leave_others_some_connections() {
    let lab = Loopback::new();
    let (_server, _udp) = (TcpServer::echo(lab.server(1)), UdpServer::start(lab.server(2), |_, _| {}));
    let udp = format!(
        "[frontends.udp]\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"udp\"\n\
         [backends.udp]\nhealth_check.kind = \"none\"\nservers.u.addr = \"{}\"\n",
        lab.second_vip(),
        lab.server(2)
    );
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&udp);
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("1000:1000"));
    let _greedy: Vec<TcpStream> = (0..500).filter_map(|_| half_a_request(lab.ip(99), lab.vip())).collect();
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    wait_for("its share to be what it has", || {
        (number("/frontends/web/ended/client_limit") > 100).then_some(())
    });
    wait_for("questions to push out each other", || {
        forge(&lab, lab.second_vip(), 50);
        (number("/frontends/udp/ended/evicted") > 0).then_some(())
    });
    let mut others: Vec<TcpStream> =
        (100..110).map(|n| connect_from(lab.ip(n), lab.vip()).unwrap()).collect();
    others.iter_mut().for_each(|other| ping(other).unwrap());
}

fn flood_of_forged_queries_leaves_established_streams_their_share() {
    const LIMIT: u64 = 120;
    let lab = Loopback::new();
    let _server = UdpServer::start(lab.server(1), |question, answer| {
        if question != b"forged" {
            answer(question);
        }
    });
    let setup = Setup::new(&lab).frontend(&format!("protocol = \"udp\"\nmax_connections = {LIMIT}"));
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    let streams: Vec<UdpSocket> = (0..20).map(|_| udp_client(lab.ip(99), lab.vip())).collect();
    assert!(streams.iter().all(|stream| is_answered_eventually(stream) && is_answered_eventually(stream)));
    let forge = |count: usize| {
        for n in (100..250).cycle().take(count) {
            let forged = UdpSocket::bind((lab.ip(n), 0)).unwrap();
            forged.send_to(b"forged", lab.vip()).unwrap();
        }
    };
    // A busy worker loses some of them in its receive buffer.
    wait_for("forged questions to hold all", || {
        forge(100);
        (number("/frontends/web/ended/evicted") > 0).then_some(())
    });
    let is_served = || {
        forge(20);
        let client = udp_client(lab.ip(99), lab.vip());
        client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        is_answered(&client)
    };
    // Each worker evicts sessions of its own: a client whose worker has none tries from another
    // port.
    let served = (0..10).filter(|_| (0..5).any(|_| is_served())).count();
    assert!(served >= 9, "{served}: {}", balancer.stat("/frontends/web"));
    assert_eq!(number("/frontends/web/drops/client_limit"), 0);
    assert!(streams.iter().all(is_answered_eventually));
}

fn streams_whose_server_is_silent_give_way_to_new_clients() {
    const LIMIT: usize = 64;
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend(&format!("protocol = \"udp\"\nmax_connections = {LIMIT}"));
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let streams = (0..LIMIT).map(|n| udp_client(lab.ip(100 + n as u8), lab.vip()));
    let streams: Vec<UdpSocket> = streams.collect();
    assert!(streams.iter().all(|stream| is_answered_eventually(stream) && is_answered_eventually(stream)));
    balancer.wait_for_stat("/frontends/web/current_connections", LIMIT);
    // Each worker evicts streams of its own: a client whose worker has none tries again from
    // another port.
    let new = wait_for("a stream to give way", || {
        let new = udp_client(lab.ip(99), lab.vip());
        is_answered(&new).then_some(new)
    });
    assert!(is_answered_eventually(&new));
    assert_eq!(balancer.stat("/frontends/web/current_connections"), LIMIT);
}

fn forged_queries_at_one_port_do_not_block_another_port() {
    let lab = Loopback::new();
    let _server = silent_for_the_forged(&lab);
    let setup = Setup::new(&lab)
        .listen_on(&[format!("{}:9000-9001", lab.ip(1))])
        .frontend("protocol = \"udp\"\nmax_connections = 100");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let [forged_at, other] = [9000, 9001].map(|port| SocketAddr::new(lab.ip(1), port));
    forge_until_open(&balancer, &lab, forged_at, 100);
    (0..10).for_each(|n| serve_at(lab.ip(10 + n), other));
    assert_eq!(balancer.stat("/frontends/web/current_connections"), 100);
}

fn forged_queries_at_one_frontend_leave_descriptors_for_another() {
    let lab = Loopback::new();
    let _server = silent_for_the_forged(&lab);
    let setup = two_frontends(&lab, "").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("500:500"));
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    // All descriptors are in use: the next sessions evict others of their worker.
    let mut asked = 0;
    wait_for("no descriptor to be left", || {
        forge(&lab, lab.vip(), 50);
        asked += 50;
        (number("/frontends/web/ended/evicted") > 0).then_some(())
    });
    assert!(number("/frontends/web/current_connections") < asked);
    (0..10).for_each(|n| serve_at(lab.ip(10 + n), lab.second_vip()));
}

fn forged_queries_at_one_frontend_leave_server_slots_for_another() {
    let lab = Loopback::new();
    let _server = silent_for_the_forged(&lab);
    let setup =
        two_frontends(&lab, "max_connections = 100").server("a", lab.server(1), "max_connections = 50");
    let balancer = BalancerProcess::start(&lab, &setup);
    forge_until_open(&balancer, &lab, lab.vip(), 50);
    (0..10).for_each(|n| serve_at(lab.ip(10 + n), lab.second_vip()));
}

/// A server that does not answer forged datagrams.
fn silent_for_the_forged(lab: &Loopback) -> UdpServer {
    UdpServer::start(lab.server(1), |question, answer| {
        if question != b"forged" {
            answer(question);
        }
    })
}

/// Forges so many datagrams, each from its own address.
fn forge(lab: &Loopback, at: SocketAddr, count: usize) {
    for n in (100..250).cycle().take(count) {
        UdpSocket::bind((lab.ip(n), 0)).unwrap().send_to(b"forged", at).unwrap();
    }
}

/// Forges datagrams until so many sessions of the frontend `web` are open, its limit. A busy worker
/// loses some in its receive buffer.
fn forge_until_open(balancer: &BalancerProcess, lab: &Loopback, at: SocketAddr, limit: u64) {
    wait_for("sessions up to the limit", || {
        forge(lab, at, 50);
        (balancer.stat("/frontends/web/current_connections") == limit).then_some(())
    });
}

/// Two frontends of UDP, one backend: `web` has these lines, `other` listens on the second VIP.
fn two_frontends(lab: &Loopback, lines: &str) -> Setup {
    let other = format!(
        "[frontends.other]\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n",
        lab.second_vip()
    );
    Setup::new(lab).frontend(&format!("protocol = \"udp\"\n{lines}")).and(&other)
}

/// Checks that a client is served. Each worker evicts sessions of its own: a client whose worker
/// has none tries from another port.
fn serve_at(from: IpAddr, to: SocketAddr) {
    wait_for("a session to give way", || {
        let client = udp_client(from, to);
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        is_answered(&client).then_some(())
    });
}
