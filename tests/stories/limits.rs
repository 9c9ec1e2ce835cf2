//! More than is allowed, or than there is.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Duration;

use convey_testkit::{
    Balancer, Loopback, Need, Server, Setup, UdpServer, binary, clock, connect, connect_from, ping, run,
    stories, tool, wait_for, was_reset,
};
use rustix::process::Signal;

stories!("limits":
    a_full_frontend_lets_the_next_client_wait_until_one_leaves,
    a_full_server_is_passed_over_and_when_all_are_full_clients_wait,
    who_waits_too_long_for_a_full_server_is_refused_and_counted,
    a_raised_limit_lets_in_those_who_wait,
    a_limit_that_comes_with_a_reload_lets_clients_in_one_by_one,
    a_full_frontend_that_is_renamed_strands_nobody,
    a_burst_on_a_full_frontend_waits_in_the_kernel,
    who_came_first_to_a_full_server_is_served_first,
    with_one_server_dead_and_the_other_full_clients_wait,
    an_idle_connection_is_closed_and_counted,
    a_connection_that_talks_is_not_idle,
    one_client_with_all_connections_it_can_get_leaves_some_for_others [Need::PRLIMIT],
    forged_questions_beside_a_client_with_its_share_leave_others_some_connections [Need::PRLIMIT],
    one_client_with_all_sessions_it_can_get_leaves_some_for_others,
    a_flood_of_forged_questions_leaves_a_client_with_many_streams_its_share,
    streams_whose_server_is_silent_give_way_to_new_clients,
    questions_at_one_port_of_a_range_keep_no_client_of_another_port_out,
    questions_at_one_frontend_keep_no_client_of_another_out_of_the_process [Need::PRLIMIT],
    questions_at_one_frontend_keep_no_client_of_another_out_of_their_server,
    a_limit_for_each_client_resets_its_excess_and_nobody_elses,
    beyond_its_share_of_a_frontend_a_client_waits_in_order_while_others_are_served,
    who_waits_too_long_beyond_its_share_is_reset_and_counted,
    a_raised_limit_lets_in_those_who_wait_for_their_share,
    the_limit_of_open_files_is_raised_to_what_is_allowed [Need::PRLIMIT],
    without_descriptors_accepting_pauses_until_there_are_some_again [Need::PRLIMIT],
    a_reload_takes_no_descriptors_from_open_connections_and_later_ones_have_what_it_leaves [Need::PRLIMIT],
    check_says_where_a_start_lacks_descriptors_and_which_limit_it_assumes [Need::PRLIMIT],
);

fn a_full_frontend_lets_the_next_client_wait_until_one_leaves() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("max_connections = 2").server("a", lab.server(1), "");
    let balancer = Balancer::start(&lab, &setup);
    let [first, _second] = two_held(&lab);
    let mut third = connect(lab.vip());
    third.write_all(b"!").unwrap();
    assert!(nothing_comes(&mut third));
    assert_eq!(balancer.stat("/frontends/web/current_connections"), 2);
    drop(first);
    third.read_exact(&mut [0]).unwrap();
    assert_eq!(balancer.given_to("a"), 3);
}

fn a_full_server_is_passed_over_and_when_all_are_full_clients_wait() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| Server::echo(lab.server(n)));
    let setup = Setup::new(&lab).server("a", lab.server(1), "weight = 100\nmax_connections = 1").server(
        "b",
        lab.server(2),
        "weight = 1\nmax_connections = 1",
    );
    let balancer = Balancer::start(&lab, &setup);
    let [first, _second] = two_held(&lab);
    assert_eq!((balancer.given_to("a"), balancer.given_to("b")), (1, 1));
    let mut third = connect(lab.vip());
    third.write_all(b"!").unwrap();
    assert!(nothing_comes(&mut third));
    drop(first);
    third.read_exact(&mut [0]).unwrap();
    assert_eq!(balancer.given_to("a") + balancer.given_to("b"), 3);
    assert_eq!(balancer.stat("/frontends/web/ended/queue_timeout"), 0);
}

