//! Memory of connections, and memory that is returned to the kernel.

use std::net::TcpStream;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TcpServer, connect, tests, wait_for};

tests!("memory":
    five_thousand_idle_connections_cost_less_than_20_kilobytes_each [Need::OpenFiles(12_000)],
    memory_of_large_pages_goes_back_to_the_kernel,
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

fn memory_of_large_pages_goes_back_to_the_kernel() {
    let lab = Loopback::new();
    let setup = Setup::new(&lab).health("kind = \"none\"");
    let setup = (0..6_000).fold(setup, |setup, n| {
        setup.server(&format!("s{n}"), format_args!("10.9.{}.{}:80", n / 250, n % 250 + 1), "")
    });
    let balancer = BalancerProcess::start(&lab, &setup);
    let before = balancer.memory();
    for path in ["/metrics", "/stats", "/metrics"] {
        assert!(balancer.page(path).1.len() > 1 << 20);
    }
    let grown = balancer.memory() - before;
    wait_for("half of the memory to go back", || (balancer.memory() < before + grown / 2).then_some(()));
}
