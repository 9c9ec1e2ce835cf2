//! Network tools of operators.

use std::net::IpAddr;

use convey_lab::Role;

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, PORT};
use crate::udp::{ECHO, UdpEcho};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        the_host_answers_pings_of_the_vip [NGINX, PING],
        traceroute_by_tcp_shows_the_balancer_before_the_vip [NGINX, TRACEROUTE],
        traceroute_by_udp_shows_the_balancer_before_the_vip [TRACEROUTE],
    ]
}

fn the_host_answers_pings_of_the_vip(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    let vip = network.vip().ip().to_string();
    // A small datagram, and one in fragments.
    for size in ["56", "4000"] {
        let ping = network.run(1, "ping", &["-n", "-c", "3", "-i", "0.1", "-W", "5", "-s", size, &vip]);
        assert!(ping.code == Some(0) && ping.stdout.contains(" 0% packet loss"), "{ping:?}");
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
}

fn traceroute_by_tcp_shows_the_balancer_before_the_vip(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let _server = network.nginx(1);
    network.balance(&Config::new(1));
    is_seen(&network, &["-T", "-p", &PORT.to_string()]);
}

fn traceroute_by_udp_shows_the_balancer_before_the_vip(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { health: UNCHECKED, ..Config::udp(ECHO, 1) });
    let server = (case.family.address(Role::Server(1)), ECHO).into();
    let _echo = network.inside(Role::Server(1), || UdpEcho::start(server));
    is_seen(&network, &["-U", "-p", &ECHO.to_string()]);
}

/// The first hop is the balancer's own address; the second answers as the VIP.
fn is_seen(network: &Network, by: &[&str]) {
    let vip = network.vip().ip();
    let balancer = network.case.family.address(Role::Balancer);
    for (hop, expected) in [("1", balancer), ("2", vip)] {
        // One run for each hop: the kernel may mark a raw socket with an ICMP error that traceroute
        // has read already, and traceroute then waits for that error only.
        let arguments = ["-n", "-N", "1", "-q", "1", "-w", "5", "-f", hop, "-m", hop, &vip.to_string()];
        let ran = network.run(1, "traceroute", &[by, &arguments].concat());
        let seen: Vec<Option<IpAddr>> = ran.stdout.lines().skip(1).map(address).collect();
        assert_eq!(seen, [Some(expected)], "{ran:?}");
    }
}

/// Address of a hop in a line such as ` 1  10.77.0.1  0.061 ms`; ` 1  *` has none.
fn address(hop: &str) -> Option<IpAddr> {
    hop.split_whitespace().nth(1)?.parse().ok()
}