fn who_waits_too_long_for_a_full_server_is_refused_and_counted() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 0.2").server("a", lab.server(1), "max_connections = 1");
    let balancer = Balancer::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    assert!(was_reset(&mut connect(lab.vip())));
    balancer.wait_for_stat("/frontends/web/ended/queue_timeout", 1);
    ping(&mut held).unwrap();
}

fn a_raised_limit_lets_in_those_who_wait() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = |frontend: u32, server: u32| {
        Setup::new(&lab).frontend(&format!("max_connections = {frontend}")).timeouts("connect = 3600").server(
            "a",
            lab.server(1),
            &format!("max_connections = {server}"),
        )
    };
    let balancer = Balancer::start(&lab, &setup(2, 1));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let mut waiting = [(); 3].map(|()| connect(lab.vip()));
    waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    balancer.save(&setup(100, 100));
    waiting.iter_mut().for_each(|stream| stream.read_exact(&mut [0]).unwrap());
}

fn a_limit_that_comes_with_a_reload_lets_clients_in_one_by_one() {
    for (frontend, server) in [("max_connections = 1", ""), ("", "max_connections = 1")] {
        let lab = Loopback::new();
        let _server = Server::echo(lab.server(1));
        let setup = |frontend: &str, server: &str| {
            let setup = Setup::new(&lab).frontend(frontend).timeouts("connect = 3600");
            setup.server("a", lab.server(1), server)
        };
        let balancer = Balancer::start(&lab, &setup("", ""));
        let mut held = connect(lab.vip());
        ping(&mut held).unwrap();
        balancer.save(&setup(frontend, server));
        balancer.wait_for_log("reload: ");
        let mut waiting = vec_of(6, || connect(lab.vip()));
        waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
        assert!(waiting.iter_mut().all(nothing_comes));
        drop(held);
        serve_all(waiting);
    }
}

fn a_full_frontend_that_is_renamed_strands_nobody() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("max_connections = 1").server("a", lab.server(1), "");
    let balancer = Balancer::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let mut waiting = vec_of(6, || connect(lab.vip()));
    waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    balancer.save(&setup.to_string().replace("[frontends.web]", "[frontends.www]"));
    serve_all(waiting);
    ping(&mut held).unwrap();
}

fn a_burst_on_a_full_frontend_waits_in_the_kernel() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("max_connections = 1").server("a", lab.server(1), "");
    let balancer = Balancer::start(&lab, &setup);
    let base = balancer.fds_at_rest().sockets;
    let burst = vec_of(200, || connect(lab.vip()));
    // One is served, with a socket on either side; each worker may hold one more.
    let workers = available_parallelism().unwrap().get();
    let held = balancer.fds().sockets - base;
    assert!(held <= 2 + workers, "{held} sockets for one connection");
    drop(burst);
}

fn who_came_first_to_a_full_server_is_served_first() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 3600").server("a", lab.server(1), "max_connections = 1");
    let balancer = Balancer::start(&lab, &setup);
    let mut served = connect(lab.vip());
    ping(&mut served).unwrap();
    let mut queue = Vec::new();
    for n in 2..12 {
        let mut next = connect(lab.vip());
        next.write_all(b"!").unwrap();
        balancer.wait_for_stat("/current_connections", n);
        queue.push(next);
    }
    // Who comes after a place is free, but before those who wait have heard of it, is not served first.
    for mut next in queue {
        drop(served);
        let mut late = connect(lab.vip());
        late.write_all(b"!").unwrap();
        next.read_exact(&mut [0]).unwrap();
        assert!(nothing_comes(&mut late));
        served = next;
    }
}

fn with_one_server_dead_and_the_other_full_clients_wait() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 3600").server("a", lab.server(1), "max_connections = 1");
    let balancer = Balancer::start(&lab, &setup.server("b", lab.server(2), ""));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let mut waiting = vec_of(5, || connect(lab.vip()));
    waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    assert!(waiting.iter_mut().all(nothing_comes));
    drop(held);
    serve_all(waiting);
    assert_eq!(balancer.stat("/frontends/web/ended/connect_failed"), 0);
}

