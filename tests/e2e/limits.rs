//! Occupied connection slots, and time limits.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TcpServer, clock, connect, ping, tests, wait_for, was_reset,
};

tests!("limits":
    a_full_frontend_lets_the_next_client_wait_until_one_leaves,
    full_server_is_passed_over_and_clients_wait_if_all_are,
    client_waiting_too_long_for_a_full_server_is_reset_and_counted,
    a_raised_limit_lets_in_those_who_wait,
    limit_added_by_a_reload_admits_clients_one_by_one,
    a_full_frontend_that_is_renamed_strands_nobody,
    a_burst_on_a_full_frontend_waits_in_the_kernel,
    clients_of_a_full_server_are_served_in_order_of_arrival,
    with_one_server_dead_and_the_other_full_clients_wait,
    an_idle_connection_is_closed_and_counted,
    a_connection_that_talks_is_not_idle,
    a_frontend_and_a_backend_have_time_limits_of_their_own,
);

fn a_full_frontend_lets_the_next_client_wait_until_one_leaves() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("max_connections = 2").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let [first, _second] = two_held(&lab);
    let mut third = connect(lab.vip());
    third.write_all(b"!").unwrap();
    assert!(is_silent(&mut third));
    assert_eq!(balancer.stat("/frontends/web/current_connections"), 2);
    drop(first);
    third.read_exact(&mut [0]).unwrap();
    assert_eq!(balancer.given_to("a"), 3);
}

fn full_server_is_passed_over_and_clients_wait_if_all_are() {
    let lab = Loopback::new();
    let _servers = [1, 2].map(|n| TcpServer::echo(lab.server(n)));
    let setup = Setup::new(&lab).server("a", lab.server(1), "weight = 100\nmax_connections = 1").server(
        "b",
        lab.server(2),
        "weight = 1\nmax_connections = 1",
    );
    let balancer = BalancerProcess::start(&lab, &setup);
    let [first, _second] = two_held(&lab);
    assert_eq!((balancer.given_to("a"), balancer.given_to("b")), (1, 1));
    let mut third = connect(lab.vip());
    third.write_all(b"!").unwrap();
    assert!(is_silent(&mut third));
    drop(first);
    third.read_exact(&mut [0]).unwrap();
    assert_eq!(balancer.given_to("a") + balancer.given_to("b"), 3);
    assert_eq!(balancer.stat("/frontends/web/ended/queue_timeout"), 0);
}

fn client_waiting_too_long_for_a_full_server_is_reset_and_counted() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 0.2").server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    assert!(was_reset(&mut connect(lab.vip())));
    balancer.wait_for_stat("/frontends/web/ended/queue_timeout", 1);
    ping(&mut held).unwrap();
}

fn a_raised_limit_lets_in_those_who_wait() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = |frontend: u32, server: u32| {
        Setup::new(&lab).frontend(&format!("max_connections = {frontend}")).timeouts("connect = 3600").server(
            "a",
            lab.server(1),
            &format!("max_connections = {server}"),
        )
    };
    let balancer = BalancerProcess::start(&lab, &setup(2, 1));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let mut waiting = [(); 3].map(|()| connect(lab.vip()));
    waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    balancer.save(&setup(100, 100));
    waiting.iter_mut().for_each(|stream| stream.read_exact(&mut [0]).unwrap());
}

fn limit_added_by_a_reload_admits_clients_one_by_one() {
    for (frontend, server) in [("max_connections = 1", ""), ("", "max_connections = 1")] {
        let lab = Loopback::new();
        let _server = TcpServer::echo(lab.server(1));
        let setup = |frontend: &str, server: &str| {
            let setup = Setup::new(&lab).frontend(frontend).timeouts("connect = 3600");
            setup.server("a", lab.server(1), server)
        };
        let balancer = BalancerProcess::start(&lab, &setup("", ""));
        let mut held = connect(lab.vip());
        ping(&mut held).unwrap();
        balancer.save(&setup(frontend, server));
        balancer.wait_for_log("reload: ");
        let mut waiting = vec_of(6, || connect(lab.vip()));
        waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
        assert!(waiting.iter_mut().all(is_silent));
        drop(held);
        serve_all(waiting);
    }
}

