//! What a connection costs.

use std::net::TcpStream;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TcpServer, connect, stories, wait_for};

stories!("memory":
    five_thousand_idle_connections_cost_less_than_20_kilobytes_each [Need::OpenFiles(12_000)],
);

fn five_thousand_idle_connections_cost_less_than_20_kilobytes_each() {
    const CONNECTIONS: usize = 5_000;
    let lab = Loopback::new();
    let (_server, accepted) = TcpServer::holding(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let (memory, fds) = (balancer.memory(), balancer.fds_at_rest());

    let clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(lab.vip())).collect();
    wait_for("every connection to be established from end to end", || {
        (accepted.lock().unwrap().len() == CONNECTIONS).then_some(())
    });
    balancer.wait_for_stat("/current_connections", CONNECTIONS);
    let each = (balancer.memory() - memory) / CONNECTIONS as u64;
    assert!(each < 20_000, "{each} bytes for each connection");

    drop(clients);
    accepted.lock().unwrap().clear();
    balancer.wait_for_stat("/current_connections", 0);
    wait_for("the descriptors to be given back", || (balancer.fds() == fds).then_some(()));
}