fn an_idle_connection_is_closed_and_counted() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("idle = 0.4").server("a", lab.server(1), "");
    let balancer = Balancer::start(&lab, &setup);
    let mut stream = connect(lab.vip());
    ping(&mut stream).unwrap();
    let start = clock();
    assert!(was_reset(&mut stream));
    assert!(start.elapsed() > Duration::from_millis(350), "after only {:?}", start.elapsed());
    balancer.wait_for_stat("/frontends/web/ended/idle_timeout", 1);
    balancer.wait_for_stat("/current_connections", 0);
}

fn a_connection_that_talks_is_not_idle() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("idle = 0.2").server("a", lab.server(1), "");
    let balancer = Balancer::start(&lab, &setup);
    let mut talking = connect(lab.vip());
    let mut idle = connect(lab.vip());
    ping(&mut idle).unwrap();
    while balancer.stat("/frontends/web/ended/idle_timeout") == 0 {
        ping(&mut talking).unwrap();
    }
    ping(&mut talking).unwrap();
    assert!(ping(&mut idle).is_err());
}

fn one_client_with_all_connections_it_can_get_leaves_some_for_others() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = Balancer::start_with(&lab, &setup, limited("1000:1000"));
    // More than there may be, each with half a request.
    let greedy: Vec<TcpStream> = (0..500).filter_map(|_| half_a_request(lab.ip(99), lab.vip())).collect();
    let mut others: Vec<TcpStream> =
        (100..120).map(|n| connect_from(lab.ip(n), lab.vip()).unwrap()).collect();
    others.iter_mut().for_each(|other| ping(other).unwrap());
    assert!(balancer.stat("/frontends/web/ended/client_limit").as_u64().unwrap() > 100);
    balancer.wait_for_log(&format!("client {} has its share of connections", lab.ip(99)));
    drop(greedy);
}

fn forged_questions_beside_a_client_with_its_share_leave_others_some_connections() {
    let lab = Loopback::new();
    let (_server, _udp) = (Server::echo(lab.server(1)), UdpServer::start(lab.server(2), |_, _| {}));
    let udp = format!(
        "[frontends.udp]\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"udp\"\n\
         [backends.udp]\nhealth_check.kind = \"none\"\nservers.u.addr = \"{}\"\n",
        lab.second_vip(),
        lab.server(2)
    );
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&udp);
    let balancer = Balancer::start_with(&lab, &setup, limited("1000:1000"));
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

/// A connection with something sent, if it was not reset yet.
fn half_a_request(from: IpAddr, to: SocketAddr) -> Option<TcpStream> {
    let mut client = connect_from(from, to).ok()?;
    client.write_all(b"GET / HTTP/1.1\r\n").ok()?;
    Some(client)
}

fn one_client_with_all_sessions_it_can_get_leaves_some_for_others() {
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("protocol = \"udp\"\nmax_connections = 180");
    let balancer = Balancer::start(&lab, &setup.server("a", lab.server(1), ""));
    let client = |ip| udp_client(ip, lab.vip());
    let greedy: Vec<UdpSocket> = (0..165).map(|_| client(lab.ip(99))).collect();
    let streams = greedy.iter().filter(|socket| is_answered(socket) && is_answered(socket)).count();
    assert!(streams >= 150, "{streams}");
    let open = balancer.stat("/frontends/web/current_connections").as_u64().unwrap();
    assert!((150..=161).contains(&open), "{open}");
    let others: Vec<UdpSocket> = (100..110).map(|n| client(lab.ip(n))).collect();
    assert!(others.iter().all(|other| is_answered(other) && is_answered(other)));
    // Beyond its share it is refused, or its silent streams give way to its own.
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    assert!(number("/frontends/web/drops/client_limit") + number("/frontends/web/ended/evicted") > 0);
}

fn udp_client(from: IpAddr, to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket
}

fn is_answered(socket: &UdpSocket) -> bool {
    socket.send(b"!").unwrap();
    socket.recv(&mut [0; 8]).is_ok()
}

