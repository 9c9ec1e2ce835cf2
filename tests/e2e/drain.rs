//! Stopping.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TcpServer, TestHttpServer, connect, connect_from, ping, tests,
    wait_for, was_reset,
};
use rustix::process::Signal;

use crate::http::HTTP;
use crate::http::client::Client;

tests!("drain":
    a_stop_lets_open_connections_finish_and_takes_no_new_ones,
    clients_are_served_until_whoever_sends_them_has_noticed_the_stop,
    http_response_during_the_drain_delay_announces_the_close,
    ctrl_c_with_nothing_open_ends_at_once,
    connections_open_after_the_drain_timeout_are_cut_and_counted,
    a_second_signal_ends_at_once,
    clients_that_wait_to_be_accepted_when_the_signal_comes_are_served,
    clients_waiting_for_a_slot_are_served_after_sigterm,
    a_client_that_is_denied_meanwhile_is_reset_and_nobody_else,
    connections_of_a_server_that_fails_during_the_drain_are_reset,
);

fn a_stop_lets_open_connections_finish_and_takes_no_new_ones() {
    let (lab, mut balancer, _server) = echoing("", "");
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 1 open connections have 30s to finish");
    wait_for("new connections to be refused", || is_refused(&lab).then_some(()));
    assert_eq!(balancer.page("/healthz"), (200, "draining\n".to_owned()));
    ping(&mut held).unwrap();
    drop(held);
    assert_eq!(balancer.wait(), 0);
    assert!(balancer.log().contains("stopped: every connection had ended"));
}

fn a_client_that_is_denied_meanwhile_is_reset_and_nobody_else() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let mut balancer = BalancerProcess::start(&lab, &setup);
    let [mut denied, mut let_in] = [66, 50].map(|host| connect_from(lab.ip(host), lab.vip()).unwrap());
    assert!([&mut denied, &mut let_in].map(ping).iter().all(Result::is_ok));
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 2 open connections have 30s to finish");
    let deny = format!("[frontends.web.access]\ndeny = \"{}\"\n", lab.ip(66));
    balancer.save(&setup.listen(&[lab.vip(), lab.second_vip()]).and(&deny));
    assert!(was_reset(&mut denied));
    ping(&mut let_in).unwrap();
    assert!(TcpStream::connect(lab.second_vip()).is_err(), "a process that stops listens nowhere");
    drop(let_in);
    assert_eq!(balancer.wait(), 0);
}

fn clients_are_served_until_whoever_sends_them_has_noticed_the_stop() {
    let (lab, mut balancer, _server) = echoing("", "drain_delay = 3600");
    wait_for("convey to be ready", || (balancer.page("/readyz").0 == 200).then_some(()));
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping in 3600s: until then convey serves clients, and /readyz answers 503");
    assert_eq!(balancer.page("/readyz"), (503, "draining: convey is about to stop\n".to_owned()));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    // A second SIGTERM ends the delay.
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 1 open connections have 30s to finish");
    wait_for("new connections to be refused", || is_refused(&lab).then_some(()));
    drop(held);
    assert_eq!(balancer.wait(), 0);

    let (lab, mut balancer, _server) = echoing("", "drain_delay = 0.2");
    ping(&mut connect(lab.vip())).unwrap();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping in 200ms");
    assert_eq!(balancer.wait(), 0);

    // Ctrl-C skips the delay.
    let (_lab, mut balancer, _server) = echoing("", "drain_delay = 3600");
    balancer.signal(Signal::INT);
    assert_eq!(balancer.wait(), 0);
    assert!(!balancer.log().contains("stopping in"));
}

fn http_response_during_the_drain_delay_announces_the_close() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = Setup::new(&lab).frontend(HTTP).timeouts("drain_delay = 3600").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = Client::new(lab.vip());
    assert!(!held.get("a", "/").head.contains("Connection: close"));
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping in 3600s");
    for mut client in [held, Client::new(lab.vip())] {
        let response = client.get("a", "/");
        assert_eq!(response.status, 200);
        assert!(response.head.contains("\r\nConnection: close\r\n"), "{}", response.head);
        assert!(client.is_closed());
    }
}