fn a_full_frontend_that_is_renamed_strands_nobody() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("max_connections = 1").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
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
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("max_connections = 1").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let base = balancer.fds_at_rest().sockets;
    let burst = vec_of(200, || connect(lab.vip()));
    // One client is served, with a socket on either side; each worker may hold one more.
    let workers = available_parallelism().unwrap().get();
    let held = balancer.fds().sockets - base;
    assert!(held <= 2 + workers, "{held} sockets for one connection");
    drop(burst);
}

fn clients_of_a_full_server_are_served_in_order_of_arrival() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 3600").server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut served = connect(lab.vip());
    ping(&mut served).unwrap();
    let mut queue = Vec::new();
    for n in 2..12 {
        let mut next = connect(lab.vip());
        next.write_all(b"!").unwrap();
        balancer.wait_for_stat("/current_connections", n);
        queue.push(next);
    }
    // A client that comes after a place is free, but before the waiting clients are notified, is
    // not served first.
    for mut next in queue {
        drop(served);
        let mut late = connect(lab.vip());
        late.write_all(b"!").unwrap();
        next.read_exact(&mut [0]).unwrap();
        assert!(is_silent(&mut late));
        served = next;
    }
}

fn with_one_server_dead_and_the_other_full_clients_wait() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("connect = 3600").server("a", lab.server(1), "max_connections = 1");
    let balancer = BalancerProcess::start(&lab, &setup.server("b", lab.server(2), ""));
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let mut waiting = vec_of(5, || connect(lab.vip()));
    waiting.iter_mut().for_each(|stream| stream.write_all(b"!").unwrap());
    assert!(waiting.iter_mut().all(is_silent));
    drop(held);
    serve_all(waiting);
    assert_eq!(balancer.stat("/frontends/web/ended/connect_failed"), 0);
}

fn an_idle_connection_is_closed_and_counted() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("idle = 0.4").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
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
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).timeouts("idle = 2").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut talking = connect(lab.vip());
    ping(&mut talking).unwrap();
    let mut idle = connect(lab.vip());
    ping(&mut idle).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let talker = scope.spawn(|| {
            let mut talked = 0;
            while !is_over.load(Ordering::Relaxed) {
                ping(&mut talking).unwrap();
                talked += 1;
            }
            talked
        });
        let has_ended = was_reset(&mut idle);
        is_over.store(true, Ordering::Relaxed);
        let talked = talker.join().unwrap();
        assert!(has_ended && talked >= 20, "{has_ended}, {talked} times");
    });
    ping(&mut talking).unwrap();
    assert_eq!(balancer.stat("/frontends/web/ended/idle_timeout"), 1);
}

fn a_frontend_and_a_backend_have_time_limits_of_their_own() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let other = SocketAddr::new(lab.vip().ip(), lab.vip().port() + 1);
    let more = format!("[frontends.patient]\nlisten_addr = \"{other}\"\nbackend = \"pool\"\n");
    let setup = Setup::new(&lab).frontend("timeouts.idle = \"2s\"").server("a", lab.server(1), "").and(&more);
    let balancer = BalancerProcess::start(&lab, &setup.clone().timeouts("idle = 3600"));
    let (mut hasty, mut patient) = (connect(lab.vip()), connect(other));
    for stream in [&mut hasty, &mut patient] {
        ping(stream).unwrap();
    }
    assert!(was_reset(&mut hasty));
    ping(&mut patient).unwrap();
    assert_eq!(balancer.stat("/frontends/patient/ended/idle_timeout"), 0);

    balancer.save(&setup.frontend("").timeouts("idle = 3600").backend("timeouts.idle = 2"));
    balancer.wait_for_log("backend pool: timeouts.idle unset -> 2s");
    let mut of_backend = connect(other);
    ping(&mut of_backend).unwrap();
    assert!(was_reset(&mut of_backend), "new connections go by it");
    ping(&mut patient).unwrap();
}

pub(crate) fn vec_of(n: usize, make: impl Fn() -> TcpStream) -> Vec<TcpStream> {
    (0..n).map(|_| make()).collect()
}

/// Waits until all clients are served, in any order. Each leaves once it has been answered, which
/// frees its place.
pub(crate) fn serve_all(mut waiting: Vec<TcpStream>) {
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

/// Whether no byte arrives for 200 ms.
pub(crate) fn is_silent(stream: &mut TcpStream) -> bool {
    let patience = stream.read_timeout().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let read = stream.read(&mut [0]);
    stream.set_read_timeout(patience).unwrap();
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}