fn a_flood_of_forged_questions_leaves_a_client_with_many_streams_its_share() {
    const LIMIT: u64 = 120;
    let lab = Loopback::new();
    let _server = UdpServer::start(lab.server(1), |question, answer| {
        if question != b"forged" {
            answer(question);
        }
    });
    let setup = Setup::new(&lab).frontend(&format!("protocol = \"udp\"\nmax_connections = {LIMIT}"));
    let balancer = Balancer::start(&lab, &setup.server("a", lab.server(1), ""));
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    let streams: Vec<UdpSocket> = (0..20).map(|_| udp_client(lab.ip(99), lab.vip())).collect();
    assert!(streams.iter().all(|stream| is_answered(stream) && is_answered(stream)));
    let forge = |count: usize| {
        for n in (100..250).cycle().take(count) {
            let forged = UdpSocket::bind((lab.ip(n), 0)).unwrap();
            forged.send_to(b"forged", lab.vip()).unwrap();
        }
    };
    forge(300);
    wait_for("forged questions to hold all", || (number("/frontends/web/ended/evicted") > 0).then_some(()));
    let is_served = || {
        forge(20);
        let client = udp_client(lab.ip(99), lab.vip());
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        is_answered(&client)
    };
    // Each worker ends sessions of its own: a client whose worker has none tries from another port.
    let served = (0..10).filter(|_| (0..5).any(|_| is_served())).count();
    assert!(served >= 9, "{served}: {}", balancer.stat("/frontends/web"));
    assert_eq!(number("/frontends/web/drops/client_limit"), 0);
    assert!(streams.iter().all(is_answered));
}

fn streams_whose_server_is_silent_give_way_to_new_clients() {
    const LIMIT: usize = 64;
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend(&format!("protocol = \"udp\"\nmax_connections = {LIMIT}"));
    let balancer = Balancer::start(&lab, &setup.server("a", lab.server(1), ""));
    let streams = (0..LIMIT).map(|n| udp_client(lab.ip(100 + n as u8), lab.vip()));
    let streams: Vec<UdpSocket> = streams.collect();
    assert!(streams.iter().all(|stream| is_answered(stream) && is_answered(stream)));
    balancer.wait_for_stat("/frontends/web/current_connections", LIMIT);
    // Each worker ends streams of its own: a client whose worker has none tries again from another port.
    let new = wait_for("a stream to give way", || {
        let new = udp_client(lab.ip(99), lab.vip());
        is_answered(&new).then_some(new)
    });
    assert!(is_answered(&new));
    assert_eq!(balancer.stat("/frontends/web/current_connections"), LIMIT);
}

fn questions_at_one_port_of_a_range_keep_no_client_of_another_port_out() {
    let lab = Loopback::new();
    let _server = silent_for_the_forged(&lab);
    let setup = Setup::new(&lab)
        .listen_on(&[format!("{}:9000-9001", lab.ip(1))])
        .frontend("protocol = \"udp\"\nmax_connections = 100");
    let balancer = Balancer::start(&lab, &setup.server("a", lab.server(1), ""));
    let [forged_at, other] = [9000, 9001].map(|port| SocketAddr::new(lab.ip(1), port));
    forge(&lab, forged_at, 150);
    balancer.wait_for_stat("/frontends/web/current_connections", 100);
    (0..10).for_each(|n| serve_at(lab.ip(10 + n), other));
    assert_eq!(balancer.stat("/frontends/web/current_connections"), 100);
}

fn questions_at_one_frontend_keep_no_client_of_another_out_of_the_process() {
    let lab = Loopback::new();
    let _server = silent_for_the_forged(&lab);
    let setup = two_frontends(&lab, "").server("a", lab.server(1), "");
    let balancer = Balancer::start_with(&lab, &setup, limited("500:500"));
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    // So many have descriptors: the next ones push out others of their own.
    let mut asked = 0;
    wait_for("no descriptor to be left", || {
        forge(&lab, lab.vip(), 50);
        asked += 50;
        (number("/frontends/web/ended/evicted") > 0).then_some(())
    });
    assert!(number("/frontends/web/current_connections") < asked);
    (0..10).for_each(|n| serve_at(lab.ip(10 + n), lab.second_vip()));
}

