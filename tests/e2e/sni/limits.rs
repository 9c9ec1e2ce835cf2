//! Clients that never finish their hello.

use std::io::Write;
use std::net::TcpStream;

use convey_testkit::{BalancerProcess, Loopback, Need, connect, tests, was_reset};

use super::{ROUTES, four, hello, who};

tests!("sni_limits":
    thousand_clients_with_half_a_hello_use_little_memory_and_time_out [Need::OpenFiles(3_000)],
);

fn thousand_clients_with_half_a_hello_use_little_memory_and_time_out() {
    const CLIENTS: usize = 1_000;
    let lab = Loopback::new();
    let (_servers, setup) = four(&lab, &format!("max_connections_per_client = 2000\n{ROUTES}"));
    let balancer = BalancerProcess::start(&lab, &setup);
    let memory = balancer.memory();
    let alpn: Vec<&str> = vec!["a-protocol-that-nobody-speaks"; 500];
    let whole = hello("api.example", &alpn);
    assert!(whole.len() > 15_000);
    let half = |len: usize| -> Vec<TcpStream> {
        let begin = |_| {
            let mut stream = connect(lab.vip());
            stream.write_all(&whole[..len]).unwrap();
            stream
        };
        (0..CLIENTS / 2).map(begin).collect()
    };
    let mut clients = half(whole.len() - 1);
    clients.extend(half(0));
    balancer.wait_for_stat("/current_connections", CLIENTS);
    let each = balancer.memory().saturating_sub(memory) / CLIENTS as u64;
    assert!(each < 12_000, "{each} bytes for each connection");
    assert_eq!(who(&lab, &hello("api.example", &[])), "apis", "others are served meanwhile");
    clients.iter_mut().for_each(|client| assert!(was_reset(client)));
    balancer.wait_for_stat("/frontends/web/ended/hello_timeout", CLIENTS);
    balancer.wait_for_stat("/current_connections", 0);
}
