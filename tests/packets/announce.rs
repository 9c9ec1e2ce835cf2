//! A VIP that convey puts on the loopback interface: the host's stack must not answer its clients.

use std::net::IpAddr;

use convey_lab::{INTERFACE, Role};
use convey_testkit::wait_for;
use rustix::process::Signal;

use crate::case::{Case, PacketTest, tests};
use crate::config::Config;
use crate::network::{Network, PORT};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![a_vip_on_the_loopback_interface_comes_and_goes_with_the_servers[NGINX],]
}

/// Clients reach the VIP by a route, like the one that a router learns from an announcement.
fn a_vip_on_the_loopback_interface_comes_and_goes_with_the_servers(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let vip = network.vip().ip();
    let prefix = if vip.is_ipv4() { "32" } else { "128" };
    let target = format!("{vip}/{prefix}");
    network.lab.run(Role::Balancer, "ip", &["addr", "del", &target, "dev", INTERFACE]).unwrap();
    let balancer = case.family.address(Role::Balancer).to_string();
    network.lab.run(Role::Client(1), "ip", &["route", "add", &target, "via", &balancer]).unwrap();

    let nginx = network.nginx_on(1, (case.family.any(), PORT).into());
    // The unused frontend has the same address, and no server that is up.
    let more = "[announce]\nhold = 0.2\n";
    network.balance_with(&(Config::new(1).text(case) + more));
    let wait = |network: &Network, expected| {
        wait_for(&format!("{vip} on lo: {expected}"), || (is_on_lo(network, vip) == expected).then_some(()));
    };
    wait(&network, true);
    for _ in 0..20 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    drop(nginx);
    wait(&network, false);
    let _nginx = network.nginx_on(1, (case.family.any(), PORT).into());
    wait(&network, true);
    assert_eq!(network.fetch(1).unwrap(), "s1");
    network.convey(|convey| convey.signal(Signal::TERM));
    wait(&network, false);
    assert!(network.convey(|convey| convey.wait()).success());
}

fn is_on_lo(network: &Network, vip: IpAddr) -> bool {
    let addresses = network.lab.run(Role::Balancer, "ip", &["-o", "addr", "show", "dev", "lo"]).unwrap();
    addresses.contains(&format!(" {vip}/"))
}