fn questions_at_one_frontend_keep_no_client_of_another_out_of_their_server() {
    let lab = Loopback::new();
    let _server = silent_for_the_forged(&lab);
    let setup =
        two_frontends(&lab, "max_connections = 100").server("a", lab.server(1), "max_connections = 50");
    let balancer = Balancer::start(&lab, &setup);
    forge(&lab, lab.vip(), 100);
    balancer.wait_for_stat("/frontends/web/current_connections", 50);
    (0..10).for_each(|n| serve_at(lab.ip(10 + n), lab.second_vip()));
}

/// A server that leaves forged questions without an answer.
fn silent_for_the_forged(lab: &Loopback) -> UdpServer {
    UdpServer::start(lab.server(1), |question, answer| {
        if question != b"forged" {
            answer(question);
        }
    })
}

/// So many questions, each from an address of its own.
fn forge(lab: &Loopback, at: SocketAddr, count: usize) {
    for n in (100..250).cycle().take(count) {
        UdpSocket::bind((lab.ip(n), 0)).unwrap().send_to(b"forged", at).unwrap();
    }
}

/// Two frontends of UDP, one backend: `web` has these lines, `other` listens on the second VIP.
fn two_frontends(lab: &Loopback, lines: &str) -> Setup {
    let other = format!(
        "[frontends.other]\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n",
        lab.second_vip()
    );
    Setup::new(lab).frontend(&format!("protocol = \"udp\"\n{lines}")).and(&other)
}

/// Has a client be served. Each worker ends sessions of its own: a client whose worker has none tries from another port.
fn serve_at(from: IpAddr, to: SocketAddr) {
    wait_for("a session to give way", || {
        let client = udp_client(from, to);
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        is_answered(&client).then_some(())
    });
}

fn a_limit_for_each_client_resets_its_excess_and_nobody_elses() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let lines = format!("max_connections_per_client = 2\ntrusted_clients = \"{}\"", lab.ip(50));
    let setup = Setup::new(&lab).frontend(&lines).server("a", lab.server(1), "");
    let balancer = Balancer::start(&lab, &setup);
    let open = |host| {
        let mut client = connect_from(lab.ip(host), lab.vip())?; // the reset may come before
        ping(&mut client).map(|()| client)
    };
    let mut held = vec![open(99).unwrap(), open(99).unwrap()];
    assert!(open(99).is_err());
    balancer.wait_for_stat("/frontends/web/ended/client_limit", 1);
    held.extend([open(98).unwrap(), open(98).unwrap()]);
    held.extend((0..5).map(|_| open(50).unwrap()));
    held.remove(0);
    held.push(wait_for("a place to be given back", || open(99).ok()));
    held.iter_mut().for_each(|client| ping(client).unwrap());
}

/// Of 36 slots one client gets 33.
const SLOTS: u32 = 36;
const SHARE: usize = 33;

fn beyond_its_share_of_a_frontend_a_client_waits_in_order_while_others_are_served() {
    let lab = Loopback::new();
    let (balancer, mut served, mut waiting, _server) = beyond_their_share(&lab, "connect = 3600");
    assert!(waiting.iter_mut().all(nothing_comes));
    ping(&mut connect_from(lab.ip(98), lab.vip()).unwrap()).unwrap();
    balancer.wait_for_log(&format!("client {} has its share of connections, more wait", lab.ip(99)));
    // One after the other, in their order; who comes late does not get past them.
    for _ in 0..2 {
        drop(served.remove(0));
        let mut first = waiting.remove(0);
        first.read_exact(&mut [0]).unwrap();
        assert!(waiting.iter_mut().all(nothing_comes));
        served.push(first);
    }
    drop(served);
    serve_all(waiting);
    assert_eq!(balancer.stat("/frontends/web/ended/client_limit"), 0);
    balancer.wait_for_stat("/current_connections", 0);
}