fn ctrl_c_with_nothing_open_ends_at_once() {
    // If convey waited for anything, it would wait longer than this test.
    let (_lab, mut balancer, _server) = echoing("", "drain = 60");
    balancer.signal(Signal::INT);
    assert_eq!(balancer.wait(), 0);
    assert!(balancer.log().contains("stopped: every connection had ended"));
}

fn connections_open_after_the_drain_timeout_are_cut_and_counted() {
    let (lab, mut balancer, _server) = echoing("", "drain = 0.3");
    let mut held = [(); 3].map(|()| connect(lab.vip()));
    held.iter_mut().for_each(|stream| ping(stream).unwrap());
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 0);
    assert!(balancer.log().contains("stopped: 3 connections were cut after 300ms"));
    assert!(held.iter_mut().all(|stream| ping(stream).is_err()));
}

fn a_second_signal_ends_at_once() {
    let (lab, mut balancer, _server) = echoing("", "drain = 3600");
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 1 open connections");
    balancer.signal(Signal::TERM);
    assert_eq!(balancer.wait(), 128 + 15);
    assert!(balancer.log().contains("stopped immediately: 1 connections were cut"));
    assert!(ping(&mut held).is_err());
}

fn clients_that_wait_to_be_accepted_when_the_signal_comes_are_served() {
    let (lab, mut balancer, _server) = echoing("", "");
    // While convey is stopped, the kernel queues clients for it. SIGTERM arrives before it accepts
    // them.
    balancer.signal(Signal::STOP);
    let mut waiting: Vec<TcpStream> = (0..50).map(|_| connect(lab.vip())).collect();
    waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    balancer.signal(Signal::TERM);
    balancer.signal(Signal::CONT);
    for stream in &mut waiting {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
    }
    drop(waiting);
    assert_eq!(balancer.wait(), 0);
}

fn clients_waiting_for_a_slot_are_served_after_sigterm() {
    let (lab, mut balancer, _server) = echoing("max_connections = 1", "");
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let mut waiting: Vec<TcpStream> = (0..5).map(|_| connect(lab.vip())).collect();
    balancer.signal(Signal::TERM);
    wait_for("new connections to be refused", || is_refused(&lab).then_some(()));
    // All clients write before the first one is read: the client with the slot must not wait for
    // another's turn.
    waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    drop(held);
    std::thread::scope(|scope| {
        for mut stream in waiting {
            scope.spawn(move || stream.read_exact(&mut [0]).unwrap());
        }
    });
    assert_eq!(balancer.wait(), 0);
}

fn connections_of_a_server_that_fails_during_the_drain_are_reset() {
    let lab = Loopback::new();
    let [server, checked] = [8000, 9000].map(|port| SocketAddr::new(lab.server(1).ip(), port));
    let (_server, probed) = (TcpServer::echo(server), TcpServer::silent(checked));
    let health = "kind = \"tcp\"\nport = 9000\ninterval = 0.1\nfall = 2\nrise = 1";
    let setup = Setup::new(&lab).backend("on_down = \"reset\"").health(health).timeouts("drain = 3600");
    let mut balancer = BalancerProcess::start(&lab, &setup.server("a", server, ""));
    let mut held: Vec<TcpStream> = (0..8).map(|_| connect(lab.vip())).collect();
    held.iter_mut().for_each(|stream| ping(stream).unwrap());
    balancer.signal(Signal::TERM);
    balancer.wait_for_log("stopping: 8 open connections");
    held.iter_mut().for_each(|stream| ping(stream).unwrap());
    drop(probed);
    assert!(held.iter_mut().all(was_reset));
    assert_eq!(balancer.wait(), 0);
    assert!(balancer.log().contains("stopped: every connection had ended"));
}

fn echoing(frontend: &str, timeouts: &str) -> (Loopback, BalancerProcess, TcpServer) {
    let lab = Loopback::new();
    let server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend(frontend).timeouts(timeouts).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    (lab, balancer, server)
}

fn is_refused(lab: &Loopback) -> bool {
    TcpStream::connect(lab.vip()).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