fn who_waits_too_long_beyond_its_share_is_reset_and_counted() {
    let lab = Loopback::new();
    let (balancer, mut served, waiting, _server) = beyond_their_share(&lab, "connect = 0.3");
    for mut client in waiting {
        assert!(was_reset(&mut client));
    }
    balancer.wait_for_stat("/frontends/web/ended/client_limit", 5);
    balancer.wait_for_log("more wait");
    served.iter_mut().for_each(|client| ping(client).unwrap());
}

fn a_raised_limit_lets_in_those_who_wait_for_their_share() {
    let lab = Loopback::new();
    let (balancer, _served, mut waiting, _server) = beyond_their_share(&lab, "connect = 3600");
    assert!(waiting.iter_mut().all(nothing_comes));
    balancer.save(&of_slots(&lab, 2 * SLOTS, "connect = 3600"));
    waiting.iter_mut().for_each(|client| client.read_exact(&mut [0]).unwrap());
}

/// Connections of one client that were served, and five more that have asked.
fn beyond_their_share(lab: &Loopback, timeouts: &str) -> (Balancer, Vec<TcpStream>, Vec<TcpStream>, Server) {
    let server = Server::echo(lab.server(1));
    let balancer = Balancer::start(lab, &of_slots(lab, SLOTS, timeouts));
    let open = || connect_from(lab.ip(99), lab.vip()).unwrap();
    let mut served = vec_of(SHARE, open);
    served.iter_mut().for_each(|client| ping(client).unwrap());
    let waiting = (1..=5).map(|n| {
        let mut client = open();
        client.write_all(b"!").unwrap();
        balancer.wait_for_stat("/total_connections", SHARE as u64 + n);
        client
    });
    let waiting = waiting.collect();
    (balancer, served, waiting, server)
}

fn of_slots(lab: &Loopback, slots: u32, timeouts: &str) -> Setup {
    let setup = Setup::new(lab).frontend(&format!("max_connections = {slots}"));
    setup.timeouts(timeouts).server("a", lab.server(1), "")
}

fn the_limit_of_open_files_is_raised_to_what_is_allowed() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = Balancer::start_with(&lab, &setup, limited("256:1000"));
    let limits = fs::read_to_string(balancer.proc("limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("1000"), "{line}");
}

fn without_descriptors_accepting_pauses_until_there_are_some_again() {
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let few = 60 + 10 * available_parallelism().unwrap().get();
    let balancer = Balancer::start_with(&lab, &setup, limited(&format!("{few}:{few}")));
    let base = balancer.fds_at_rest();
    // Every connection takes two: more than half of these find none.
    let mut clients = vec_of(few, || connect(lab.vip()));
    clients.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    balancer.wait_for_log(&format!("cannot accept on {}", lab.vip()));
    let cpu_time = used_while(&balancer, Duration::from_millis(500));
    assert!(cpu_time < Duration::from_millis(250), "busy for {cpu_time:?} of 500 ms with nothing to do");

    serve_all(clients);
    assert!(balancer.stat("/frontends/web/accept_backoffs").as_u64().unwrap() > 0);
    balancer.wait_for_stat("/current_connections", 0);
    wait_for("the descriptors to be given back", || (balancer.fds() == base).then_some(()));
}

fn a_reload_takes_no_descriptors_from_open_connections_and_later_ones_have_what_it_leaves() {
    let workers = available_parallelism().unwrap().get();
    let lab = Loopback::new();
    let _server = Server::echo(lab.server(1));
    let listening = |last: u16| {
        Setup::new(&lab).listen_on(&[format!("{}:9000-{last}", lab.ip(1))]).server("a", lab.server(1), "")
    };
    let at = |port| SocketAddr::new(lab.ip(1), port);
    let limit = 300 * workers;
    let balancer = Balancer::start_with(&lab, &listening(9_001), limited(&format!("{limit}:{limit}")));
    // About two thirds of those that there may be.
    let some = 60 * workers;
    let open = || -> Vec<TcpStream> {
        let client = |n: usize| connect_from(lab.ip(50 + (n % 200) as u8), at(9_000)).unwrap();
        (0..some).map(client).collect()
    };
    let mut clients = open();
    clients.iter_mut().for_each(|client| ping(client).unwrap());
    balancer.save(&listening(9_101));
    balancer.wait_for_log(&format!(
        "the new ports need {} descriptors, and beside {some} open connections ",
        100 * workers
    ));
    assert!(TcpStream::connect(at(9_101)).is_err());
    clients.iter_mut().for_each(|client| ping(client).unwrap());

    drop(clients);
    balancer.wait_for_stat("/current_connections", 0);
    balancer.signal(Signal::HUP);
    balancer.wait_for_log("9000-9101");
    ping(&mut connect(at(9_101))).unwrap();
    // Now there may be fewer connections: the others wait, and statistics and the file have what they need.
    let _clients = open();
    wait_for("connections to have what is left", || {
        (balancer.stat("/frontends/web/accept_backoffs").as_u64() > Some(0)).then_some(())
    });
    balancer.save(&listening(9_001));
    balancer.wait_for_log("reload: frontend web: - ");
    wait_for("the ports to be given back", || {
        let served = balancer.stat("/current_connections").as_u64().unwrap();
        (served == some as u64).then_some(())
    });
}

fn check_says_where_a_start_lacks_descriptors_and_which_limit_it_assumes() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).listen_on(&[format!("{}:20000-20199", lab.ip(1))]);
    let setup = setup.server("a", lab.server(1), "");
    fs::write(lab.directory().join("config.toml"), setup.to_string()).unwrap();
    let ran = |open_files: &str, command: &str| {
        let mut convey = limited(open_files);
        run(convey.current_dir(lab.directory()).args(command.split_whitespace()))
    };
    let (check, start) = ("check --config config.toml", "--config config.toml");
    let few = ran("100:200", check);
    let refusal = format!(
        "the 200 ports of frontends in proxy mode need {} descriptors of 200, more than half; ",
        200 * available_parallelism().unwrap().get()
    );
    let warning = format!("warning: with 200 open files, the limit here, this would not start: {refusal}");
    assert_eq!(few.code, Some(0), "a service may have another limit");
    assert!(few.stderr.contains(&warning), "{few:?}");
    let refused = ran("100:200", start);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!((refused.stderr + &refused.stdout).contains(&refusal));
    let enough = ran(&format!("100:{}", 500 * available_parallelism().unwrap().get()), check);
    assert_eq!((enough.code, enough.stderr.as_str()), (Some(0), ""));
}

fn vec_of(n: usize, make: impl Fn() -> TcpStream) -> Vec<TcpStream> {
    (0..n).map(|_| make()).collect()
}

/// Each client leaves once it has been answered, so that the next can be; whoever is served is next.
fn serve_all(mut waiting: Vec<TcpStream>) {
    waiting.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    wait_for("everybody to be served", || {
        waiting.retain_mut(|stream| match stream.read(&mut [0]) {
            Ok(1) => false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            other => panic!("not served: {other:?}"),
        });
        waiting.is_empty().then_some(())
    });
}

fn two_held(lab: &Loopback) -> [TcpStream; 2] {
    [(); 2].map(|()| {
        let mut stream = connect(lab.vip());
        ping(&mut stream).unwrap();
        stream
    })
}

/// Whether the other side is silent, for long enough to believe it.
fn nothing_comes(stream: &mut TcpStream) -> bool {
    let patience = stream.read_timeout().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let read = stream.read(&mut [0]);
    stream.set_read_timeout(patience).unwrap();
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The balancer with a `soft:hard` limit of open files.
fn limited(open_files: &str) -> Command {
    let mut command = Command::new(tool("prlimit").unwrap());
    command.arg(format!("--nofile={open_files}")).arg(binary().get_program());
    command
}

/// Processor time used during a while.
fn used_while(balancer: &Balancer, a_while: Duration) -> Duration {
    let used = || {
        let stat = fs::read_to_string(balancer.proc("stat")).unwrap();
        let (_, after_name) = stat.rsplit_once(") ").unwrap();
        let ticks = after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u32>().unwrap());
        Duration::from_millis(10) * ticks.sum::<u32>()
    };
    let (start, before) = (clock(), used());
    wait_for("a while to measure", || (start.elapsed() >= a_while).then_some(()));
    used() - before
}
